"""Tables of a report: texts on the left, numbers on the right with as many digits as their column needs."""

from __future__ import annotations

from dataclasses import dataclass

from overlaplab.formats import texts
from overlaplab.sections.blocks import TableBlock

__all__ = ["Cells", "cells"]

MOST_ROWS = 60
"""A longer table is cut: whoever wants all of it has the command line's `--json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A table as it is shown."""

    caption: str
    headers: tuple[str, ...]
    explanations: tuple[str, ...]
    """What each column means."""
    right: tuple[bool, ...]
    """Which columns stand on the right."""
    rows: tuple[tuple[str, ...], ...]
    lead: str = ""
    """What it tells, in sentences."""
    left_out: str = ""
    """What the table does not show; empty where it shows all."""
    note: str = ""


def cells(block: TableBlock) -> Cells:
    """The first rows of a table, as many as it says; columns in which nothing is known are left out."""
    known = [column for column in block.columns if block.frame[column.name].notna().any()]
    shown = block.frame.head(block.most or MOST_ROWS)
    return Cells(
        caption=block.caption,
        headers=tuple(column.header if column.unit == "bytes" else column.title for column in known),
        explanations=tuple(column.explanation for column in known),
        right=tuple(column.unit != "text" for column in known),
        rows=tuple(zip(*(texts(shown[column.name], column) for column in known), strict=True)),
        lead=block.lead,
        left_out=block.left_out(len(shown)),
        note=block.note,
    )
