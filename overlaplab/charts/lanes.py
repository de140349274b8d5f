"""The timeline chart: lanes by rank and stream or thread, and one of exposed communication per rank."""

from __future__ import annotations

import altair as alt
import pandas as pd

from overlaplab.analyses.timeline import Mark, View
from overlaplab.charts.theme import MS, Palette, colours, finish, ms, palette, percent
from overlaplab.words import shorten

__all__ = ["WINDOW", "mark_colours", "timeline", "timeline_rows"]

WINDOW = "window"
"""The name of the chart's selection parameter: the visible part of the time axis, in ms."""

_NAMED = 0.035  # share of the window that a step or phase needs to carry its name
_PHASES = frozenset({Mark.FORWARD.value, Mark.BACKWARD.value, Mark.OPTIMIZER.value})


def timeline(view: View, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """The marks of `overlaplab.analyses.timeline.timeline_view`; wheel zooms and drag pans along the time
    axis.

    All marks stand in one table at the chart's top (`timeline_rows`), so that a dashboard can replace them
    and leave the chart, and with it the reader's zoom, as it is.
    """
    tones = palette(dark)
    labels = list(view.lanes["label"])
    axis = alt.Axis(domain=False, ticks=False, labelOverlap=False, grid=True)
    y = alt.Y("lane:N", sort=labels, title=None, scale=alt.Scale(domain=labels), axis=axis)
    shown = alt.Scale(domain=[view.start_ns / MS, view.end_ns / MS], nice=False, zero=False)
    ticks = alt.Axis(labelOverlap="greedy", labelSeparation=8, tickCount=14)
    x = alt.X("begin:Q", title="time since the run's zero (ms): wheel zooms, drag pans", scale=shown, axis=ticks)
    fills = _fills(view, tones)
    edges = [tones.soft if word == Mark.STEP.value else tone for word, tone in fills]
    edge = alt.Scale(domain=[word for word, _ in fills], range=edges)
    # The stroke tells one step from the next, and gives other marks narrower than a pixel a visible width.
    bars: alt.Chart = (
        alt.Chart()
        .mark_bar(height={"band": 0.72}, opacity=1, strokeWidth=0.6, clip=True)
        .encode(
            x=x,
            x2="end:Q",
            y=y,
            color=colours(fills),
            stroke=alt.Stroke("part:N", scale=edge, legend=None),
            tooltip=[
                alt.Tooltip("what:N"),
                alt.Tooltip("part:N", title="counts as"),
                alt.Tooltip("events:Q", format=",", title="events in this mark"),
                alt.Tooltip("busy:Q", format=",.3f", title="busy ms"),
                alt.Tooltip("begin:Q", format=",.3f", title="from ms"),
                alt.Tooltip("end:Q", format=",.3f", title="to ms"),
                alt.Tooltip("lane:N"),
            ],
        )
        .add_params(alt.selection_interval(name=WINDOW, bind="scales", encodings=["x"]))
    )
    ink = alt.condition(f"datum.part === '{Mark.STEP.value}'", alt.value(tones.ink), alt.value(tones.on_dark))
    words: alt.Chart = alt.Chart().mark_text(fontSize=11, clip=True).encode(x="middle:Q", y=y, text="word:N", color=ink)
    title = _finding(view)
    chart = finish(
        [bars, words],
        title=title,
        subtitle=[note],
        description=f"Time runs to the right. Lanes: {', '.join(map(shorten, labels[:12]))}. {title}.",
        dark=dark,
        height=alt.Step(20 if len(labels) <= 24 else 15),
    )
    chart.data = timeline_rows(view)
    return chart


def timeline_rows(view: View) -> pd.DataFrame:
    """The chart's table: a row per mark, times in ms, and the word on those marks that have room for one."""
    marks = view.marks
    rows = pd.DataFrame(
        {
            "lane": marks["label"],
            "part": marks["part"],
            "begin": marks["start_ns"] / MS,
            "end": marks["end_ns"] / MS,
            "events": marks["events"],
            "busy": marks["busy_ns"] / MS,
            "what": [shorten(name, 90) for name in marks["name"]],
        }
    )
    rows["middle"] = (rows["begin"] + rows["end"]) / 2
    wide = marks["end_ns"] - marks["start_ns"] >= _NAMED * (view.end_ns - view.start_ns)
    rows["word"] = [
        _word(part, name) if room else "" for part, name, room in zip(marks["part"], marks["name"], wide, strict=True)
    ]
    return rows


def _fills(view: View, tones: Palette) -> list[tuple[str, str]]:
    """The colours of what these lanes hold."""
    found = set(view.marks["part"])
    return [(mark.value, tone) for mark, tone in mark_colours(tones).items() if mark.value in found]


def mark_colours(tones: Palette) -> dict[Mark, str]:
    """The colour of each kind of mark, in the legend's order."""
    return {
        Mark.STEP: tones.idle,
        Mark.FORWARD: tones.queued,
        Mark.BACKWARD: tones.soft,
        Mark.OPTIMIZER: tones.memory,
        Mark.COMPUTE: tones.compute,
        Mark.GATHER: tones.gather,
        Mark.REDUCE: tones.reduce,
        Mark.COMMUNICATION: tones.other,
        Mark.EXPOSED: tones.exposed,
        Mark.MEMORY: tones.memory,
        Mark.FREE: tones.ink,
    }


def _word(part: str, name: str) -> str:
    """What a wide mark of a step or phase is called on the chart."""
    if part == Mark.STEP.value:
        return shorten(name, 24)
    return part if part in _PHASES else ""


def _finding(view: View) -> str:
    """The title: how much of the window's communication is exposed, over all its ranks."""
    where = f"from {ms(view.start_ns)} to {ms(view.end_ns)}"
    comm = int(view.totals["comm_ns"].sum())
    if comm == 0:
        return f"No communication {where}"
    exposed = int(view.totals["exposed_comm_ns"].sum())
    return f"Exposed communication {ms(exposed)} of {ms(comm)} of communication ({percent(exposed, comm)}), {where}"
