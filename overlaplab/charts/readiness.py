"""The buckets chart: when each bucket's gradients arrived, what it waited for, and how much of it was exposed."""

from __future__ import annotations

from typing import Any, TypeAlias

import altair as alt
import numpy as np
import pandas as pd

from overlaplab.causes import Cause
from overlaplab.charts.parts import FLUSH, WHEN, Layer, bars, dashed_lines, known_ms, row_axis, tooltip, words
from overlaplab.charts.theme import Palette, colours, finish, labels_width, palette
from overlaplab.findings.buckets import best_buckets_remark, buckets_remarks, buckets_title
from overlaplab.intervals import EMPTY, Intervals, clip, subtract, total, union
from overlaplab.words import count, gradient_word, last_gradient, shorten, size_exact, to_ms

ARRIVING = "gradients arriving"
WAITING = "ready, waits for its launch"
QUEUED = "launched, link busy"
STARTING = "launched, not started"
HIDDEN = "communication hidden by compute"
EXPOSED = "communication exposed"

UNHIDEABLE = Cause.UNHIDEABLE.label

_PARTS = {
    ARRIVING: "idle",
    WAITING: "held",
    QUEUED: "queued",
    STARTING: "starting",
    HIDDEN: "hidden",
    EXPOSED: "exposed",
}
"""What is drawn where causes are unknown; each with its colour of the palette."""
_SHARED = {
    "held": "ready, not launched yet",
    "queued": f"{QUEUED}: before it starts, or exposed",
    "starting": "launched, not started, or unknown",
    "gap": "host paused, long or short",
    "waiting": Cause.STRAGGLER.label,
    "bound": UNHIDEABLE,
    "exposed": EXPOSED,
}
"""What the legend calls a colour of the palette that several of the parts drawn have."""
_NO_CAUSES = pd.DataFrame({"row": pd.array([], dtype="Int64"), "cause": [], "label": [], "start_ns": [], "end_ns": []})
_LEAST_MS = 1e-9  # shorter is rounding
_NUMBER_SHARE = 0.012  # share of the axis: waits at least this wide bear the number of the rank
_SEEN_SHARE = 0.0015  # share of the axis: what is shorter, about a pixel, is not in the legend
_AT_THE_END = "Exposed time is drawn at a bucket's end."
_FULL = 0.7  # share of a row's height that a transfer takes
_FOREIGN = 0.4  # the same where its exposed time is counted in another collective
_HEIGHTS = {ARRIVING: 0.2, WAITING: 0.35, QUEUED: 0.35, STARTING: 0.35}
"""Shares of a row's height that parts before the transfer take."""
_MARK_COLUMNS = ["bucket", "begin", "parameter"]
_Band: TypeAlias = tuple[str, str, float, float, float, float]
"""A bar: bucket, part, begin, end and length in ms, and its share of a row's height."""


def buckets(
    table: pd.DataFrame,
    *,
    causes: pd.DataFrame | None = None,
    best: pd.DataFrame | None = None,
    dark: bool = False,
    note: str | None = None,
) -> alt.LayerChart:
    """One row per launch of a bucket, from `overlaplab.buckets(run)` for one rank and step; time from the step's start.

    `causes` (`findings.bucket_causes` of the same rank and step) tells when a bucket was exposed, and why; without it
    only the sum is known, which is drawn at the end of its communication. `best` (`simulate.best_buckets` of these)
    adds a row of what the best buckets of all would do.
    """
    tones = palette(dark)
    causes = _NO_CAUSES if causes is None else causes
    ordered = table.sort_values("launch_ns", kind="stable")
    launches = zip(ordered.to_dict("records"), ordered.index, _link_free(ordered), _names(ordered), strict=True)
    rows = [_row(bucket, name, link_free_ms, causes, row_index) for bucket, row_index, link_free_ms, name in launches]
    rows += _best_row(best)
    labels = [row["label"] for row in rows]
    y = row_axis("bucket", labels, None, scale=alt.Scale(domain=labels), labelOverlap=True)
    step = 20 if len(rows) <= 40 else 14
    bands = [band for row in rows for band in row["bands"]]
    domain = _domain(table)
    layers = _bars(bands, y, domain, _fills(causes, bands, tones))
    layers += _numbers(causes, bands, domain, y, tones)
    layers += [_ticks(rows, y, tones.soft, step), _triangles(rows, y, tones.ink, step)]
    layers += _backward_ends(table, tones.ink)
    title = buckets_title(table)
    reading = (
        f"{count(len(table), 'bucket')} in launch order. Small ticks: gradients arriving. Triangle: bucket ready."
        f" {'Exposed time has the colour of its cause.' if len(causes) else _AT_THE_END}{_thin(bands)}"
    )
    subtitle = [reading, *buckets_remarks(table), best_buckets_remark(best), note]
    description = (
        f"{count(len(table), 'bucket')} in launch order on a time axis: gradients arriving, ready, waiting,"
        f" launched, communication hidden and exposed. {title}."
    )
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(step))


def _thin(bands: list[_Band]) -> str:
    """What thin bars mean; empty where there are none."""
    foreign = any(height == _FOREIGN for *_, height in bands)
    return " Thin: counted in another collective that was sent at the same time." if foreign else ""


def _bars(bands: list[_Band], y: alt.Y, domain: list[float], fills: dict[str, tuple[str, str]]) -> list[alt.Chart]:
    """The bars: thin while gradients arrive and wait, thick where they are sent."""
    table = pd.DataFrame(bands, columns=["bucket", "what", "begin", "end", "ms", "height"])
    table["part"] = [fills[what][0] for what in table["what"]]
    scale = alt.Scale(zero=False, nice=False, domain=domain)
    x = alt.X("begin:Q", title="time in step (ms)", scale=scale, axis=alt.Axis(tickCount=16, labelFlush=FLUSH))
    lines = tooltip({"bucket": "", "what": "", "ms:Q": "took ms"} | WHEN)
    pairs = list(dict.fromkeys(fills.values()))
    took_ms = table.groupby("part")["ms"].sum()
    seen = {*took_ms[took_ms >= _SEEN_SHARE * (domain[1] - domain[0])].index}
    named = [word for word, _ in pairs if word in seen]
    legend = colours(pairs, left=labels_width(table["bucket"]), values=named, columns=3, offset=22)
    heights = dict.fromkeys((*_HEIGHTS.values(), *([_FOREIGN] if _thin(bands) else []), _FULL))
    return [
        bars(table[table["height"] == height].drop(columns="height"), x, y, legend, lines, height) for height in heights
    ]


def _fills(causes: pd.DataFrame, bands: list[_Band], tones: Palette) -> dict[str, tuple[str, str]]:
    """By part that is drawn: the legend's word, the same for all parts of one colour, and the colour."""
    # In the legend's order; the best buckets' row has what is unhideable without a cause.
    coloured = {label: Cause(cause).colour for label, cause in zip(causes["label"], causes["cause"], strict=True)}
    names = _PARTS | coloured | {UNHIDEABLE: Cause.UNHIDEABLE.colour}
    drawn = {part for _, part, *_ in bands}
    by_colour: dict[str, list[str]] = {}
    for part, name in names.items():
        if part in drawn:
            by_colour.setdefault(name, []).append(part)
    return {
        part: (parts[0] if len(parts) == 1 else _SHARED.get(name, ", or ".join(parts)), getattr(tones, name))
        for name, parts in by_colour.items()
        for part in parts
    }


def _numbers(
    causes: pd.DataFrame, bands: list[_Band], domain: list[float], y: alt.Y, tones: Palette
) -> list[alt.Chart]:
    """On waits for a rank its number, with which their labels end, where there is room: all have one colour."""
    labels = causes.loc[causes["cause"] == Cause.STRAGGLER, "label"].unique()
    numbers = {label: label.rpartition(" ")[2] for label in labels if label != Cause.STRAGGLER.label}
    room = _NUMBER_SHARE * (domain[1] - domain[0])
    rows = [
        (bucket, (begin + end) / 2, numbers[part])
        for bucket, part, begin, end, took, _ in bands
        if part in numbers and took >= room
    ]
    columns = ["bucket", "begin", "word"]
    return [words(pd.DataFrame(rows, columns=columns), "begin", y, tones.on_light)] if rows else []


def _names(table: pd.DataFrame) -> list[str]:
    """The number of each row's bucket; of a bucket that is launched several times, which launch it is."""
    nth = table.groupby("index").cumcount() + 1
    pairs = zip(table["index"], nth, strict=True)
    return [f"{index}" if number == 1 else f"{index}, launch {number}" for index, number in pairs]


def _link_free(ordered: pd.DataFrame) -> list[float]:
    """For each bucket when the link has finished all earlier ones, in ms; minus infinity for the first."""
    ends = to_ms(ordered["end_ns"].astype("float64"))
    return [float(end) for end in ends.cummax().ffill().shift(fill_value=-np.inf).fillna(-np.inf)]


def _sent_parts(bucket: dict[Any, Any], causes: pd.DataFrame, row_index: Any) -> list[tuple[str, float, float, float]]:
    """The parts of a bucket's transfer: name, begin and end in ms, and share of the row's height.

    Exposed time with a cause is drawn when it was, that without one at the end.
    """
    begun, ended = int(bucket["start_ns"]), int(bucket["end_ns"])
    inside = causes[(causes["start_ns"] < ended) & (causes["end_ns"] > begun)]
    counted = (inside["row"] == row_index).fillna(False).to_numpy(dtype=bool)
    spans = np.clip(inside[["start_ns", "end_ns"]].to_numpy(dtype="int64"), begun, ended)
    with_cause = union(*spans.T)
    exposed_ns = 0 if pd.isna(bucket["exposed_ns"]) else int(bucket["exposed_ns"])
    others = subtract(union([begun], [ended]), with_cause)
    at_end = _last(others, exposed_ns - total(with_cause))
    parts = [
        (str(label), to_ms(start), to_ms(end), _FULL if is_counted_here else _FOREIGN)
        for label, (start, end), is_counted_here in zip(inside["label"], spans.tolist(), counted, strict=True)
    ]
    for part, intervals in ((EXPOSED, at_end), (HIDDEN, subtract(others, at_end))):
        parts += [(part, to_ms(start), to_ms(end), _FULL) for start, end in intervals.tolist()]
    return parts


def _last(intervals: Intervals, length_ns: int) -> Intervals:
    """The last `length_ns` of these intervals."""
    for start, end in reversed(intervals.tolist()):
        if end - start >= length_ns:
            return clip(intervals, end - length_ns, int(intervals[-1, 1])) if length_ns > 0 else EMPTY
        length_ns -= end - start
    return intervals


def _row(
    bucket: dict[Any, Any], number: str, link_free_ms: float, causes: pd.DataFrame, row_index: Any
) -> dict[str, Any]:
    """What is drawn in a bucket's row, times in ms; `link_free_ms` is when the link has finished the earlier ones,
    `row_index` the bucket's `row` in `findings.bucket_causes`.
    """
    times = {key: known_ms(bucket[key]) for key in ("ready_ns", "launch_ns", "start_ns", "end_ns")}
    gradients = zip(bucket["parameters"], bucket["arrivals"], bucket["shapes"], strict=True)
    names = [gradient_word(*gradient) for gradient in gradients]
    what = shorten(names[0], 28) if len(names) == 1 else f"{len(names) or 'unknown'} gradients"
    weight = "" if pd.isna(bucket["bytes"]) else f"{size_exact(int(bucket['bytes']))}, "
    label = f"{number}: {weight}{what}"
    arrived = zip(names, map(known_ms, bucket["gradient_ready_ns"]), strict=True)
    arrivals = [(label, time, name) for name, time in arrived if time is not None]
    first = min((time for _, time, _ in arrivals), default=None)
    launched_ms = max((time for time in (times["ready_ns"], times["launch_ns"]) if time is not None), default=None)
    begun = times["start_ns"]
    free = begun if begun is None or launched_ms is None else min(max(launched_ms, link_free_ms), begun)
    spans: list[tuple[str, float | None, float | None]] = [
        (ARRIVING, first, times["ready_ns"]),
        (WAITING, None if bucket.get("source") == "ddp" else times["ready_ns"], launched_ms),
        (QUEUED, launched_ms, free),
        (STARTING, free, begun),
    ]
    parts = [(part, begin, end, _HEIGHTS[part]) for part, begin, end in spans if begin is not None and end is not None]
    if begun is not None and times["end_ns"] is not None:
        parts += _sent_parts(bucket, causes, row_index)
    bands: list[_Band] = [
        (label, part, begin, end, end - begin, height) for part, begin, end, height in parts if end - begin > _LEAST_MS
    ]
    is_ready = times["ready_ns"] is not None
    ready = (label, times["ready_ns"], last_gradient(bucket) or "unknown") if is_ready else None
    return {"label": label, "bands": bands, "ticks": arrivals, "ready": ready}


def _best_row(best: pd.DataFrame | None) -> list[dict[str, Any]]:
    """The row of the best buckets, one after the other; none where they are unknown."""
    if best is None or best.empty:
        return []
    label = f"best: {count(len(best), 'bucket')}"
    bands: list[_Band] = []
    for row in best.to_dict("records"):
        begin, end, last = (to_ms(int(row[name])) for name in ("start_ns", "end_ns", "last_ns"))
        spans = ((HIDDEN, begin, min(end, last)), (UNHIDEABLE, max(begin, last), end))
        bands += [(label, part, start, stop, stop - start, _FULL) for part, start, stop in spans if stop > start]
    ticks = [(label, to_ms(int(ready)), f"bucket {index}") for index, ready in enumerate(best["ready_ns"])]
    return [{"label": label, "bands": bands, "ticks": ticks, "ready": None}]


def _ticks(rows: list[dict[str, Any]], y: alt.Y, tone: str, step: int) -> alt.Chart:
    """A tick for each gradient."""
    ticks = pd.DataFrame([tick for row in rows for tick in row["ticks"]], columns=_MARK_COLUMNS)
    lines = tooltip({"parameter": "gradient of", "begin:Q": "arrived at ms", "bucket": ""})
    drawn: alt.Chart = Layer(ticks).mark_tick(color=tone, thickness=1, size=step * 0.5, orient="vertical")
    return drawn.encode(x=alt.X("begin:Q"), y=y, tooltip=lines)


def _triangles(rows: list[dict[str, Any]], y: alt.Y, tone: str, step: int) -> alt.Chart:
    """A triangle, standing on the row, where the bucket is ready."""
    ready = pd.DataFrame([row["ready"] for row in rows if row["ready"]], columns=_MARK_COLUMNS)
    lines = tooltip({"bucket": "", "begin:Q": "ready at ms", "parameter": "last gradient of"})
    drawn: alt.Chart = Layer(ready).mark_point(
        shape="triangle-down", color=tone, filled=True, size=48, opacity=1, yOffset=-step * 0.36
    )
    return drawn.encode(x=alt.X("begin:Q"), y=y, tooltip=lines)


def _backward_ends(table: pd.DataFrame, tone: str) -> list[alt.Chart]:
    """A dashed line where each backward pass ends, and its name above the rows."""
    ends = pd.DataFrame({"begin": [to_ms(float(end)) for end in table["backward_end_ns"].drop_duplicates().dropna()]})
    look: dict[str, Any] = {"align": "right", "dx": -4, "dy": -7}
    return dashed_lines(ends, "x", "begin", "backward ends", tone, **look) if len(ends) else []


def _domain(table: pd.DataFrame) -> list[float]:
    """From the first gradient to the last end, with a little room on both sides, in ms."""
    times = [time for times in table["gradient_ready_ns"] for time in times]
    times += [time for column in ("ready_ns", "start_ns", "end_ns", "backward_end_ns") for time in table[column]]
    values = [value for value in map(known_ms, times) if value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = max(high - low, 0.001) * 0.015
    return [low - room, high + room]
