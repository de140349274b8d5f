"""Collectives across ranks: who arrived last, who waited, how fast the data moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from overlaplab.costs.link import ring_factor
from overlaplab.events import Run, Trace, activity, once_per_run, step_windows, windows_at
from overlaplab.evidence.arrays import Fields, Groups, as_table, or_none
from overlaplab.evidence.call_metadata import group_axes
from overlaplab.evidence.clocks import clocks, corrections
from overlaplab.evidence.group_pairing import ROOTED
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.selection import selected_traces, selected_windows
from overlaplab.evidence.waits import numbered_arrivals
from overlaplab.intervals import Integers, Mask, lengths_within
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule

COLUMNS = (
    *("index", "rank", "step", "group", "group_description", "axis", "group_size", "kind", "dtype", "bytes"),
    *("launch_ns", "arrived_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns", "transfer_ns"),
    *("bus_gb_per_s", "bus_is_lower_bound", "skew_ns", "within_clock_error", "last_rank", "doubtful", "unmatched"),
)
"""The columns of `collectives`, in order."""

OF_RANK = ("rank", "step", "launch_ns", "arrived_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns")
"""The columns in which each rank of a collective has a value of its own; others are the same on all its rows."""


def collectives(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per collective and rank, in order of the collective's first start, then rank.

    Columns: `index` (the collective's, whatever the selection), `rank`, `step` (in which this rank launched it, null
    outside all steps), `group`, `group_description`, `axis` (of the mesh, by that description: see `axes`),
    `group_size`, `kind`, `dtype` (all known from any of its ranks, else null), `bytes` (the larger of input and output,
    of the rank with most).

    This rank's times, in ns from the run's start by the first rank's clock: `launch_ns` (host time), `start_ns`,
    `end_ns`, `arrived_ns` (its start; on an emulated link when it was launched and the link free, which is a little
    earlier); `wait_ns` (from its arrival until the last rank's), `exposed_ns` (its time from `start_ns` to `end_ns`
    during which this rank computed nothing).

    The collective's own figures, the same on all its rows: `transfer_ns` (from the last arrival to that rank's end),
    `bus_gb_per_s` (decimal: bytes ÷ transfer × 2(n-1)/n for an all-reduce, (n-1)/n for all-gather, reduce-scatter and
    all-to-all, else 1; null for a group of one or of unknown size), `bus_is_lower_bound` (bool: computed from the
    duration, since transfer is unknown; the shortest of the ranks' durations, or the longest where one rank gives or
    takes all), `skew_ns` (the spread of the known arrivals), `within_clock_error` (boolean: the skew is no larger than
    the clocks may differ, see `clocks`), `last_rank` (null unless all members' traces are present), `doubtful` (bool:
    matched without a number, and its ends lie so far apart that it may be another one), `unmatched` (why it has no
    counterpart on other ranks; null if it is matched, or no other member's trace is present).

    `wait_ns` and `transfer_ns` are null unless every member's trace is present, where the match is doubtful (as are
    `last_rank` and `bus_gb_per_s`), and for messages of which an end is not known. So is the `transfer_ns` of a
    broadcast, reduce, gather or scatter, except on an emulated link of a host, and its `wait_ns` where a rank need not
    wait for the last one, or the root is unknown (docs/design/collectives.md, Wait and transfer). A kernel that carries
    several messages waits for all their other ends together; where one of these came after a message's own, the
    message's `transfer_ns` is null. Numbers are Int64 and Float64, null where unknown. With selected steps, only
    collectives that a rank launched in one of them have rows.
    Raises `OverlaplabError` for an unknown rank or step.
    """
    table = _every_collective(run)
    chosen = {run.traces.index(trace): trace for trace in selected_traces(run, selection)}
    keep = table["trace"].isin(chosen).to_numpy(copy=True)
    if not replace(selection, ranks=None).is_everything:
        for place, trace in chosen.items():
            place_of = {window: number for number, window in enumerate(step_windows(trace))}
            wanted = [place_of[window] for window in selected_windows(trace, selection)]
            keep &= (table["trace"] != place).to_numpy() | table["window"].isin(wanted).to_numpy()
    return table.loc[keep, list(COLUMNS)].reset_index(drop=True)


@once_per_run
def _every_collective(run: Run) -> pd.DataFrame:
    every = numbered_arrivals(run)
    table: Fields = {str(name): column.to_numpy() for name, column in every.items() if name != "rank"}
    steps = _add_places(table, run)
    columns = table | {"rank": every["rank"].array, "step": steps} | _figures(table, every["rank"], run)
    origin = run.traces[0].origin_ns if run.traces else 0
    for name in ("launch_ns", "arrived_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns"):
        is_known = table[name] != UNKNOWN_NS
        columns[name] = _nullable_integers(table[name] - (0 if name in ("wait_ns", "exposed_ns") else origin), is_known)
    for column, name in (("group_size", "size"), ("bytes", "bytes")):
        columns[column] = _nullable_integers(table[name], table[name] != -1)
    table["axis"] = group_axes(table["group_description"])
    for name in ("group", "group_description", "axis", "kind", "dtype"):
        columns[name] = or_none(table[name], table[name] != "")
    return as_table(columns | {"unmatched": table["reason"]})


def _nullable_integers(values: Integers, is_known: Mask) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(values, ~is_known)


def _add_places(table: Fields, run: Run) -> pd.api.extensions.ExtensionArray:
    """Return the steps, and add `window` (the index in `step_windows`, -1 outside) and `exposed_ns` to the table."""
    count = len(table["trace"])
    table["window"], table["exposed_ns"] = np.full(count, -1), np.full(count, UNKNOWN_NS)
    steps = np.full(count, None, dtype=object)
    for place, trace in enumerate(run.traces):
        rows = np.flatnonzero(table["trace"] == place)
        offset = corrections(run)[place]
        starts, ends, host = (table[name][rows] for name in ("start_ns", "end_ns", "host_ns"))
        is_known, launched = starts != UNKNOWN_NS, host != UNKNOWN_NS
        windows = _find_windows(trace, np.where(launched, host + offset, starts + offset), launched)
        table["window"][rows] = windows
        steps[rows] = np.array([*(window.step for window in step_windows(trace)), None], dtype=object)[windows]
        busy = activity(trace)
        if busy.rule is Rule.UNRECORDED:
            continue
        bounds = starts[is_known] + offset, ends[is_known] + offset
        table["exposed_ns"][rows[is_known]] = lengths_within(busy.exposed_communication, *bounds)
    return pd.array(steps, dtype="Int64")


def _find_windows(trace: Trace, at_ns: Integers, launched: Mask) -> Integers:
    """The step that contains each launch, or each start if it was launched before the recording; -1 for none."""
    steps = step_windows(trace)
    return np.where(launched, windows_at(steps, at_ns, of_host=True), windows_at(steps, at_ns))


def _figures(table: Fields, rank: pd.Series, run: Run) -> dict[str, Any]:
    """The collectives' own figures: transfer, bus bandwidth, skew, last rank."""
    groups, most = Groups(table["match"]), np.iinfo(np.int64).max
    starts, ends, arrived, doubtful = (table[name] for name in ("start_ns", "end_ns", "arrived_ns", "doubtful"))
    ran, waited = starts != UNKNOWN_NS, (table["wait_ns"] != UNKNOWN_NS) & table["all_wait"]
    last = ran & (arrived == groups.spread(np.maximum, arrived))
    alone = table["last_ns"] == arrived  # else its kernel waited for another message's end
    of_last = groups.spread(np.maximum, np.where(last & alone, ends - arrived, UNKNOWN_NS))
    longest = groups.spread(np.maximum, np.where(ran, ends - starts, UNKNOWN_NS))
    shortest = groups.spread(np.minimum, np.where(ran, ends - starts, most))
    rooted = np.isin(table["kind"], [*ROOTED, ""])
    bound = np.where(rooted | (longest == UNKNOWN_NS), longest, shortest)
    took = np.where(waited, of_last, bound)
    sized = (table["size"] >= 2) & (table["bytes"] >= 0) & ~doubtful & (took > 0)
    factors = [
        ring_factor(kind, size) if is_sized else 0.0
        for kind, size, is_sized in zip(table["kind"].tolist(), table["size"].tolist(), sized.tolist(), strict=True)
    ]
    moved = np.array(factors) * np.where(sized, table["bytes"], 0)
    several = ran & (groups.spread(np.add, np.ones_like(starts)) > 1)
    latest = groups.spread(np.maximum, np.where(ran, arrived, UNKNOWN_NS))
    skew = np.where(several, latest - groups.spread(np.minimum, np.where(ran, arrived, most)), 0)
    last_rank = groups.spread(np.maximum, np.where(last, rank.to_numpy(np.int64, na_value=-1), -1))
    error = groups.spread(np.maximum, clocks(run)["error_ns"].to_numpy(np.int64)[table["trace"]])
    return {
        "transfer_ns": _nullable_integers(of_last, waited & (of_last != UNKNOWN_NS)),
        "bus_gb_per_s": pd.arrays.FloatingArray(moved / np.where(sized, took, 1), ~sized),
        "bus_is_lower_bound": sized & ~waited,
        "skew_ns": _nullable_integers(skew, several),
        "last_rank": _nullable_integers(last_rank, table["complete"] & ~doubtful & several & (last_rank >= 0)),
        "within_clock_error": pd.arrays.BooleanArray(skew <= error, ~several),
    }


def time_spent(table: pd.DataFrame) -> pd.Series:
    """How long each row's rank was in the collective: from its arrival, or its start if that is earlier, to its end.

    Takes rows of `overlaplab.collectives`. Wait and transfer are parts of this time, exposed time of that since the
    start.
    """
    return table["end_ns"] - table[["start_ns", "arrived_ns"]].min(axis=1)


_FIRST = [name for name in COLUMNS if name == "step" or name not in ("index", *OF_RANK)]
"""The columns that a collective's first row has for all of them."""


def each_collective(table: pd.DataFrame) -> pd.DataFrame:
    """One row per collective, from the rows of `overlaplab.collectives`, in their order.

    Columns: `index`, `ranks` (int64, how many ranks have rows), `start_ns` (the first), `end_ns` (the last),
    `longest_ns` (the longest that a rank spent in it, see `time_spent`), `wait_ns` (the longest that a rank waited,
    null where unknown),
    `waits_ns` (the sum of all ranks' waits), `exposed_ns` (the largest of a rank), and as in `collectives`: `step` (the
    first rank's), `group`, `group_description`, `axis`, `group_size`, `kind`, `dtype`, `bytes`, `transfer_ns`,
    `bus_gb_per_s`, `bus_is_lower_bound`, `skew_ns`, `within_clock_error`, `last_rank`, `doubtful`, `unmatched`. Times
    in ns from the run's start, Int64.
    """
    timed = table.assign(longest_ns=time_spent(table))
    by = timed.groupby("index", sort=False)
    each = by[_FIRST].first()
    each["ranks"] = by.size()
    each["start_ns"], each["end_ns"] = by["start_ns"].min(), by["end_ns"].max()
    for name in ("longest_ns", "wait_ns", "exposed_ns"):
        each[name] = by[name].max()
    each["waits_ns"] = by["wait_ns"].sum(min_count=1)
    return each.reset_index()
