"""Charts of collectives: how fast they moved their data, how long ranks waited in them, and for whom."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from overlaplab.charts.parts import FLUSH, Layer, bars, dashed_lines, fills_drawn, row_axis, tooltip, with_room, words
from overlaplab.charts.theme import Palette, colours, finish, palette
from overlaplab.columns import columns
from overlaplab.findings.collectives import bandwidth_remarks, bandwidth_title, late_ranks_title, waits_title
from overlaplab.manifest import Link
from overlaplab.words import count, kind_word, ms, rank_word, rate, size_exact, to_ms

MOST_POINTS = 1500
"""If there are more collectives, neighbours share a point: a browser draws this many without effort, and the eye cannot
tell more of them apart."""
MOST_RANKS = 32
_KIND, _BUS, _WAIT, _TRANSFER = columns("each_collective", "kind", "bus_gb_per_s", "wait_ns", "transfer_ns")
LEAST_MS = 0.001  # shorter times are drawn here: a logarithmic axis has no zero
MEASURED, BOUND = "from the transfer", "lower bound, from the duration"
_SHAPES = {MEASURED: "circle", BOUND: "triangle-up"}
# The two parts of a rank's bar.
ALONE = "waited less if this rank were as late as the second-latest"
SHARED = "waited less only if others came earlier as well"
_HEIGHT_PX = 320
_CELLS_PER_DECADE = 40  # collectives in one cell share a point


def bus_bandwidth(
    table: pd.DataFrame, *, link: Link | None = None, dark: bool = False, note: str | None = None
) -> alt.LayerChart:
    """A point per collective: its bus bandwidth against its bytes, both logarithmic, by kind.

    Takes rows of `overlaplab.analyses.each_collective`. A hollow triangle is a lower bound: its transfer is unknown.
    `link` adds a line at the bandwidth of one rank's link.
    """
    tones = palette(dark)
    shown = table[(table["bus_gb_per_s"] > 0).fillna(False) & (table["bytes"] > 0).fillna(False)]
    rows = _points(shown, "bytes", "bus_gb_per_s")
    rows["size"] = [size_exact(round(size)) for size in rows["x"]]
    rows["speed"] = [rate(speed) for speed in rows["y"]]
    rows["how"] = np.where(rows["bound"], BOUND, MEASURED)
    line = None if link is None else link.bandwidth_gbps / 8
    x = _log_axis(alt.X, rows["x"], "bytes of the full tensor", labelExpr=_SIZE)
    y = _log_axis(alt.Y, [*rows["y"], *([] if line is None else [line])], _BUS.header, labelExpr=_RATE)
    titles = {"part": _KIND.header, "size": "", "speed": _BUS.header, "how": "computed", "who": "collectives"}
    layers = [_layer(rows, x, y, tones, tooltip(titles), bounds=bool(rows["bound"].any()))]
    if link is not None:
        name = f"{'emulated link' if link.emulated else 'link'} {link.bandwidth_gbps:g} Gbit/s = {rate(line or 0)}"
        layers += dashed_lines(pd.DataFrame({"y": [line]}), "y", "y", name, tones.ink, align="left", dx=6, dy=-8)
    title = bandwidth_title(shown, line)
    reading = "Bus bandwidth: bytes ÷ transfer × what a ring sends of them. Small collectives are bound by latency."
    subtitle = [reading if len(shown) else None, *bandwidth_remarks(table, shown), note]
    description = f"{count(len(shown), 'collective')} as points, bus bandwidth against bytes. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=_HEIGHT_PX)


def waits(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """A point per collective: the longest wait of a rank against the transfer, by kind.

    Takes rows of `overlaplab.analyses.each_collective`; those whose wait is unknown are left out.
    """
    tones = palette(dark)
    measured = table[table["wait_ns"].notna() & table["transfer_ns"].notna()]
    times = measured[["transfer_ns", "wait_ns"]].astype("float64").apply(to_ms).clip(lower=LEAST_MS)
    rows = _points(measured.assign(**times), "transfer_ns", "wait_ns")
    x = _log_axis(alt.X, rows["x"], "transfer, after the last rank arrived (ms)", format="~g")
    y = _log_axis(alt.Y, rows["y"], "longest wait of a rank (ms)", format="~g")
    lines = tooltip({"part": _KIND.header, "y:Q": _WAIT.title, "x:Q": _TRANSFER.title, "who": "collectives"})
    layers = [*_diagonal(rows, tones), _layer(rows, x, y, tones, lines, bounds=False)]
    title = waits_title(table, measured)
    reading = f"A wait ends when the last rank arrives. What took less than {LEAST_MS:g} ms stands at {LEAST_MS:g} ms."
    subtitle = [reading if len(measured) else None, note]
    description = f"{count(len(measured), 'collective')} as points, wait against transfer. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=_HEIGHT_PX)


def late_ranks(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """A bar per rank: how long the others waited for it, with how often it came last and how late.

    Takes rows of `overlaplab.analyses.stragglers`; the 32 ranks with the highest cost are drawn.
    """
    tones = palette(dark)
    drawn = table.head(MOST_RANKS)
    ranks = [rank_word(rank) for rank in drawn["rank"]]
    rows = [
        (rank, part, to_ms(begin), to_ms(end), to_ms(end - begin))
        for rank, alone, cost in zip(ranks, drawn["alone_ns"].astype(int), drawn["cost_ns"].astype(int), strict=True)
        for part, begin, end in ((ALONE, 0, alone), (SHARED, alone, cost))
        if end > begin
    ]
    table_of_bars = pd.DataFrame(rows, columns=["rank", "part", "begin", "end", "ms"])
    costs = to_ms(drawn["cost_ns"].astype("float64"))
    ends = pd.DataFrame({"rank": ranks, "end": costs, "text": [_late_word(row) for row in drawn.to_dict("records")]})
    y = row_axis("rank", ranks, "rank")
    scale = with_room(max(ends["end"], default=0.0), ends["text"])
    axis = alt.Axis(title="waited for it, all other ranks together (ms)", format=",~f", tickCount=10, labelFlush=FLUSH)
    x = alt.X("begin:Q", scale=scale, axis=axis)
    fills = colours(fills_drawn([(ALONE, tones.waiting), (SHARED, tones.starting)], table_of_bars["part"]))
    lines = tooltip({"rank": "", "part": "what", "ms:Q": "ms"})
    layers = [
        bars(table_of_bars, x, y, fills, lines, 0.7),
        words(ends, alt.X("end:Q", scale=scale), y, tones.ink, column="text", align="left", dx=6),
    ]
    title = late_ranks_title(table)
    reading = []
    if table["last"].any():
        reading.append(
            "Counted where a rank came last by more than the clocks' error."
            " Lateness counts from the other ranks' median arrival."
        )
        if len(table) > MOST_RANKS:
            reading.append(f"The {MOST_RANKS} ranks that cost most, of {len(table)}.")
    subtitle = [*reading, note]
    description = f"A bar for each of {count(len(drawn), 'rank')}: how long others waited for it. {title}."
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(28 if len(drawn) <= 16 else 20))


def _points(table: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """`x`, `y`, `part` (the kind), `bound`, `who` (which collectives) and `number` (how many share the point)."""
    rows = pd.DataFrame(
        {
            "x": table[x].astype("float64"),
            "y": table[y].astype("float64"),
            "part": [kind_word(kind) for kind in table["kind"]],
            "bound": table["bus_is_lower_bound"].astype(bool),
            "index": table["index"],
        }
    )
    if len(rows) <= MOST_POINTS:
        return rows.assign(number=1, who=[f"number {index}" for index in rows["index"]]).drop(columns="index")
    cells = {f"{name}_cell": np.round(np.log10(rows[name]) * _CELLS_PER_DECADE) for name in ("x", "y")}
    by = rows.assign(**cells).groupby([*cells, "part", "bound"], sort=False)
    points = by.agg(x=("x", "median"), y=("y", "median"), number=("x", "size"), first=("index", "min")).reset_index()
    points["who"] = [
        f"number {first}" if number == 1 else f"{number} near each other, the first is number {first}"
        for number, first in zip(points["number"], points["first"], strict=True)
    ]
    return points[["x", "y", "part", "bound", "number", "who"]]


def _layer(
    rows: pd.DataFrame, x: alt.X, y: alt.Y, tones: Palette, lines: list[alt.Tooltip], *, bounds: bool
) -> alt.Chart:
    """The points; where some are lower bounds, these are hollow triangles."""
    kinds = [(kind, getattr(tones, _TONES.get(kind, "other"))) for kind in dict.fromkeys(rows["part"])]
    encoding: dict[str, Any] = {"x": x, "y": y, "tooltip": lines, "color": colours(kinds, symbolType="circle")}
    if bounds:
        shapes = {how: shape for how, shape in _SHAPES.items() if how in set(rows["how"])}
        scale = alt.Scale(domain=list(shapes), range=list(shapes.values()))
        legend = alt.Legend(orient="bottom", labelLimit=0, title=None)  # beside the other it would be cut
        encoding["shape"] = alt.Shape("how:N", scale=scale, legend=legend)
    points: alt.Chart = Layer(rows).mark_point(filled=not bounds, size=64, opacity=0.7, strokeWidth=2)
    return points.encode(**encoding)


_TONES = {"all-reduce": "reduce", "all-gather": "gather", "reduce-scatter": "scatter", "all-to-all": "to_all"}
"""The colour of a kind in the palette, the same in every run; rare kinds share one."""


def _diagonal(rows: pd.DataFrame, tones: Palette) -> list[alt.Chart]:
    """The line at which wait equals transfer, where both axes show it."""
    (x_low, x_high), (y_low, y_high) = log_domain(rows["x"]), log_domain(rows["y"])
    low, high = max(x_low, y_low), min(x_high, y_high)
    if high < 2 * low:  # no more than a corner
        return []
    middle = (low * high) ** 0.5
    line = Layer(pd.DataFrame({"x": [low, high], "y": [low, high]}))
    line = line.mark_line(color=tones.ink, strokeDash=[5, 4], strokeWidth=1.5)
    name = Layer(pd.DataFrame({"x": [middle], "y": [middle]}))
    name = name.mark_text(color=tones.ink, align="right", dx=-8, dy=-12, fontSize=12)
    return [line.encode(x="x:Q", y="y:Q"), name.encode(x="x:Q", y="y:Q", text=alt.value("wait = transfer"))]


def _late_word(row: dict[Any, Any]) -> str:
    if not row["last"]:
        return f"never last in {row['collectives']}"
    return f"{ms(row['cost_ns'])}; last in {row['last']} of {row['collectives']}"


_SIZE = (
    "datum.value >= 1e9 ? format(datum.value / 1e9, '~g') + ' GB' : datum.value >= 1e6 ?"
    " format(datum.value / 1e6, '~g') + ' MB' : datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + ' kB' :"
    " format(datum.value, '~g') + ' B'"
)
"""An axis label of bytes, as Vega computes it, in the decimal unit that suits it."""
_RATE = f"({_SIZE.replace('datum.value', '(datum.value * 1e9)')}) + '/s'"
"""The same of GB/s."""


def log_domain(values: Iterable[float]) -> tuple[float, float]:
    """The range of the positive values with some room on both sides; 1 to 10 if there are none."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    if not positive:
        return 1.0, 10.0
    low, high = min(positive), max(positive)
    room = max((high / low) ** 0.05, 1.25 if high / low > 2 else 2.0)
    return low / room, high * room


def log_ticks(domain: tuple[float, float]) -> list[float]:
    """The places of ticks: 1, 2 and 5 of each decade; on long axes only the powers of ten, or every few of them."""
    low, high = (math.log10(bound) for bound in domain)
    decades = high - low
    steps = (1, 2, 5) if decades <= 3.5 else (1,)
    every = max(1, round(decades / 9))
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [digit * 10.0**power for power in powers if power % every == 0 for digit in steps]
    return [tick for tick in ticks if domain[0] <= tick <= domain[1]]


def _log_axis(channel: type[alt.X] | type[alt.Y], values: Iterable[float], title: str, **labels: Any) -> Any:
    """The `x` or `y` of the points, on a logarithmic scale over exactly `log_domain` of these values."""
    domain = log_domain(values)
    axis = alt.Axis(title=title, values=log_ticks(domain), labelOverlap=True, **labels)
    scale = alt.Scale(type="log", domain=list(domain), nice=False, clamp=True)
    return channel(f"{channel.__name__.lower()}:Q", scale=scale, axis=axis)
