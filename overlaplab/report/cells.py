"""Tables of a report: texts on the left, numbers on the right with as many digits as their column needs."""

from __future__ import annotations

from dataclasses import dataclass

from overlaplab.formats import texts
from overlaplab.sections.blocks import TableBlock
from overlaplab.words import sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A table as it is shown."""

    caption: str
    headers: tuple[str, ...]
    explanations: tuple[str, ...]
    """What each column means."""
    right: tuple[bool, ...]
    """Whether each column stands on the right."""
    rows: tuple[tuple[str, ...], ...]
    lead: str = ""
    """What it tells, in sentences."""
    left_out: str = ""
    """What the table does not show; empty where it shows all."""
    note: str = ""


def cells(block: TableBlock) -> list[Cells]:
    """A table, or what sums it up where it is too long; columns in which nothing is known are left out."""
    return [_cells(table) for table in block.summed_up()]


def _cells(block: TableBlock) -> Cells:
    filled = [column for column in block.columns if block.frame[column.name].notna().any()]
    return Cells(
        caption=block.caption,
        headers=tuple(column.header if column.unit == "bytes" else column.title for column in filled),
        explanations=tuple(column.explanation for column in filled),
        right=tuple(column.unit != "text" for column in filled),
        rows=tuple(zip(*(texts(block.frame[column.name], column) for column in filled), strict=True)),
        lead=block.lead,
        left_out=f"{sentence(block.left_out)} The command line shows the others with --all." if block.left_out else "",
        note=block.note,
    )
