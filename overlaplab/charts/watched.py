"""A watched training over all its steps: step time and exposed communication by kind of step, and who was late when."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from overlaplab.charts.parts import Layer, row_axis, tooltip
from overlaplab.charts.theme import Palette, finish, palette
from overlaplab.findings import watched
from overlaplab.words import count, ms_to_ns, to_ms

RECORDING = "recording"
"""The name of the chart's selection parameter: the `step` of the chosen recording."""
_AXIS_PX = 62  # so wide are the axes of all three, so that their steps stand below each other
_AIR = 1.12  # the axis ends at this multiple of the longest median
_WORD = 0.07  # a word is as high as this share of the axis
_MAX_SPIKES = 120  # more long steps than that are a line of their own
_GAP = 4  # a line is broken where points are more than so many mean distances apart
_FROM_TO = {"first_step:Q": "from step", "last_step:Q": "to step"}
_WHOLE = {"first_step": ",d", "last_step": ",d", "steps": ",d", "measured_steps": ",d"}


def watched_times(
    series: pd.DataFrame, recordings: pd.DataFrame | None = None, *, dark: bool = False, note: str | None = None
) -> alt.LayerChart:
    """Step time and exposed communication, from `overlaplab.analyses.watched_series`: lines are medians of its pieces.

    Bands go from the shortest to the longest step of a piece. Kinds of steps that are longer at regular distances stand
    out of the line. `recordings` (columns `step` and `reason`) are marked; a mark can be chosen.
    """
    tones = palette(dark)
    table = _in_ms(series)
    highest = table[["span", "exposed"]].max().max() * _AIR if len(table) else 1.0
    scale = alt.Scale(domain=[0, highest or 1.0], nice=False, clamp=True)
    y = alt.Y("span:Q", title=None, scale=scale, axis=_y_axis("ms", tickCount=6))
    ordinary = table[table["period"].isna()]
    layers = _band(ordinary, "span", scale, table, tones.soft)
    layers += _band(ordinary, "exposed", scale, table, tones.exposed)
    for period in table["period"].dropna().unique():
        rows = table[(table["period"] == period).fillna(False)]
        beside = ordinary.set_index("first_step")["span"]
        base = rows["first_step"].map(beside).fillna(beside.median())
        layers += _kind(rows.assign(base=base), y, table, tones)
    layers += _line(ordinary, "span", y, table, tones.soft)
    layers += _line(ordinary, "exposed", alt.Y("exposed:Q", scale=scale), table, tones.exposed)
    layers += _words(table, scale, tones)
    layers.append(_hover(ordinary, table))
    if recordings is not None and len(recordings):
        layers += _recordings(recordings, table, tones)
    title = "Step time and exposed communication"
    subtitle = [watched.watched_times_note(series, ms_to_ns(highest)), note]
    description = f"{title} over {_extent(series)}, by kind of step."
    return finish(layers, title, subtitle, description, dark=dark, height=230)


def watched_shares(series: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """The exposed share of the step, by kind of step, from `overlaplab.analyses.watched_series`."""
    tones = palette(dark)
    table = _in_ms(series)
    y = alt.Y("share:Q", title=None, scale=alt.Scale(domainMin=0, nice=True), axis=_y_axis("%", tickCount=4))
    layers = _line(table[table["period"].isna()], "share", y, table, tones.exposed)
    periodic = table[table["period"].notna() & table["share"].notna()]
    if len(periodic):
        dots = Layer(_rows(periodic)).mark_point(color=tones.soft, size=30, opacity=1, clip=True)
        layers.append(dots.encode(x=_x(table), y=y, tooltip=_lines()))
    layers.append(_hover(table[table["period"].isna()], table))
    title = "Exposed communication, % of the step"
    subtitle = [watched.watched_shares_note(series), note]
    description = f"{title}, over {_extent(series)}, as far as it was measured."
    return finish(layers, title, subtitle, description, dark=dark, height=110)


def watched_late(strip: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """How often each rank was late, from `overlaplab.analyses.watched_strip`; where nothing tells, nothing is drawn."""
    tones = palette(dark)
    table = strip.assign(
        row=strip["rank"].map("rank {}".format),
        end=strip["last_step"] + 1,
        percent=100 * strip["late_share"],
        late_ms=to_ms(strip["late_median_ns"].astype("Float64")),
        times=list(map("{:,} of {:,}".format, strip["late_steps"], strip["telling_steps"])),
    )
    ranks = table.sort_values("rank")["row"].drop_duplicates().tolist()
    shade = alt.Scale(domain=[0, 100], range=[0.1, 1])
    look: dict[str, Any] = {"orient": "top", "symbolType": "square", "titleColor": tones.soft}
    legend = alt.Legend(title="late, % of the measured steps", values=[0, 25, 50, 75, 100], **look)
    y = row_axis("row", ranks, "", minExtent=_AXIS_PX, maxExtent=_AXIS_PX)
    shown = {"row": "who"} | _FROM_TO | {"times": "late in", "late_ms:Q": "by ms (median)"}
    drawn = Layer(_rows(table)).mark_rect(fill=tones.exposed, clip=True)
    opacity = alt.Opacity("percent:Q", scale=shade, legend=legend)
    where = {"x": _x(strip, "first_step"), "x2": alt.X2("end:Q"), "y": y}
    layers = [drawn.encode(**where, opacity=opacity, tooltip=tooltip(shown, **_WHOLE))]
    title = watched.watched_strip_title(strip)
    subtitle = [watched.watched_strip_note(strip), note]
    description = f"A strip of {count(len(ranks), 'rank')} over {_extent(strip)}. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(22 if len(ranks) <= 8 else 16))


def _in_ms(series: pd.DataFrame) -> pd.DataFrame:
    """The series in ms and percent; each row stands in the middle of its piece."""
    names = {f"{what}{bound}": f"{what}{bound}_ns" for what in ("span", "exposed") for bound in ("_low", "", "_high")}
    names["exposed"] = "exposed_comm_ns"
    table = series.assign(
        at=(series["first_step"].astype("float64") + series["last_step"].astype("float64")) / 2,
        end=series["last_step"].astype("float64") + 1,
        share=100 * series["exposed_share"].astype("float64"),
        **{name: to_ms(series[column].astype("float64")) for name, column in names.items()},
    )
    left_out = [name for name in table if str(name).endswith("_ns") or name == "exposed_share"]
    whole = dict.fromkeys(("first_step", "last_step", "steps", "measured_steps"), "float64")
    return table.drop(columns=left_out).astype(whole)  # once, and not for every layer


def _rows(table: pd.DataFrame) -> pd.DataFrame:
    """The table for a chart: plain numbers, None where something is unknown."""
    return table.astype({name: "float64" for name in table if str(table[name].dtype) in ("Int64", "Float64")})


def _x(table: pd.DataFrame, column: str = "at") -> alt.X:
    last = int(table["last_step"].max()) + 1 if len(table) else 1
    axis = alt.Axis(format=",d", tickMinStep=1, grid=False)
    return alt.X(f"{column}:Q", title="step", scale=alt.Scale(domain=[0, last], nice=False), axis=axis)


def _y_axis(unit: str, **look: Any) -> alt.Axis:
    label = f"format(datum.value, ',') + '\u00a0{unit}'"
    return alt.Axis(domain=False, ticks=False, minExtent=_AXIS_PX, maxExtent=_AXIS_PX, labelExpr=label, **look)


def _segments(rows: pd.DataFrame, column: str, *drawn: str) -> pd.DataFrame:
    """What is `drawn` where the column is known, by stretches: a gap of over `_GAP` mean distances ends one."""
    there = rows.loc[rows[column].notna(), ["at", *(drawn or [column])]]
    distance = there["at"].diff()
    return _rows(there.assign(segment=(distance > _GAP * distance.mean()).cumsum()))


def _line(rows: pd.DataFrame, column: str, y: alt.Y, table: pd.DataFrame, tone: str) -> list[alt.Chart]:
    points = _segments(rows, column)
    alone = points[points.groupby("segment")["at"].transform("size") == 1]
    layers = [Layer(points).mark_line(color=tone, strokeWidth=1.5, clip=True)]
    layers += [Layer(alone).mark_circle(color=tone, size=14, opacity=1, clip=True)] if len(alone) else []
    return [layer.encode(x=_x(table), y=y, detail="segment:N") for layer in layers]


def _band(rows: pd.DataFrame, column: str, scale: alt.Scale, table: pd.DataFrame, tone: str) -> list[alt.Chart]:
    """From the least to the most of each piece."""
    low, high = f"{column}_low", f"{column}_high"
    there = _segments(rows, column, low, high)
    if there.empty:
        return []
    ends = {"y": alt.Y(f"{low}:Q", scale=scale), "y2": alt.Y2(f"{high}:Q")}
    drawn = Layer(there).mark_area(color=tone, opacity=0.22, clip=True)
    return [drawn.encode(x=_x(table), **ends, detail="segment:N")]


def _kind(rows: pd.DataFrame, y: alt.Y, table: pd.DataFrame, tones: Palette) -> list[alt.Chart]:
    """Steps of a kind: spikes from the ordinary steps' median (`base`), or a line where they are many."""
    drawn = _rows(rows[["at", "span", "base"]])
    if len(rows) > _MAX_SPIKES:
        return [Layer(drawn).mark_line(color=tones.soft, strokeWidth=1, opacity=0.7).encode(x=_x(table), y=y)]
    spikes = Layer(drawn).mark_rule(color=tones.soft, strokeWidth=1, clip=True)
    return [spikes.encode(x=_x(table), y=y, y2=alt.Y2("base:Q"))]


def _words(table: pd.DataFrame, scale: alt.Scale, tones: Palette) -> list[alt.Chart]:
    """What each line is, above its right end, or below where the word would meet the one above."""
    ends = []
    for row in table.drop_duplicates("period", keep="last").to_dict("records"):
        word = "step" if pd.isna(row["period"]) else watched.kind_word_of_steps(int(row["period"]))
        ends.append((float(row["span"]), word, tones.soft))
    exposed = table[table["period"].isna() & table["exposed"].notna()]
    if len(exposed):
        ends.append((float(exposed["exposed"].iloc[-1]), "exposed", tones.exposed))
    place = {"x": alt.value("width"), "y": alt.Y("ms:Q", scale=scale), "text": "word:N"}
    layers, above_ms = [], math.inf
    for value, word, tone in sorted(ends, key=lambda end: -end[0]):
        meets = above_ms - value < _WORD * scale["domain"][1]
        look: dict[str, Any] = {"baseline": "top", "dy": 4} if meets else {"baseline": "bottom", "dy": -3}
        text = Layer(pd.DataFrame([{"ms": value, "word": word}]))
        layers.append(text.mark_text(color=tone, align="right", dx=-2, fontSize=12, **look).encode(**place))
        above_ms = value
    return layers


def _hover(rows: pd.DataFrame, table: pd.DataFrame) -> alt.Chart:
    """An unseen column per piece, which tells its figures."""
    drawn: alt.Chart = Layer(_rows(rows)).mark_rect(opacity=0, clip=True)
    return drawn.encode(x=_x(table, "first_step"), x2=alt.X2("end:Q"), tooltip=_lines())


def _lines() -> list[alt.Tooltip]:
    figures = {
        "steps:Q": "steps",
        "span:Q": "step ms (median)",
        "span_low:Q": "shortest ms",
        "span_high:Q": "longest ms",
    }
    figures |= {"measured_steps:Q": "of them measured", "exposed:Q": "exposed ms (median)", "share:Q": "exposed, %"}
    return tooltip(_FROM_TO | figures, share=".1f", **_WHOLE)


def _recordings(recordings: pd.DataFrame, table: pd.DataFrame, tones: Palette) -> list[alt.Chart]:
    """A dashed line and a diamond where each recording begins."""
    rows = recordings.assign(at=recordings["step"])
    x = _x(table)
    rule = Layer(rows).mark_rule(color=tones.compute, strokeDash=[3, 3]).encode(x=x)
    chosen = alt.selection_point(name=RECORDING, fields=["step"])
    diamond = Layer(rows).mark_point(
        shape="diamond", size=130, filled=True, color=tones.compute, opacity=1, cursor="pointer", yOffset=-2
    )
    lines = tooltip({"step:Q": "recorded at step", "reason": "since"}, step=",d")
    return [rule, diamond.encode(x=x, y=alt.value(0), tooltip=lines).add_params(chosen)]


def _extent(table: pd.DataFrame) -> str:
    last = int(table["last_step"].max()) if len(table) else 0
    return f"steps 0 to {last:,}"
