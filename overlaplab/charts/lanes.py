"""The timeline chart: lanes by rank and stream or thread, and one of exposed communication per rank."""

from __future__ import annotations

import re
from typing import Any, cast

import altair as alt
import pandas as pd

from overlaplab.charts.parts import WHEN, Layer, row_axis, tooltip
from overlaplab.charts.theme import DARK, Palette, cause_colours, colours, finish, palette
from overlaplab.findings import mark_name, mark_word
from overlaplab.findings.windows import clocks_note, timeline_title
from overlaplab.timeline.host_lanes import HostKind
from overlaplab.timeline.marks import CAUSE_MARKS, MarkKind
from overlaplab.timeline.timeline import View
from overlaplab.words import shorten, to_ms

WINDOW = "window"
"""The name of the chart's selection parameter: the visible part of the time axis, in ms."""

POINTED = "pointed"
"""The name of the selection parameter that holds the collective under the pointer."""
_CHARACTER_SHARE = 0.0075  # share of the window that a name needs for each character
_PHASES = {
    MarkKind.STEP: ("#D9DCE4", "#4A505C"),
    MarkKind.FORWARD: ("#C3C9D6", "#565D6B"),
    MarkKind.BACKWARD: ("#98A2B3", "#7C8494"),
    MarkKind.OPTIMIZER: ("#6E7684", "#A9B0BD"),
    MarkKind.HOST: ("#EBE4D3", "#48422F"),
}
"""Steps and passes are grey, in the light and the dark theme: other colours show what streams do."""
_HOST = {
    HostKind.RANGE: ("#E6E8EC", "#31363F"),
    HostKind.OPERATOR: ("#BAC4CF", "#586472"),
    HostKind.CALL: ("#8B96A5", "#8B98A8"),
    HostKind.LAUNCH: ("#3F4754", "#D5DAE1"),
}
"""What hosts do is grey, too."""
_NAMED = tuple(mark.value for mark in _PHASES)
_LEGEND_COLUMNS = 5
"""Columns of the legend: so many causes in words fit into a line."""
_ON_GROUND = (MarkKind.STEP.value, MarkKind.FORWARD.value, MarkKind.HOST.value)
"""Marks whose names have the colour of text on the background."""
_ON_LIGHT = (MarkKind.BACKWARD.value, MarkKind.ALL_GATHER.value)
"""Marks whose names have the colour of text on light marks. Both sets hold in either theme, because the reader of a
report may switch themes."""
_OF_LABEL = re.compile(r"^(reduce-scatter|gather) | for \w+$")  # the lane and the phase say this already
_OUTLINED_SHARE = 0.008  # share of the window: labels' marks at least this wide get an outline of their own
_MOST_STEP_LINES = 80  # more lines would hide what they separate
_LEADS = "test(/^rank [0-9?]+ steps$/, {})"
"""A Vega expression: whether a lane with the label `{}` is its rank's first."""
_SHORT = (
    f"{_LEADS.format('datum.label')} ? replace(datum.label, ' steps', '') : replace(datum.label, /^rank [0-9?]+ /, '')"
)
"""A Vega expression, a label in brief: of a rank's first lane `rank 3`, of others the lane alone."""


def timeline(view: View, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """The marks of `overlaplab.timeline.timeline.timeline_view`; the wheel zooms and drag pans along the time axis.

    Pointing at a collective fades all other marks, on every rank. Vertical lines show where a rank's steps begin. All
    layers draw one table, the chart's data (`timeline_rows`).
    """
    tones = palette(dark)
    labels = list(view.lanes["label"])
    y = _lanes_axis(view, tones)
    shown = alt.Scale(domain=[to_ms(view.start_ns), to_ms(view.end_ns)], nice=False, zero=False)
    ticks = alt.Axis(labelOverlap="greedy", labelSeparation=8, tickCount=14)
    how = "time since the run's zero (ms): wheel zooms, drag pans, pointing at a collective shows it on every rank"
    x = alt.X("begin:Q", title=how, scale=shown, axis=ticks)
    title = timeline_title(view)
    layers = [*_borders(view, y, x, tones), _bars(view, x, y, tones), _words(y, tones)]
    subtitle = [note, clocks_note(view.offsets)]
    description = f"Time runs to the right. Lanes: {', '.join(map(shorten, labels[:12]))}. {title}."
    chart = finish(layers, title, subtitle, description, dark=dark, height=alt.Step(20 if len(labels) <= 24 else 15))
    chart.data = timeline_rows(view)
    return chart


def _lanes_axis(view: View, tones: Palette) -> alt.Y:
    """A row per lane; the label of a rank's first lane is the rank, and that of the others what the lane shows."""
    labels = list(view.lanes["label"])
    leads = _LEADS.format("datum.value")
    weight = {"condition": {"test": leads, "value": "bold"}, "value": "normal"}
    colour = {"condition": {"test": leads, "value": tones.ink}, "value": tones.soft}
    look = {"grid": False, "labelExpr": _SHORT, "labelFontWeight": weight, "labelColor": colour}
    return row_axis("lane", labels, None, scale=alt.Scale(domain=labels), **look)


def _bars(view: View, x: alt.X, y: alt.Y, tones: Palette) -> alt.Chart:
    """The marks. Their outline separates steps, and makes marks narrower than a pixel visible."""
    drawn = set(view.marks["part"])
    fills = [(mark_word(mark), tone) for mark, tone in mark_colours(tones).items() if mark.value in drawn]
    edges = [tones.soft if word == MarkKind.STEP.value else tone for word, tone in fills]
    hover: dict[str, Any] = {"on": "pointerover", "clear": "pointerout"}
    pointed = alt.selection_point(name=POINTED, fields=["collective"], empty=False, **hover)
    is_faded = f"{POINTED}.collective && {POINTED}.collective[0] >= 0 && datum.collective !== {POINTED}.collective[0]"
    in_legend = [word for word, _ in fills if word not in _NAMED]  # steps and phases carry their names
    columns = {"columns": _LEGEND_COLUMNS} if len(in_legend) > _LEGEND_COLUMNS else {}
    wrapped: dict[str, Any] = {"values": in_legend} | columns
    legend = alt.Legend(orient="top", labelLimit=0, symbolType="square", **wrapped)  # as the fill's: both are one
    titles = {"what": "", "part": "counts as", "events:Q": "events in this mark", "busy:Q": "busy ms"}
    domain = [word for word, _ in fills]
    scale, condition = alt.Scale(domain=domain, range=edges), {"test": "datum.apart", "value": tones.on_dark}
    bars: alt.Chart = Layer().mark_bar(height={"band": 0.72}, strokeWidth=0.6, clip=True)
    bars = bars.encode(
        x=x,
        x2="end:Q",
        y=y,
        color=colours(fills, **wrapped),
        stroke=alt.Stroke("part:N", title=None, sort=domain, scale=scale, legend=legend, condition=condition),
        opacity=alt.condition(is_faded, alt.value(0.15), alt.value(1)),
        tooltip=tooltip(titles | WHEN | {"lane": ""}, events=","),
    )
    return bars.add_params(alt.selection_interval(name=WINDOW, bind="scales", encodings=["x"]), pointed)


def _words(y: alt.Y, tones: Palette) -> alt.Chart:
    """The names of steps, phases and labels, where there is room."""
    on_ground, on_light = (
        " || ".join(f"datum.part === '{mark}'" for mark in marks) for marks in (_ON_GROUND, _ON_LIGHT)
    )
    ink = {
        "condition": [{"test": on_ground, "value": tones.ink}, {"test": on_light, "value": tones.on_light}],
        "value": tones.on_dark,
    }
    texts: alt.Chart = Layer().mark_text(fontSize=11, clip=True)
    return texts.encode(x="middle:Q", y=y, text="word:N", color=cast(Any, ink)).transform_filter("datum.word !== ''")


def _borders(view: View, y: alt.Y, x: alt.X, tones: Palette) -> list[alt.Chart]:
    """Lines between the ranks, and vertical ones where each rank's steps begin."""
    lanes = view.lanes.assign(group=view.lanes["rank"].astype("Int64").fillna(-1))
    firsts, lasts = (lanes.groupby("group", sort=False)["label"].agg(which) for which in ("first", "last"))
    lines = []
    if len(firsts) > 1:
        tops = pd.DataFrame({"lane": list(firsts)[1:]})
        rule = Layer(tops).mark_rule(color=tones.soft, strokeWidth=1, opacity=0.6)
        lines.append(rule.encode(y=y.bandPosition(0)))
    steps = view.steps
    if len(steps):
        steps = steps.assign(group=steps["rank"].astype("Int64").fillna(-1))
        steps = steps[(steps["start_ns"] >= view.start_ns) & steps["group"].isin(firsts.index)]
        begins, group = to_ms(steps["start_ns"].astype("float64")), steps["group"]
        edges = pd.DataFrame({"begin": begins, "lane": group.map(firsts), "until": group.map(lasts)})
        if 0 < len(edges) <= _MOST_STEP_LINES:
            rule = Layer(edges).mark_rule(color=tones.soft, strokeDash=[2, 3], strokeWidth=1, clip=True)
            lines.append(rule.encode(x=x, y=y.bandPosition(0), y2=alt.Y2("until", bandPosition=1)))
    return lines


def timeline_rows(view: View) -> pd.DataFrame:
    """The chart's table: a row per mark, times in ms; `word`, its name where there is room; `apart`: it is outlined."""
    marks = view.marks
    rows = pd.DataFrame(
        {
            "lane": marks["label"],
            "part": [mark_word(MarkKind(part)) for part in marks["part"]],
            "begin": to_ms(marks["start_ns"]),
            "end": to_ms(marks["end_ns"]),
            "events": marks["events"],
            "busy": to_ms(marks["busy_ns"]),
            "collective": marks.get("collective", -1),
            "what": [shorten(mark_name(name), 90) for name in marks["name"]],
        }
    )
    rows["middle"] = (rows["begin"] + rows["end"]) / 2
    share = (marks["end_ns"] - marks["start_ns"]) / (view.end_ns - view.start_ns)
    kinds = marks["kind"] if "kind" in marks else [""] * len(marks)
    words = map(_word, marks["part"], kinds, marks["name"], marks["events"])
    rows["apart"] = [kind == "labels" and room >= _OUTLINED_SHARE for kind, room in zip(kinds, share, strict=True)]
    rows["word"] = [
        word if room >= _CHARACTER_SHARE * (len(word) + 1) else "" for word, room in zip(words, share, strict=True)
    ]
    return rows


def mark_colours(tones: Palette) -> dict[MarkKind, str]:
    """The colour of each kind of mark, in the legend's order."""
    return {
        **{mark: pair[tones is DARK] for mark, pair in _PHASES.items()},
        MarkKind.COMPUTE: tones.compute,
        MarkKind.ALL_REDUCE: tones.reduce,
        MarkKind.REDUCE_SCATTER: tones.scatter,
        MarkKind.ALL_GATHER: tones.gather,
        MarkKind.ALL_TO_ALL: tones.to_all,
        MarkKind.COMMUNICATION: tones.other,
        **{mark: cause_colours(tones)[cause] for mark, cause in CAUSE_MARKS.items()},
        MarkKind.EXPOSED: tones.idle,
        MarkKind.MEMORY: tones.memory,
        MarkKind.FREE: tones.ink,
    }


def host_colours(tones: Palette) -> dict[str, str]:
    """The colour of each `HostKind`."""
    return {kind.value: pair[tones is DARK] for kind, pair in _HOST.items()}


def _word(part: str, kind: str, name: str, events: int) -> str:
    """The name that a mark of a step, a phase or a label has on the chart; empty for other marks."""
    if part == MarkKind.STEP.value:
        return shorten(name, 24)
    if MarkKind(part) in _PHASES:
        return part if part != MarkKind.HOST.value else shorten(name.partition(": ")[0], 24)
    if kind != "labels" or events > 1:
        return ""
    return shorten(_OF_LABEL.sub("", name.partition(",")[0]), 32)
