"""The strip of marks: how long a step took, and how short it could have been."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from overlaplab.charts.parts import Layer
from overlaplab.charts.theme import finish, palette
from overlaplab.findings.first_screen import mark_words, marks_heading, marks_title
from overlaplab.words import to_ms

_LINE_PX = 18  # pixels from one line of words to the next
_MARGIN_SHARE = 0.02  # of the longest time, left free behind it


def step_marks(
    table: pd.DataFrame, *, dark: bool = False, note: str | None = None, window: str = "step"
) -> alt.LayerChart:
    """A dot per row of `overlaplab.findings.step_marks` on one line of time from 0; at least two rows.

    Each has a line of words of its own, above the dots in the left half and below those in the right one, so that words
    neither meet nor leave the chart. `window`: `step`, or `trace` of a trace without steps.
    """
    tones = palette(dark)
    marks = _place_marks(table)
    dots, inks = (
        alt.when("datum.measured").then(alt.value(tone)).otherwise(alt.value(tones.soft))
        for tone in (tones.exposed, tones.ink)
    )
    low, high = marks["at"].min(), marks["at"].max()
    air = _MARGIN_SHARE * high
    above, below = max(marks["level"].max(), 0), max(-marks["level"].min(), 0)
    x = alt.X("at:Q", scale=alt.Scale(domain=[0, high + air], nice=False), axis=None)
    ends = alt.Scale(domain=[-below - 0.5, above + 0.5], nice=False, zero=False)
    y = alt.Y("level:Q", scale=ends, axis=None)
    nought = marks.assign(level=0)
    line = pd.DataFrame({"at": [0, low], "until": [low, high], "level": [0, 0]})
    layers = [
        Layer(line.head(1)).mark_rule(color=tones.grid, strokeWidth=6).encode(x=x, x2="until:Q", y=y),
        Layer(line.tail(1)).mark_rule(color=tones.exposed, strokeWidth=6, opacity=0.35).encode(x=x, x2="until:Q", y=y),
        Layer(marks).mark_rule(color=tones.soft, strokeWidth=1).encode(x=x, y=y, y2=alt.Y2Datum(0)),
        Layer(nought).mark_circle(size=140, opacity=1).encode(x=x, y=y, color=dots),
    ]
    for side, on_side in marks.groupby("align"):
        look: dict[str, Any] = {"align": side, "dx": 5 if side == "left" else -5}
        drawn = Layer(on_side).mark_text(fontSize=13, fontWeight=600, **look)
        layers.append(drawn.encode(x=x, y=y, text="label:N", color=inks))
    height = int(_LINE_PX * (above + below + 1))
    return finish(layers, marks_heading(window), [note], f"{marks_title(table, window)}.", dark=dark, height=height)


def _place_marks(table: pd.DataFrame) -> pd.DataFrame:
    """Each mark in ms with its words, and the level of those: 1 is the first line above the dots, -1 that below."""
    at, longest_ns = to_ms(table["ns"].astype("float64")), int(table["ns"].max())
    left = at <= at.max() / 2
    # The words of the left half go to the right from their dot: the leftmost stands highest, and its line passes none.
    # In the right half it is the other way round.
    return pd.DataFrame(
        {
            "at": at,
            "label": [mark_words(word, int(ns), longest_ns) for word, ns in table[["word", "ns"]].to_numpy()],
            "measured": table["word"] == "measured",
            "align": left.map({True: "left", False: "right"}),
            "level": (left[::-1].cumsum()[::-1]).where(left, -(~left).cumsum()),
        }
    )
