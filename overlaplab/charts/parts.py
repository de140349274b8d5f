"""The parts that several charts are made of: rows, bars, words at their ends, dashed lines, tooltips."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import altair as alt
import pandas as pd

from overlaplab.charts.theme import Palette, finish
from overlaplab.words import to_ms

STEP_PARTS = ("compute only", "communication hidden by compute", "communication exposed", "neither (idle, memory)")
"""The parts of a median step, left to right."""
WHEN = {"begin:Q": "from ms", "end:Q": "to ms"}
"""The lines of a tooltip that say when a bar begins and ends."""


class Layer(alt.Chart):
    """A layer of a chart that shares its contents with its copies.

    Altair copies each layer three times, and changes no contents: deep copies took a quarter of a chart's time.
    """

    def __deepcopy__(self, memo: object) -> Self:
        """Copy the layer, but nothing that is in it."""
        return self.copy(deep=False)


def empty_chart(title: str, dark: bool) -> alt.LayerChart:
    """What is drawn of a table without rows, such as a filter leaves: the title that says so."""
    return finish([Layer(pd.DataFrame()).mark_bar()], title, [], f"{title}.", dark=dark, height=60)


def step_fills(tones: Palette, parts: Iterable[str] = STEP_PARTS) -> list[tuple[str, str]]:
    """The colour of each of `STEP_PARTS` that is among these parts."""
    fills = zip(STEP_PARTS, (tones.compute, tones.hidden, tones.exposed, tones.idle), strict=True)
    return fills_drawn(fills, parts)


def fills_drawn(fills: Iterable[tuple[str, str]], parts: Iterable[str]) -> list[tuple[str, str]]:
    """The pairs of a part and its colour for the parts that a chart draws: its legend has no others."""
    drawn = set(parts)
    return [(part, tone) for part, tone in fills if part in drawn]


def stack_parts(lengths: Iterable[float]) -> list[tuple[str, float, float, float]]:
    """The `STEP_PARTS` with these lengths, one after the other: part, length, begin, end. Empty ones are left out."""
    drawn = [(part, length) for part, length in zip(STEP_PARTS, lengths, strict=True) if length > 0]
    ends = [0.0, *itertools.accumulate(length for _, length in drawn)]
    return [(*part, begin, end) for part, (begin, end) in zip(drawn, itertools.pairwise(ends), strict=True)]


def row_axis(
    column: str, labels: Iterable[str], title: str | None, *, scale: Any = alt.Undefined, **look: Any
) -> alt.Y:
    """One row per label, each with its label unless `look`, of the axis, says otherwise."""
    axis = alt.Axis(domain=False, ticks=False, **({"labelOverlap": False} | look))
    return alt.Y(f"{column}:N", sort=list(labels), title=title, axis=axis, scale=scale)


def tooltip(titles: Mapping[str, str], **formats: str) -> list[alt.Tooltip]:
    """One line per field with its title, or its own name where the title is empty.

    `name:Q` is a number, in ms: a time is shown to the µs, the length `ms` with four digits, unless `formats` says
    otherwise.
    """
    lines = []
    for field, title in titles.items():
        name, _, kind = field.partition(":")
        look: dict[str, Any] = {"title": title} if title else {}
        if kind == "Q":
            look["format"] = formats.get(name, ",.4~r" if name == "ms" else ",.3f")
        lines.append(alt.Tooltip(f"{name}:{kind or 'N'}", **look))
    return lines


def bars(
    table: pd.DataFrame, x: alt.X, y: alt.Y, colour: alt.Color, lines: Sequence[alt.Tooltip], band: float, **mark: Any
) -> alt.Chart:
    """Bars from `x` to the column `end`; `band` is their share of a row's height, `lines` their tooltip."""
    drawn: alt.Chart = Layer(table).mark_bar(height={"band": band}, opacity=1, **mark)
    return drawn.encode(x=x, x2=alt.X2("end:Q"), y=y, color=colour, tooltip=list(lines))


def words(table: pd.DataFrame, x: str | alt.X, y: alt.Y, ink: str, *, column: str = "word", **look: Any) -> alt.Chart:
    """The texts of a column, at `x`; `look` is what Altair's `mark_text` takes."""
    place = alt.X(f"{x}:Q") if isinstance(x, str) else x
    drawn: alt.Chart = Layer(table).mark_text(color=ink, fontSize=12, **look)
    return drawn.encode(x=place, y=y, text=alt.Text(f"{column}:N"))


FLUSH = 16
"""Pixels, for an axis' `labelFlush` where `with_room` ends it between two ticks: a last label so near the end is
aligned with it, and not cut."""


def with_room(most: float, texts: Iterable[str]) -> alt.Scale:
    """A scale from 0 so far beyond `most` that texts have room behind the longest bar, however wide the chart is."""
    pixels = 8 + 6.4 * max((len(text) for text in texts), default=0)
    end = alt.ExprRef(f"{most or 1.0!r} * width / max(width - {pixels:.0f}, width / 5)")
    return alt.Scale(domainMin=0, domainMax=end, nice=False)


def dashed_lines(
    table: pd.DataFrame, axis: Literal["x", "y"], column: str, name: str, ink: str, width: float = 1.5, **look: Any
) -> list[alt.Chart]:
    """A dashed line across the chart at each value of a column, which is a place on the axis; the first has a name."""
    place: dict[str, Any] = {axis: f"{column}:Q"}
    start: dict[str, Any] = {"y" if axis == "x" else "x": alt.value(0)}
    rule: alt.Chart = Layer(table).mark_rule(color=ink, strokeDash=[5, 4], strokeWidth=width).encode(**place)
    text = Layer(table.head(1)).mark_text(color=ink, fontSize=12, **look)
    return [rule, text.encode(**place, **start, text=alt.value(name))]


def known_ms(ns: Any) -> float | None:
    """A time as ms; None where it is unknown."""
    return None if ns is None or pd.isna(ns) else to_ms(float(ns))
