"""The two charts of a sweep over bucket_cap_mb, shown side by side: the step by cap, and the link by cap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from overlaplab.charts.parts import (
    FLUSH,
    STEP_PARTS,
    Layer,
    bars,
    empty_chart,
    row_axis,
    stack_parts,
    step_fills,
    tooltip,
    words,
)
from overlaplab.charts.theme import colours, finish, palette
from overlaplab.findings.across_runs.sweeps import sweep_title
from overlaplab.words import cap_digits, count, duration, percent, size_exact, to_ms

_, HIDDEN, EXPOSED, _ = STEP_PARTS
_LENGTHS = ["compute_only_ms", "hidden_ms", "exposed_ms", "rest_ms"]
"""The columns of `overlaplab.sweep` with the lengths of `STEP_PARTS`."""

_ROW_PX = 38  # the same in both charts, whose legends have two lines each whatever is drawn: so rows line up
_LINE_CHARACTERS = 66  # characters of a line in half the dashboard's column at 1280 pixels
_SLOTS = 400  # parts of the axis, each hidden or exposed by what most of it was


def caps(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One bar per cap, from `overlaplab.sweep(runs)`: the median step in ms, and its parts, which add up to it."""
    if table.empty:
        return empty_chart("No recording was given", dark)
    tones = palette(dark)
    rows, ends = _steps(table)
    y = _cap_axis(table)
    longest = max(ends["end"], default=1.0)
    scale = alt.Scale(domain=[0, longest * 1.55], nice=False)
    x = alt.X("begin:Q", title="median step time (ms)", scale=scale, axis=alt.Axis(tickCount=8, labelFlush=FLUSH))
    lines = tooltip({"cap": "bucket_cap_mb", "part": "what", "ms:Q": "ms of the step", "share": "of the step"})
    fastest = ends[ends["fastest"]]
    named = fastest.assign(fastest="fastest")
    look: dict[str, Any] = {"align": "left", "dx": 6}
    title = sweep_title(table)
    layers = [
        bars(rows, x, y, colours(step_fills(tones), columns=2), lines, 0.7),
        words(ends[~ends["fastest"]], "end", y, tones.ink, dy=0, fontWeight="normal", **look),
        words(fastest, "end", y, tones.ink, dy=-7, fontWeight="normal", **look),
        words(named, "end", y, tones.ink, column="fastest", dy=8, fontWeight="bold", **look),
    ]
    link = note or ("emulated link" if table["emulated"].any() else None)
    subtitle = ["Medians over every rank's steps of all recordings of a cap.", link]
    description = (
        f"Bars of the median step time by bucket_cap_mb, {count(len(table), 'cap')}, each made of compute,"
        f" hidden and exposed communication. {title}."
    )
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(_ROW_PX), line=_LINE_CHARACTERS)


def links(table: pd.DataFrame, *, dark: bool = False, note: str | None = None) -> alt.LayerChart:
    """One row per cap, from `overlaplab.analyses.sweep_links(runs)`: when its buckets were on the link.

    Where hidden and exposed time alternate faster than the eye can see, a stretch has the colour of the longer one.
    """
    tones = palette(dark)
    low, high = _extent(table)
    rows = pd.DataFrame(
        [row for _, bucket in _buckets(table) for row in _stretches(bucket, (high - low) / _SLOTS)],
        columns=["cap", "what", "weight", "part", "begin", "end", "from", "to", "exposed"],
    )
    y = _cap_axis(table)
    scale = alt.Scale(zero=False, nice=False, domain=[low - (high - low) * 0.02, high + (high - low) * 0.02])
    x = alt.X("begin:Q", title="time in step (ms)", scale=scale, axis=alt.Axis(tickCount=8, labelFlush=FLUSH))
    legend = colours(step_fills(tones)[1:3], columns=1)
    titles = {"cap": "bucket_cap_mb", "what": "bucket", "weight": "size", "from:Q": "on the link from ms"}
    lines = tooltip(titles | {"to:Q": "to ms", "exposed:Q": "exposed ms"})
    other = rows["what"] == "no bucket"
    layers = [
        bars(part, x, y, legend, lines, band) for part, band in ((rows[~other], 0.7), (rows[other], 0.3)) if len(part)
    ]
    title = "When each bucket is on the link" if layers else "No communication was recorded"
    which = f"Rank {table['rank'].iloc[0]}'s" if len(table) and pd.notna(table["rank"].iloc[0]) else "The"
    thin = " Thin: no bucket's." if other.any() else ""
    layers = layers or [Layer(rows).mark_bar()]
    subtitle = [f"{which} step nearest the median, per cap.{thin}", note]
    description = (
        f"A row per bucket_cap_mb, {count(table['bucket_cap_mb'].nunique(), 'cap')}: when its buckets were"
        " on the link in a typical step, hidden by compute or exposed."
    )
    return finish(layers, title, subtitle, description, dark=dark, height=alt.Step(_ROW_PX), line=_LINE_CHARACTERS)


def _cap_axis(table: pd.DataFrame) -> alt.Y:
    return row_axis("cap", [cap_digits(cap) for cap in table["bucket_cap_mb"].drop_duplicates()], "bucket_cap_mb")


def _steps(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The bars' parts, and the words at their ends."""
    rows, ends = [], []
    for row in table.to_dict("records"):
        cap, step = cap_digits(row["bucket_cap_mb"]), float(row["step_ms"])
        parts = stack_parts(float(row[column]) for column in _LENGTHS)
        rows += [(cap, part, took, percent(took, step), begin, end) for part, took, begin, end in parts]
        buckets = "" if pd.isna(row["buckets"]) else f", {count(row['buckets'], 'bucket')}"
        end = parts[-1][-1] if parts else 0.0
        ends.append((cap, end, f"{duration(step)}{buckets}", bool(row["fastest"])))
    return (
        pd.DataFrame(rows, columns=["cap", "part", "ms", "share", "begin", "end"]),
        pd.DataFrame(ends, columns=["cap", "end", "word", "fastest"]).astype({"fastest": "bool"}),
    )


def _extent(table: pd.DataFrame) -> tuple[float, float]:
    """The range of the time axis, in ms."""
    if table.empty:
        return 0.0, 1.0
    low, high = to_ms(float(table["start_ns"].min())), to_ms(float(table["end_ns"].max()))
    return low, max(high, low + 0.001)


def _buckets(table: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
    """The stretches of one bucket at a time; those of no bucket are grouped between gaps."""
    starts, ends = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    gaps = np.r_[True, starts[1:] > ends[:-1]] if len(table) else np.zeros(0, dtype=bool)
    apart = pd.Series(np.cumsum(gaps & table["bucket"].isna().to_numpy()), index=table.index)
    yield from table.groupby(["bucket_cap_mb", "bucket", apart], dropna=False, sort=False)


def _stretches(bucket: pd.DataFrame, slot: float) -> list[tuple[object, ...]]:
    """A bucket's stretches as drawn, in ms: slots of about this width, each hidden or exposed by what most of it was.

    Neighbouring slots of one kind are one stretch; a narrow gap follows the last.
    """
    begin, end = to_ms(float(bucket["start_ns"].min())), to_ms(float(bucket["end_ns"].max()))
    edges = np.linspace(begin, end, max(int((end - begin) / slot), 1) + 1)
    ordered = bucket.sort_values("start_ns", kind="stable")
    hidden = to_ms(np.where(ordered["part"] == "hidden", ordered["end_ns"] - ordered["start_ns"], 0))
    times = to_ms(np.c_[ordered["start_ns"], ordered["end_ns"]].ravel())
    hidden_until = np.c_[np.cumsum(hidden) - hidden, np.cumsum(hidden)].ravel()  # at each of these times
    is_hidden = np.diff(np.interp(edges, times, hidden_until)) * 2 >= np.diff(edges)  # by slot
    borders = np.flatnonzero(np.r_[True, is_hidden[1:] != is_hidden[:-1], True])
    first = bucket.iloc[0]
    exposed = (end - begin) - float(hidden.sum())
    what = "no bucket" if pd.isna(first["bucket"]) else str(first["bucket"])
    weight = "" if pd.isna(first["bytes"]) else size_exact(int(first["bytes"]))
    shown = edges.copy()
    shown[-1] -= min(slot * 0.6, (end - begin) * 0.2)  # a gap before the next bucket
    cap = cap_digits(first["bucket_cap_mb"])
    return [
        (cap, what, weight, HIDDEN if is_hidden[a] else EXPOSED, shown[a], shown[b], begin, end, exposed)
        for a, b in pairwise(borders)
        if shown[b] > shown[a]
    ]
