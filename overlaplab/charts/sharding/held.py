"""The curve of gathered bytes: how much of the parameters a rank holds in full, and when it holds most."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from overlaplab.analyses import HeldLimit
from overlaplab.charts.parts import FLUSH, Layer, dashed_lines, empty_chart
from overlaplab.charts.theme import LINE, finish, palette
from overlaplab.findings.sharding import gathered_peak, gathered_title, held_limit
from overlaplab.words import byte_unit, size_exact, to_ms

LABELS_WIDTH = 72
"""Pixels left of the plot: the same for the curve and the schedule above it, so that their time axes line up."""
LABELS_LOOK: dict[str, Any] = {"minExtent": LABELS_WIDTH, "maxExtent": LABELS_WIDTH}
_HELD = "Held from a gather's launch (on a GPU, from when its stream comes to it) until the unit is freed."
_IN_PART = " A unit that is resharded to fewer ranks stays held in part until it is gathered again."
_HEADROOM = 1.55  # times the highest point: above it stand the limit's name and, above that, the peak's
_NAME_PX = 8  # pixels from the chart's top to the middle of the peak's name


def gathered(
    curve: pd.DataFrame,
    *,
    window_ns: tuple[int, int] | None = None,
    top_bytes: int = 0,
    limit: HeldLimit | None = None,
    dark: bool = False,
    note: str | None = None,
    line: int = LINE,
) -> alt.LayerChart:
    """The gathered parameters that a rank holds over a step, with the peak named.

    Takes `overlaplab.analyses.gathered_bytes` of one rank and step; shows bytes, or layers where bytes are unknown, or
    nothing where both are.
    `window_ns` is the time axis: that of the schedule drawn above, or by default the curve's own.
    The other axis goes up to `top_bytes` at least. `limit`: how many units the prefetch may hold at once, and their
    bytes at most, which a dashed line shows. `note` is the subtitle's last line, and `line` how many characters fit on
    one.
    """
    if curve.empty:
        return empty_chart("Nothing was gathered", dark)
    tones = palette(dark)
    curve = curve.sort_values("time_ns", kind="stable")
    window = window_ns or (min(0, int(curve["time_ns"].min())), int(curve["time_ns"].max()))
    in_bytes = bool(curve["bytes"].notna().all())
    held = curve["bytes" if in_bytes else "layers"].fillna(0).astype("int64")
    limit = limit if in_bytes else None
    highest = max(int(held.max()), top_bytes if in_bytes else 0, limit.bytes if limit else 0, 1)
    unit, scale = byte_unit(highest) if in_bytes else ("layers", 1.0)
    rows = pd.DataFrame({"begin": to_ms(curve["time_ns"].astype("float64")), "held": held / scale})
    rows = pd.concat([rows, rows.tail(1).assign(begin=to_ms(window[1]))]).sort_values("begin", kind="stable")
    top = highest / scale * _HEADROOM
    x = time_axis(window, line)
    y = alt.Y(
        "held:Q",
        title=f"gathered ({unit})",
        scale=alt.Scale(domain=[0, top], nice=False),
        axis=alt.Axis(tickCount=4, domain=False, ticks=False, labelPadding=4, **LABELS_LOOK),
    )
    steps = Layer(rows).encode(x=x, y=y)
    area: alt.Chart = steps.mark_area(interpolate="step-after", color=tones.gather, opacity=0.25, clip=True)
    edge: alt.Chart = steps.mark_line(interpolate="step-after", color=tones.gather, strokeWidth=1.5, clip=True)
    title = gathered_title(curve)
    nothing_known = not in_bytes and curve["layers"].isna().any()
    layers = [
        area,
        edge,
        *_limit(limit, scale, tones.ink),
        *([] if nothing_known else _peak(curve, held / scale, gathered_peak(curve), window, dark)),
    ]
    in_part = _IN_PART if (curve["resharded_bytes"] > 0).any() else ""
    subtitle = [_HELD + in_part + (f" {held_limit(limit, int(held.max()))}" if limit else ""), note]
    description = f"A step curve of what is gathered over time. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=118, line=line)


def _limit(limit: HeldLimit | None, scale: float, ink: str) -> list[alt.Chart]:
    """A dashed line at the bytes of as many units as the prefetch may hold."""
    if limit is None:
        return []
    place = pd.DataFrame({"held": [limit.bytes / scale]})
    label = f"limit {size_exact(limit.bytes)}"
    rule, name = dashed_lines(place, "y", "held", label, ink, width=1.2, align="right", dx=-4, dy=-10)
    return [rule, name.encode(x=alt.value("width"))]


def _peak(
    curve: pd.DataFrame, held: pd.Series[float], name: str, window: tuple[int, int], dark: bool
) -> list[alt.Chart]:
    """A dot on the curve's first maximum, and its name at the top, which neither curve nor limit reaches."""
    tones = palette(dark)
    place = int(held.argmax())
    at = int(curve["time_ns"].iloc[place])
    row = pd.DataFrame({"begin": [to_ms(max(at, window[0]))], "held": [held.iloc[place]], "word": [name]})
    left = at > window[0] + 0.6 * (window[1] - window[0])  # there is no room to the right
    at_peak = Layer(row).encode(x=alt.X("begin:Q"), y=alt.Y("held:Q"))
    dot: alt.Chart = at_peak.mark_point(size=70, filled=True, opacity=1, color=tones.ink)
    rule: alt.Chart = Layer(row).mark_rule(color=tones.soft, strokeWidth=1)
    rule = rule.encode(x=alt.X("begin:Q"), y=alt.Y("held:Q"), y2=alt.value(_NAME_PX))
    word: alt.Chart = Layer(row).mark_text(
        align="right" if left else "left",
        dx=-5 if left else 5,
        color=tones.ink,
        fontSize=13,
        fontWeight="bold",
    )
    return [rule, dot, word.encode(x=alt.X("begin:Q"), y=alt.value(_NAME_PX), text=alt.Text("word:N"))]


def time_axis(window_ns: tuple[int, int], line: int = LINE) -> alt.X:
    """The time axis in ms of a chart whose rows start at `begin`."""
    scale = alt.Scale(zero=False, nice=False, domain=[to_ms(window_ns[0]), to_ms(window_ns[1])])
    axis = alt.Axis(tickCount=16 * line // LINE, labelOverlap="greedy", labelFlush=FLUSH)
    return alt.X("begin:Q", title="time in step (ms)", scale=scale, axis=axis)
