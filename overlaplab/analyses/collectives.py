"""Collectives as things that happen across ranks: who came last, who waited, how fast the data moved."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.analyses.clocks import clocks, corrections
from overlaplab.analyses.matching import ROOTED
from overlaplab.analyses.recorded import UNKNOWN_NS
from overlaplab.analyses.selection import selected_traces, selected_windows
from overlaplab.analyses.volume import ring_factor
from overlaplab.analyses.waits import arrivals
from overlaplab.events import Run, Trace, activity, once_per_run, step_windows
from overlaplab.intervals import Intervals, subtract
from overlaplab.vocabulary import Rule

__all__ = ["COLUMNS", "collectives", "numbered", "within"]

_TIMES = ("launch_ns", "arrived_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns", "transfer_ns", "skew_ns")
_NUMBERS = ("step", "group_size", "bytes", *_TIMES, "last_rank")
COLUMNS = (
    *("index", "rank", "step", "group", "group_description", "group_size", "kind", "dtype", "bytes"),
    *("launch_ns", "arrived_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns"),
    *("transfer_ns", "bus_gb_per_s", "bus_is_lower_bound", "skew_ns", "within_clock_error", "last_rank", "unmatched"),
)
"""What `collectives` tells, in order."""


def collectives(
    run: Run, *, ranks: Collection[int] | None = None, steps: Collection[int] | None = None, skip_steps: int = 0
) -> pd.DataFrame:
    """One row per collective and rank, in order of the collective's first start, then rank.

    Columns: `index` (the collective's, whichever rows are selected), `rank`, `step` (the one in which this rank
    launched it, null outside all), `group`, `group_description`, `group_size`, `kind`, `dtype` (all as told by any of
    its ranks, null where none tells), `bytes` (the larger of input and output; of the rank that has most).

    This rank's times, in ns from the run's start by the first rank's clock: `launch_ns` (host time), `start_ns`,
    `end_ns`, `arrived_ns` (its start; on an emulated link when it was launched and the link free, which is a little
    earlier); `wait_ns` (from its start until the last rank arrived), `exposed_ns` (its time during which this rank
    computed nothing).

    The collective's, the same on all its rows: `transfer_ns` (from the last arrival to that rank's end),
    `bus_gb_per_s` (decimal: bytes ÷ transfer × 2(n-1)/n for an all-reduce, (n-1)/n for all-gather, reduce-scatter and
    all-to-all, else 1; null for a group of one or of unknown size), `bus_is_lower_bound` (bool: computed from the
    duration, since transfer is unknown; the shortest of the ranks' durations, or the longest where one rank gives or
    takes all), `skew_ns` (the spread of arrivals, of those that are here), `within_clock_error` (boolean: the skew is
    no larger than what clocks may differ by, see `clocks`), `last_rank` (null unless all members are here), `unmatched`
    (the reason why it has no counterpart on other ranks, null for what is matched or has no other member here).

    `wait_ns` and `transfer_ns` are null unless every member's trace is here, and for send/recv, broadcast, reduce,
    gather and scatter. Int64 and Float64, null where unknown. With `steps` or `skip_steps` only what a rank launched in
    one of those. Raises `OverlaplabError` for an unknown rank or step.
    """
    table = _all(run)
    chosen = {run.traces.index(trace): trace for trace in selected_traces(run, ranks)}
    keep = table["trace"].isin(chosen).to_numpy(copy=True)
    if steps is not None or skip_steps:
        for place, trace in chosen.items():
            every = step_windows(trace)
            wanted = [every.index(window) for window in selected_windows(trace, steps, skip_steps)]
            keep &= (table["trace"] != place).to_numpy() | table["window"].isin(wanted).to_numpy()
    return table.loc[keep, list(COLUMNS)].reset_index(drop=True)


@once_per_run
def numbered(run: Run) -> pd.DataFrame:
    """`arrivals`' rows in order of the collective's first start, with `index`, the number that `collectives` gives it.

    `trace` and `row` tell where each comes from: the place in `run.traces`, the row of `recorded`.
    """
    found = arrivals(run)
    began = np.where(found["start_ns"] != UNKNOWN_NS, found["start_ns"], found["launch_ns"])
    first = pd.Series(began, index=found.index).groupby(found["match"]).transform("min")
    found = found.assign(first=first).sort_values(["first", "match", "trace"], kind="stable", ignore_index=True)
    return found.assign(index=pd.factorize(found["match"])[0])


def _all(run: Run) -> pd.DataFrame:
    found = numbered(run).copy()
    _place(found, run)
    _measure(found, run)
    origin = run.traces[0].origin_ns if run.traces else 0
    for name in ("launch_ns", "arrived_ns", "start_ns", "end_ns"):
        found[name] = found[name].where(found[name] == UNKNOWN_NS, found[name] - origin)
    found["group_size"] = found["size"]
    for name in _NUMBERS:
        values = found[name].astype("Int64")
        unknown = UNKNOWN_NS if name in _TIMES else -1
        found[name] = values.mask(values == unknown)
    for name in ("group", "group_description", "kind", "dtype"):
        found[name] = found[name].where(found[name] != "", None).astype(object)
    found["unmatched"] = found["reason"].where(found["reason"].notna(), None).astype(object)
    return found


def _place(found: pd.DataFrame, run: Run) -> None:
    """`window` (the place in `step_windows`, -1 outside), `step` and `exposed_ns`."""
    found["window"], found["exposed_ns"] = -1, UNKNOWN_NS
    found["step"] = pd.array([None] * len(found), dtype="Int64")
    for place, trace in enumerate(run.traces):
        rows = np.flatnonzero(found["trace"] == place)
        offset = corrections(run)[place]
        starts, ends, host = (found[name].to_numpy()[rows] for name in ("start_ns", "end_ns", "host_ns"))
        known, launched = starts != UNKNOWN_NS, host != UNKNOWN_NS
        windows = _windows_of(trace, np.where(launched, host + offset, starts + offset), launched)
        steps = [window.step for window in step_windows(trace)]
        found.loc[rows, "window"] = windows
        found.loc[rows, "step"] = pd.array([steps[at] if at >= 0 else None for at in windows], dtype="Int64")
        busy = activity(trace)
        if busy.rule is Rule.UNRECORDED:
            continue
        exposed = subtract(busy.communication, busy.compute)
        found.loc[rows[known], "exposed_ns"] = within(exposed, starts[known] + offset, ends[known] + offset)


def _windows_of(trace: Trace, at_ns: NDArray[np.int64], launched: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The step that holds each launch, or the start of what was launched before the recording; -1 where none does."""
    found = np.full(len(at_ns), -1, dtype=np.int64)
    for place, window in enumerate(step_windows(trace)):
        by_host = (at_ns >= window.host_start_ns) & (at_ns < window.host_end_ns)
        by_time = (at_ns >= window.start_ns) & (at_ns < window.end_ns)
        found[np.where(launched, by_host, by_time)] = place
    return found


def within(intervals: Intervals, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of the set lies in each [start, end), in ns."""
    lengths = np.concatenate(([0], np.cumsum(intervals[:, 1] - intervals[:, 0])))

    def before(moments: NDArray[np.int64]) -> NDArray[np.int64]:
        place = np.searchsorted(intervals[:, 0], moments, side="right") - 1
        inside = place >= 0
        last = intervals[np.maximum(place, 0)] if len(intervals) else np.zeros((len(moments), 2), dtype=np.int64)
        part = np.where(inside, np.minimum(moments, last[:, 1]) - last[:, 0], 0)
        return lengths[np.maximum(place, 0)] * inside + part

    return np.asarray(before(ends) - before(starts), dtype=np.int64)


def _measure(found: pd.DataFrame, run: Run) -> None:
    """The collectives' own figures: transfer, bus bandwidth, skew, last rank."""
    by = found["match"]
    ran = (found["start_ns"] != UNKNOWN_NS).to_numpy()
    duration = (found["end_ns"] - found["start_ns"]).where(ran)
    last = ran & (found["arrived_ns"] == found["arrived_ns"].groupby(by).transform("max")).to_numpy()
    waited = (found["wait_ns"] != UNKNOWN_NS).to_numpy()
    of_last = (found["end_ns"] - found["arrived_ns"]).where(last).groupby(by).transform("max")
    found["transfer_ns"] = of_last.where(waited).astype("Int64")
    rooted = found["kind"].isin({*ROOTED, ""}).to_numpy()
    grouped = duration.groupby(by)
    bound = grouped.transform("max").where(rooted, grouped.transform("min"))
    took = of_last.where(waited, bound).astype("Float64")
    factors = [
        None if size < 2 or num_bytes < 0 else ring_factor(kind, size) * num_bytes
        for kind, size, num_bytes in zip(found["kind"], found["size"], found["bytes"], strict=True)
    ]
    moved = pd.array(factors, dtype="Float64")
    found["bus_gb_per_s"] = moved / took.mask(took <= 0)
    found["bus_is_lower_bound"] = found["bus_gb_per_s"].notna() & ~waited
    starts = found["arrived_ns"].astype("Int64").where(ran)  # of int64 first: a float would round it
    several = ran & (by.groupby(by).transform("size") > 1).to_numpy()
    found["skew_ns"] = (starts.groupby(by).transform("max") - starts.groupby(by).transform("min")).where(several)
    found["last_rank"] = found["rank"].where(last).groupby(by).transform("max").where(found["complete"] & several)
    errors = clocks(run)["error_ns"].to_numpy(np.int64)[found["trace"].to_numpy()]
    error = pd.Series(errors, index=found.index).groupby(by).transform("max")
    found["within_clock_error"] = (found["skew_ns"] <= error).astype("boolean")
