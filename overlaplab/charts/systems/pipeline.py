"""Charts of a pipeline's step: who does what when, and how many microbatches' activations each stage holds."""

from __future__ import annotations

from math import ceil
from typing import Any

import altair as alt
import pandas as pd

from overlaplab.charts.parts import WHEN, Layer, bars, empty_chart, fills_drawn, row_axis, tooltip, words
from overlaplab.charts.sharding.held import LABELS_LOOK, LABELS_WIDTH, time_axis
from overlaplab.charts.theme import colours, finish, labels_width, palette
from overlaplab.findings.systems.pipeline import pipeline_held_title
from overlaplab.words import to_ms

_PARTS = {
    "bubble": "bubble",
    "forward": "forward",
    "backward": "backward",
    "backward_input": "backward, inputs",
    "backward_weight": "backward, weights",
}
_ROW_PX = 46
_BAR_PX = 29
"""Pixels: how tall bars are, which take 0.7 of a row's band."""
_STROKES_PER_STEP = 120
"""How many strokes a bubble as long as the step would get."""
_NUMBERED_SHARE = 0.011
"""Share of the chart's width: a narrower bar has no room for its microbatch's number."""


def pipeline(table: pd.DataFrame, *, title: str, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """Rows of `analyses.pipeline` of one pipeline and step, all its ranks: a row per stage, bars with microbatches'
    numbers, and the time in which the stage's rank does nothing.
    """
    if table.empty:
        return empty_chart("No action of a pipeline was recorded", dark)
    tones = palette(dark)
    names = _names(table)
    end = int(table["end_ns"].max())
    rows = pd.concat([_bubbles(table, end), table.assign(part=table["action"].map(_PARTS))])
    drawn = pd.DataFrame(
        {
            "row": rows["stage"].map(names),
            "part": rows["part"],
            "microbatch": rows["microbatch"].astype("object").where(rows["microbatch"].notna(), ""),
            "begin": to_ms(rows["start_ns"].astype("float64")),
            "end": to_ms(rows["end_ns"].astype("float64")),
            "wait": to_ms(rows["wait_ns"].astype("Float64")).astype("object").where(rows["wait_ns"].notna(), None),
        }
    )
    of_parts = (tones.idle, tones.forward, tones.compute, tones.compute, tones.hidden)
    drawn["middle"] = (drawn["begin"] + drawn["end"]) / 2
    fills = fills_drawn(zip(_PARTS.values(), of_parts, strict=True), drawn["part"])
    labels = list(names.values())
    y = row_axis("row", labels, None, scale=alt.Scale(domain=labels), grid=False, **LABELS_LOOK)
    x = time_axis((0, end))
    colour = colours(fills, columns=5, left=labels_width(labels))
    bubble = drawn["part"] == "bubble"
    wide = drawn[~bubble & (drawn["end"] - drawn["begin"] > _NUMBERED_SHARE * to_ms(end))]
    lines = tooltip({"row": "stage", "part": "what", "microbatch": ""} | WHEN | {"wait:Q": "waited before ms"})
    bubble_lines = lines[:2] + lines[3:5]  # without microbatch and wait
    drawn_parts = [part for part, _ in fills if part != "bubble"]
    look: dict[str, Any] = {"column": "microbatch", "fontWeight": "bold"}
    inks = {"forward": tones.ink, "backward, weights": tones.on_light}
    layers = [
        bars(drawn[bubble], x, y, colour, bubble_lines, 0.7),
        _draw_hatching(drawn[bubble], to_ms(end) / _STROKES_PER_STEP, y, tones.soft, bubble_lines),
        bars(drawn[~bubble], x, y, colour, lines, 0.7, stroke=tones.on_dark, strokeWidth=0.6),
        *(
            words(wide[wide["part"] == part], "middle", y, inks.get(part, tones.on_dark), **look)
            for part in drawn_parts
        ),
    ]
    reading = "The number is the microbatch. Hatched: bubble, time in which the stage's rank does nothing."
    subtitle = [reading, "Drawn from the first action of any rank on: a rank's own step may begin earlier.", note]
    description = f"{len(names)} stages on a time axis: {', '.join(part for part, _ in fills)}. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(_ROW_PX))


def pipeline_held(table: pd.DataFrame, *, end_ns: int, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """Rows of `analyses.pipeline_held`: a curve per stage, up to the end of the pipeline's step."""
    tones = palette(dark)
    stages = sorted(int(stage) for stage in table["stage"].unique())
    last = table.groupby("stage", as_index=False).tail(1).assign(time_ns=end_ns)
    rows = pd.concat([table, last])
    parts, begins = [f"stage {stage}" for stage in rows["stage"]], to_ms(rows["time_ns"].astype("float64"))
    drawn = pd.DataFrame({"part": parts, "begin": begins, "held": rows["held"].astype("float64")})
    scheme = (tones.reduce, tones.compute, tones.gather, tones.hidden, tones.exposed, tones.blocking, tones.scatter)
    fills = [(f"stage {stage}", scheme[place % len(scheme)]) for place, stage in enumerate(stages)]
    colour = colours(fills, columns=8, left=LABELS_WIDTH + 20, symbolType="stroke")
    y = alt.Y(
        "held:Q",
        title=None,
        axis=alt.Axis(domain=False, ticks=False, tickCount=4, tickMinStep=1, format="d", **LABELS_LOOK),
    )
    curves = Layer(drawn).mark_line(interpolate="step-after", strokeWidth=2)
    layers = [curves.encode(x=time_axis((0, end_ns)), y=y, color=colour)]
    title = pipeline_held_title(table)
    subtitle = ["Microbatches that were forward in a stage, and not yet backward.", note]
    description = f"A step curve for each of {len(stages)} stages. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=150)


def _names(table: pd.DataFrame) -> dict[int, str]:
    """The label of each stage's row, in order of stages."""
    pairs = table[["stage", "rank"]].drop_duplicates().sort_values("stage")
    return {
        int(stage): f"stage {stage}" + ("" if pd.isna(rank) else f", rank {rank}") for stage, rank in pairs.to_numpy()
    }


def _bubbles(table: pd.DataFrame, end_ns: int) -> pd.DataFrame:
    """Where the rank of each stage does nothing, as rows of the part `bubble`."""
    rows = []
    for rank, actions in table.groupby("rank", dropna=False):
        actions = actions.sort_values("start_ns")
        begins, ends = [0, *actions["end_ns"].tolist()], [*actions["start_ns"].tolist(), end_ns]
        for stage in actions["stage"].unique():
            rows += [
                (rank, stage, begin, end, "bubble") for begin, end in zip(begins, ends, strict=True) if end > begin
            ]
    names = ["rank", "stage", "start_ns", "end_ns", "part"]
    whole = pd.DataFrame(rows, columns=names).astype({"start_ns": "Int64", "end_ns": "Int64", "stage": "Int64"})
    unknown = pd.array([pd.NA] * len(whole), "Int64")
    return whole.assign(microbatch=unknown, wait_ns=unknown)


def _draw_hatching(bubbles: pd.DataFrame, apart_ms: float, y: alt.Y, ink: str, lines: list[alt.Tooltip]) -> alt.Chart:
    """Slanted strokes over the bubbles; what sticks out of one is under the bars beside it, which are drawn later."""
    strokes = [
        {**row, "middle": number * apart_ms}
        for row in bubbles.drop(columns="middle").to_dict("records")
        for number in range(ceil(row["begin"] / apart_ms), ceil(row["end"] / apart_ms))
    ]
    look: dict[str, Any] = {
        "shape": "M-0.7,1L0.7,-1",
        "size": _BAR_PX**2,
        "strokeWidth": 1,
        "opacity": 0.5,
        "clip": True,
    }
    drawn: alt.Chart = Layer(pd.DataFrame(strokes, columns=list(bubbles.columns))).mark_point(color=ink, **look)
    return drawn.encode(x=alt.X("middle:Q"), y=y, tooltip=lines)
