"""The charts of a sweep over bucket_cap_mb, made to stand side by side: the step by cap, and the link by cap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from overlaplab.charts.theme import colours, finish, palette
from overlaplab.findings import sweep_title
from overlaplab.words import count, duration, percent, size, to_ms

__all__ = ["caps", "links"]

COMPUTE = "compute only"
HIDDEN = "communication hidden by compute"
EXPOSED = "communication exposed"
REST = "neither (idle, memory)"

_ROW = 38  # pixels; both charts have the same, and as many lines above, so that rows stand side by side
_LINE = 66  # characters of a line in half the dashboard's column at 1280 pixels
_SLOTS = 400  # stretches of hidden and exposed time are told apart if they are wider than this part of the axis


def caps(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per cap out of `overlaplab.sweep(runs)`: the median step in ms, and its parts, which add up to it."""
    tones = palette(dark)
    rows, ends = _steps(table)
    fills = [(COMPUTE, tones.compute), (HIDDEN, tones.gather), (EXPOSED, tones.exposed), (REST, tones.idle)]
    y = _by_cap(table)
    longest = max(ends["end"], default=1.0)
    scale = alt.Scale(domain=[0, longest * 1.55], nice=False)
    bars: alt.Chart = (
        alt.Chart(rows)
        .mark_bar(height={"band": 0.7}, opacity=1)
        .encode(
            x=alt.X("begin:Q", title="median step time (ms)", scale=scale, axis=alt.Axis(tickCount=8)),
            x2=alt.X2("end:Q"),
            y=y,
            color=colours(fills, columns=2),
            tooltip=[
                alt.Tooltip("cap:N", title="bucket_cap_mb"),
                alt.Tooltip("part:N", title="what"),
                alt.Tooltip("ms:Q", title="ms of the step", format=",.3f"),
                alt.Tooltip("share:N", title="of the step"),
            ],
        )
    )
    words = [
        _words(ends[~ends["fastest"]], "word", y, tones.ink, 0),
        _words(ends[ends["fastest"]], "word", y, tones.ink, -7),
        _words(ends[ends["fastest"]].assign(fastest="fastest"), "fastest", y, tones.ink, 8, "bold"),
    ]
    title = sweep_title(table)
    return finish(
        [bars, *words],
        title=title,
        subtitle=["Medians over every rank's steps of all recordings of a cap.", note or _link(table)],
        description=f"Bars of the median step time by bucket_cap_mb, {count(len(table), 'cap')}, each made of compute,"
        f" hidden and exposed communication. {title}.",
        dark=dark,
        height=alt.Step(_ROW),
        line=_LINE,
    )


def links(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One row per cap out of `overlaplab.analyses.sweep_links(runs)`: when its buckets were on the link.

    Where hidden and exposed time alternate faster than the eye can see, a stretch shows what most of it was.
    """
    tones = palette(dark)
    low, high = _extent(table)
    rows = pd.DataFrame(
        [row for _, bucket in _buckets(table) for row in _stretches(bucket, (high - low) / _SLOTS)],
        columns=["cap", "what", "weight", "part", "begin", "end", "from", "to", "exposed"],
    )
    y = _by_cap(table)
    scale = alt.Scale(zero=False, nice=False, domain=[low - (high - low) * 0.02, high + (high - low) * 0.02])
    other = rows["what"] == "no bucket"
    layers: list[alt.Chart] = [
        alt.Chart(part)
        .mark_bar(height={"band": band}, opacity=1)
        .encode(
            x=alt.X("begin:Q", title="time in step (ms)", scale=scale, axis=alt.Axis(tickCount=8)),
            x2=alt.X2("end:Q"),
            y=y,
            color=colours([(HIDDEN, tones.gather), (EXPOSED, tones.exposed)], columns=1),
            tooltip=[
                alt.Tooltip("cap:N", title="bucket_cap_mb"),
                alt.Tooltip("what:N", title="bucket"),
                alt.Tooltip("weight:N", title="size"),
                alt.Tooltip("from:Q", title="on the link from ms", format=",.3f"),
                alt.Tooltip("to:Q", title="to ms", format=",.3f"),
                alt.Tooltip("exposed:Q", title="exposed ms", format=",.3f"),
            ],
        )
        for part, band in ((rows[~other], 0.7), (rows[other], 0.3))
        if len(part)
    ]
    title = "When each bucket is on the link"
    which = f"Rank {table['rank'].iloc[0]}'s" if len(table) and pd.notna(table["rank"].iloc[0]) else "The"
    thin = " Thin: no bucket's." if other.any() else ""
    return finish(
        layers or [alt.Chart(rows).mark_bar()],
        title=title if layers else "No communication was recorded",
        subtitle=[f"{which} step nearest the median, per cap.{thin}", note],
        description=f"A row per bucket_cap_mb, {count(table['bucket_cap_mb'].nunique(), 'cap')}: when its buckets were"
        " on the link in a typical step, hidden by compute or exposed.",
        dark=dark,
        height=alt.Step(_ROW),
        line=_LINE,
    )


def _by_cap(table: pd.DataFrame) -> alt.Y:
    labels = [f"{cap:g}" for cap in table["bucket_cap_mb"].drop_duplicates()]
    axis = alt.Axis(domain=False, ticks=False, labelOverlap=False)
    return alt.Y("cap:N", sort=labels, title="bucket_cap_mb", axis=axis)


def _steps(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The bars' parts, and the words at their ends."""
    rows, ends = [], []
    for row in table.to_dict("records"):
        cap, done = f"{row['bucket_cap_mb']:g}", 0.0
        parts = ((COMPUTE, "compute_only_ms"), (HIDDEN, "hidden_ms"), (EXPOSED, "exposed_ms"), (REST, "rest_ms"))
        for part, column in parts:
            took = float(row[column])
            if took > 0:
                rows.append((cap, part, took, percent(took, float(row["step_ms"])), done, done + took))
                done += took
        buckets = "" if pd.isna(row["buckets"]) else f", {count(row['buckets'], 'bucket')}"
        ends.append((cap, done, f"{duration(row['step_ms'])}{buckets}", bool(row["fastest"])))
    return (
        pd.DataFrame(rows, columns=["cap", "part", "ms", "share", "begin", "end"]),
        pd.DataFrame(ends, columns=["cap", "end", "word", "fastest"]).astype({"fastest": "bool"}),
    )


def _words(
    ends: pd.DataFrame, column: str, y: alt.Y, tone: str, down: int, weight: Literal["normal", "bold"] = "normal"
) -> alt.Chart:
    """Words at the bars' ends."""
    chart: alt.Chart = (
        alt.Chart(ends)
        .mark_text(align="left", dx=6, dy=down, color=tone, fontSize=12, fontWeight=weight)
        .encode(x=alt.X("end:Q"), y=y, text=alt.Text(f"{column}:N"))
    )
    return chart


def _link(table: pd.DataFrame) -> str | None:
    return "emulated link" if table["emulated"].any() else None


def _extent(table: pd.DataFrame) -> tuple[float, float]:
    """The axis, in ms."""
    if table.empty:
        return 0.0, 1.0
    low, high = to_ms(float(table["start_ns"].min())), to_ms(float(table["end_ns"].max()))
    return low, max(high, low + 0.001)


def _buckets(table: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
    """A bucket's stretches at a time; what is no bucket's is a group of its own at each gap."""
    starts, ends = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    gaps = np.r_[True, starts[1:] > ends[:-1]] if len(table) else np.zeros(0, dtype=bool)
    apart = pd.Series(np.cumsum(gaps & table["bucket"].isna().to_numpy()), index=table.index)
    yield from table.groupby(["bucket_cap_mb", "bucket", apart], dropna=False, sort=False)


def _stretches(bucket: pd.DataFrame, slot: float) -> list[tuple[object, ...]]:
    """What is drawn of a bucket, in ms: in slots of about this width, each in the colour of most of it; then a narrow
    gap.
    """
    begin, end = to_ms(float(bucket["start_ns"].min())), to_ms(float(bucket["end_ns"].max()))
    edges = np.linspace(begin, end, max(int((end - begin) / slot), 1) + 1)
    own = bucket.sort_values("start_ns", kind="stable")
    took = to_ms(np.where(own["part"] == "hidden", own["end_ns"] - own["start_ns"], 0))
    times = to_ms(np.c_[own["start_ns"], own["end_ns"]].ravel())
    done = np.c_[np.cumsum(took) - took, np.cumsum(took)].ravel()
    mostly = np.diff(np.interp(edges, times, done)) * 2 >= np.diff(edges)
    borders = np.flatnonzero(np.r_[True, mostly[1:] != mostly[:-1], True])
    first = bucket.iloc[0]
    exposed = (end - begin) - float(took.sum())
    what = "no bucket" if pd.isna(first["bucket"]) else str(first["bucket"])
    weight = "" if pd.isna(first["bytes"]) else size(int(first["bytes"]))
    shown = edges.copy()
    shown[-1] -= min(slot * 0.6, (end - begin) * 0.2)
    cap = f"{first['bucket_cap_mb']:g}"
    return [
        (cap, what, weight, HIDDEN if mostly[a] else EXPOSED, shown[a], shown[b], begin, end, exposed)
        for a, b in pairwise(borders)
        if shown[b] > shown[a]
    ]
