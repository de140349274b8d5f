"""Sections as a report shows them: drawn, but no HTML yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from overlaplab.charts.lanes import WINDOW
from overlaplab.formats import texts
from overlaplab.report.bundle import themed_spec, with_texts
from overlaplab.sections.blocks import Bars, Block, Chart, Folded, Lines, Section, TableBlock, Tiles
from overlaplab.words import sentence

_ZOOM = "wheel![event.ctrlKey || event.metaKey]"
"""The wheel alone scrolls the page."""
_HINT = "Ctrl + wheel zooms, drag pans, double-click shows all."


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A chart whose title is the page's own text, which wraps and is read aloud."""

    title: str
    lines: tuple[str, ...]
    hint: str
    """What the reader can do with it; empty where there is nothing but to look."""
    spec: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfolded:
    """What a reader of the report opens."""

    heading: str
    folded: Sequence[Cells | Lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A section as the report shows it."""

    title: str
    lead: str
    blocks: Sequence[Drawn | Cells | Lines | Tiles | Bars | Unfolded]
    advice: str


def draw_section(section: Section) -> Shown:
    """A section with its charts and tables drawn."""
    return Shown(
        title=section.title,
        lead=section.lead,
        blocks=[part for block in section.blocks for part in _draw_block(block)],
        advice=" ".join(section.advice),
    )


def _draw_block(block: Block) -> Sequence[Drawn | Cells | Lines | Tiles | Bars | Unfolded]:
    """A block with its chart or table drawn; nothing where nothing is folded away."""
    match block:
        case Chart():
            return [draw_chart(block.draw(note=block.note), block.note)]
        case TableBlock():
            return cells(block)
        case Lines() | Tiles() | Bars():
            return [block]
        case Folded():
            inside = [part for each in block.blocks() for part in ([each] if isinstance(each, Lines) else cells(each))]
            return [Unfolded(heading=block.heading, folded=inside)] if inside else []


def draw_chart(chart: alt.LayerChart, note: str | None = None) -> Drawn:
    """A chart of `overlaplab.charts`, drawn in the light theme, as a report shows it.

    `note` is the line that was given to the chart: it gets a line of its own.
    """
    spec = themed_spec(chart.to_dict()) | {"width": "container"}
    head = spec.pop("title", "")
    texts = head if isinstance(head, dict) else {"text": head}
    subtitle = " ".join(_text_lines(texts.get("subtitle"))).strip()
    if note is not None:
        subtitle = subtitle.removesuffix(note).strip()
    zooms = _zooms_with_ctrl(spec)
    lines = (subtitle, sentence(note) if note else "")
    return Drawn(
        title=" ".join(_text_lines(texts.get("text"))),
        lines=tuple(line for line in lines if line),
        hint=_HINT if zooms else "",
        spec=with_texts(spec, _without_hint) if zooms else spec,
    )


def _zooms_with_ctrl(spec: dict[str, Any]) -> bool:
    """Make a chart that the wheel zooms need Ctrl for it; whether there was such a chart."""
    windows = [parameter for parameter in spec.get("params", []) if parameter.get("name") == WINDOW]
    for parameter in windows:
        parameter["select"] = {"type": "interval", "encodings": ["x"], "zoom": _ZOOM}
    return bool(windows)


def _text_lines(value: Any) -> list[str]:
    return [str(value)] if isinstance(value, str) else list(value or [])


def _without_hint(key: str, text: str) -> str:
    """An axis' title without what it says of the wheel."""
    return text.partition(":")[0] if key == "title" and "wheel" in text else text
