"""Sections as a report shows them: drawn, but no HTML yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.charts.lanes import WINDOW
from overlaplab.columns import Column
from overlaplab.formats import texts
from overlaplab.report.bundle import themed_spec, with_texts
from overlaplab.sections.blocks import Bars, Block, Chart, Folded, Lines, Section, TableBlock, Tiles
from overlaplab.words import sentence

_ZOOM = "wheel![event.ctrlKey || event.metaKey]"
"""The event that zooms a chart: the wheel alone scrolls the page."""
_HINT = "Ctrl + wheel zooms, drag pans, double-click shows all."


class Drawn(Struct, frozen=True, kw_only=True):
    """A chart whose title is the page's own text, which wraps and is read aloud."""

    title: str
    lines: tuple[str, ...]
    hint: str
    """What the reader can do with it; empty where there is nothing but to look."""
    spec: dict[str, Any]


class Shown(Struct, frozen=True, kw_only=True):
    """A section as the report shows it."""

    title: str
    lead: str
    blocks: Sequence[Drawn | TableBlock | Lines | Tiles | Bars | Folded]
    """Tables that are too long are summed up."""
    advice: str


class Chapter(Struct, frozen=True, kw_only=True):
    """A run's part of the report, or what compares several."""

    anchor: str
    title: str
    sections: tuple[Shown, ...]
    path: str = ""
    verdict: str = ""
    advice: tuple[str, ...] = ()
    """What to do about the verdict, and what else to know of it."""
    note: str | None
    warnings: tuple[str, ...] = ()


def draw_section(section: Section) -> Shown:
    """A section with its charts and tables drawn."""
    return Shown(
        title=section.title,
        lead=section.lead,
        blocks=[part for block in section.blocks for part in _draw_block(block)],
        advice=" ".join(section.advice),
    )


def _draw_block(block: Block) -> Sequence[Drawn | TableBlock | Lines | Tiles | Bars | Folded]:
    """A block with its chart drawn, and its tables summed up; nothing in place of a fold without content."""
    match block:
        case Chart():
            return [draw_chart(block.draw(note=block.note), block.note)]
        case TableBlock():
            return block.summed_up()
        case Lines() | Tiles() | Bars():
            return [block]
        case Folded():
            inside: list[TableBlock | Lines] = []
            for each in block.blocks():
                inside += [each] if isinstance(each, Lines) else each.summed_up()
            return [replace(block, blocks=lambda: inside)] if inside else []


def shown_columns(table: TableBlock) -> list[tuple[Column, list[str]]]:
    """The columns in which anything is known, each with its cells."""
    filled = [column for column in table.columns if table.frame[column.name].notna().any()]
    return [(column, texts(table.frame[column.name], column)) for column in filled]


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
    zooms = _zoom_with_ctrl(spec)
    lines = (subtitle, sentence(note) if note else "")
    return Drawn(
        title=" ".join(_text_lines(texts.get("text"))),
        lines=tuple(line for line in lines if line),
        hint=_HINT if zooms else "",
        spec=with_texts(spec, _without_hint) if zooms else spec,
    )


def _zoom_with_ctrl(spec: dict[str, Any]) -> bool:
    """Have the wheel zoom a chart with Ctrl alone; return whether the chart zooms at all."""
    windows = [parameter for parameter in spec.get("params", []) if parameter.get("name") == WINDOW]
    for parameter in windows:
        parameter["select"] = {"type": "interval", "encodings": ["x"], "zoom": _ZOOM}
    return bool(windows)


def _text_lines(value: Any) -> list[str]:
    return [str(value)] if isinstance(value, str) else list(value or [])


def _without_hint(key: str, text: str) -> str:
    """An axis' title without what it says of the wheel."""
    return text.partition(":")[0] if key == "title" and "wheel" in text else text
