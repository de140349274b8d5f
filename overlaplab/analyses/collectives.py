"""Collectives across ranks: who arrived last, who waited, how fast the data moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.axes import axis_of
from overlaplab.costs.link import ring_factor
from overlaplab.events import Run, Trace, activity, step_windows
from overlaplab.evidence.clocks import clocks, corrections
from overlaplab.evidence.pairing import ROOTED
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.selection import selected_traces, selected_windows
from overlaplab.evidence.waits import numbered
from overlaplab.intervals import subtract, within
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule

_TIMES = ("launch_ns", "arrived_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns", "transfer_ns", "skew_ns")
_NUMBERS = ("step", "group_size", "bytes", *_TIMES, "last_rank")
COLUMNS = (
    *("index", "rank", "step", "group", "group_description", "axis", "group_size", "kind", "dtype", "bytes"),
    *("launch_ns", "arrived_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns"),
    *(
        "transfer_ns",
        "bus_gb_per_s",
        "bus_is_lower_bound",
        "skew_ns",
        "within_clock_error",
        "last_rank",
        "doubtful",
        "unmatched",
    ),
)
"""The columns of `collectives`, in order."""


def collectives(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per collective and rank, in order of the collective's first start, then rank.

    Columns: `index` (the collective's, whatever the selection), `rank`, `step` (in which this rank launched it, null
    outside all steps), `group`, `group_description`, `axis` (of the mesh, by that description: see `axes`),
    `group_size`, `kind`, `dtype` (all known from any of its ranks, else null), `bytes` (the larger of input and output,
    of the rank with most).

    This rank's times, in ns from the run's start by the first rank's clock: `launch_ns` (host time), `start_ns`,
    `end_ns`, `arrived_ns` (its start; on an emulated link when it was launched and the link free, which is a little
    earlier); `wait_ns` (from its start until the last rank arrived), `exposed_ns` (its time during which this rank
    computed nothing).

    The collective's own figures, the same on all its rows: `transfer_ns` (from the last arrival to that rank's end),
    `bus_gb_per_s` (decimal: bytes ÷ transfer × 2(n-1)/n for an all-reduce, (n-1)/n for all-gather, reduce-scatter and
    all-to-all, else 1; null for a group of one or of unknown size), `bus_is_lower_bound` (bool: computed from the
    duration, since transfer is unknown; the shortest of the ranks' durations, or the longest where one rank gives or
    takes all), `skew_ns` (the spread of the known arrivals), `within_clock_error` (boolean: the skew is no larger than
    the clocks may differ, see `clocks`), `last_rank` (null unless all members' traces are present), `doubtful` (bool:
    matched without a number, and its ends lie so far apart that it may be another one), `unmatched` (why it has no
    counterpart on other ranks; null if it is matched, or no other member's trace is present).

    `wait_ns` and `transfer_ns` are null unless every member's trace is present, where the match is doubtful (as are
    `last_rank` and `bus_gb_per_s`), and for broadcast, reduce, gather, scatter, and messages
    of which an end is not known. A kernel that carries several messages waits for all their other ends together; where
    one of these came after a message's own, the message's `transfer_ns` is null. Numbers are Int64 and Float64, null
    where unknown. With selected steps, only collectives that a rank launched in one of them have rows.
    Raises `OverlaplabError` for an unknown rank or step.
    """
    table = _all(run)
    chosen = {run.traces.index(trace): trace for trace in selected_traces(run, selection)}
    keep = table["trace"].isin(chosen).to_numpy(copy=True)
    if not replace(selection, ranks=None).is_everything:
        for place, trace in chosen.items():
            every = step_windows(trace)
            wanted = [every.index(window) for window in selected_windows(trace, selection)]
            keep &= (table["trace"] != place).to_numpy() | table["window"].isin(wanted).to_numpy()
    return table.loc[keep, list(COLUMNS)].reset_index(drop=True)


def _all(run: Run) -> pd.DataFrame:
    table = numbered(run).copy()
    _place(table, run)
    _measure(table, run)
    origin = run.traces[0].origin_ns if run.traces else 0
    for name in ("launch_ns", "arrived_ns", "start_ns", "end_ns"):
        table[name] = table[name].where(table[name] == UNKNOWN_NS, table[name] - origin)
    table["group_size"] = table["size"]
    for name in _NUMBERS:
        values = table[name].astype("Int64")
        unknown = UNKNOWN_NS if name in _TIMES else -1
        table[name] = values.mask(values == unknown)
    table["axis"] = table["group_description"].map(axis_of)
    for name in ("group", "group_description", "axis", "kind", "dtype"):
        table[name] = table[name].where(table[name] != "", None).astype(object)
    table["unmatched"] = table["reason"].where(table["reason"].notna(), None).astype(object)
    return table


def _place(table: pd.DataFrame, run: Run) -> None:
    """Add `window` (the index in `step_windows`, -1 outside), `step` and `exposed_ns`."""
    table["window"], table["exposed_ns"] = -1, UNKNOWN_NS
    table["step"] = pd.array([None] * len(table), dtype="Int64")
    for place, trace in enumerate(run.traces):
        rows = np.flatnonzero(table["trace"] == place)
        offset = corrections(run)[place]
        starts, ends, host = (table[name].to_numpy()[rows] for name in ("start_ns", "end_ns", "host_ns"))
        known, launched = starts != UNKNOWN_NS, host != UNKNOWN_NS
        windows = _windows_of(trace, np.where(launched, host + offset, starts + offset), launched)
        steps = [window.step for window in step_windows(trace)]
        table.loc[rows, "window"] = windows
        table.loc[rows, "step"] = pd.array([steps[at] if at >= 0 else None for at in windows], dtype="Int64")
        busy = activity(trace)
        if busy.rule is Rule.UNRECORDED:
            continue
        exposed = subtract(busy.communication, busy.compute)
        table.loc[rows[known], "exposed_ns"] = within(exposed, starts[known] + offset, ends[known] + offset)


def _windows_of(trace: Trace, at_ns: NDArray[np.int64], launched: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The step that contains each launch, or each start if it was launched before the recording; -1 for none."""
    place_of = np.full(len(at_ns), -1, dtype=np.int64)
    for place, window in enumerate(step_windows(trace)):
        by_host = (at_ns >= window.host_start_ns) & (at_ns < window.host_end_ns)
        by_time = (at_ns >= window.start_ns) & (at_ns < window.end_ns)
        place_of[np.where(launched, by_host, by_time)] = place
    return place_of


_MOVED = ("kind", "size", "bytes", "doubtful")


def _measure(table: pd.DataFrame, run: Run) -> None:
    """Add the collectives' own figures: transfer, bus bandwidth, skew, last rank."""
    by = table["match"]
    ran = (table["start_ns"] != UNKNOWN_NS).to_numpy()
    duration = (table["end_ns"] - table["start_ns"]).where(ran)
    last = ran & (table["arrived_ns"] == table["arrived_ns"].groupby(by).transform("max")).to_numpy()
    waited = (table["wait_ns"] != UNKNOWN_NS).to_numpy()
    alone = table["last_ns"] == table["arrived_ns"]  # else its kernel waited for another message's end
    of_last = (table["end_ns"] - table["arrived_ns"]).where(last & alone).groupby(by).transform("max")
    table["transfer_ns"] = of_last.where(waited).astype("Int64")
    rooted = table["kind"].isin({*ROOTED, ""}).to_numpy()
    grouped = duration.groupby(by)
    bound = grouped.transform("max").where(rooted, grouped.transform("min"))
    took = of_last.where(waited, bound).astype("Float64")
    factors = [
        None if size < 2 or num_bytes < 0 or doubtful else ring_factor(kind, size) * num_bytes
        for kind, size, num_bytes, doubtful in zip(*(table[name] for name in _MOVED), strict=True)
    ]
    moved = pd.array(factors, dtype="Float64")
    table["bus_gb_per_s"] = moved / took.mask(took <= 0)
    table["bus_is_lower_bound"] = table["bus_gb_per_s"].notna() & ~waited
    starts = table["arrived_ns"].astype("Int64").where(ran)  # to Int64 before masking: float would round
    sure = table["complete"] & ~table["doubtful"]
    several = ran & (by.groupby(by).transform("size") > 1).to_numpy()
    table["skew_ns"] = (starts.groupby(by).transform("max") - starts.groupby(by).transform("min")).where(several)
    table["last_rank"] = table["rank"].where(last).groupby(by).transform("max").where(sure & several)
    errors = clocks(run)["error_ns"].to_numpy(np.int64)[table["trace"].to_numpy()]
    error = pd.Series(errors, index=table.index).groupby(by).transform("max")
    table["within_clock_error"] = (table["skew_ns"] <= error).astype("boolean")


_FIRST = (
    *("step", "group", "group_description", "axis", "group_size", "kind", "dtype", "bytes", "transfer_ns"),
    "bus_gb_per_s",
    *("bus_is_lower_bound", "skew_ns", "within_clock_error", "last_rank", "doubtful", "unmatched"),
)


def each_collective(table: pd.DataFrame) -> pd.DataFrame:
    """One row per collective, from the rows of `overlaplab.collectives`, in their order.

    Columns: `index`, `ranks` (int64, how many ranks have rows), `start_ns` (the first), `end_ns` (the last),
    `longest_ns` (the longest that a rank spent in it), `wait_ns` (the longest that a rank waited, null where unknown),
    `waits_ns` (the sum of all ranks' waits), `exposed_ns` (the largest of a rank), and as in `collectives`: `step` (the
    first rank's), `group`, `group_description`, `axis`, `group_size`, `kind`, `dtype`, `bytes`, `transfer_ns`,
    `bus_gb_per_s`, `bus_is_lower_bound`, `skew_ns`, `within_clock_error`, `last_rank`, `doubtful`, `unmatched`. Times
    in ns from the run's start, Int64.
    """
    own = table.assign(longest_ns=table["end_ns"] - table["start_ns"])
    by = own.groupby("index", sort=False)
    each = by[list(_FIRST)].first()
    each["ranks"] = by.size()
    each["start_ns"], each["end_ns"] = by["start_ns"].min(), by["end_ns"].max()
    for name in ("longest_ns", "wait_ns", "exposed_ns"):
        each[name] = by[name].max()
    each["waits_ns"] = by["wait_ns"].sum(min_count=1)
    return each.reset_index()
