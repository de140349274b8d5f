"""Where each rank's time went: the breakdown of every step (docs/design.md, "The arithmetic")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, Window, activity, step_windows, window_bounds
from overlaplab.evidence.clocks import zero_of
from overlaplab.evidence.selection import measured_traces, selected_windows
from overlaplab.evidence.waits import exposed_parts
from overlaplab.intervals import EMPTY, Intervals, clip, intersect, subtract, total, union, within
from overlaplab.selection import EVERYTHING, Selection

Figures: TypeAlias = "NDArray[np.int64] | pd.api.extensions.ExtensionArray"
"""A column: whole numbers, or with nulls where unknown."""

PARTS = ("compute_only_ns", "overlapped_ns", "exposed_comm_ns", "memory_only_ns", "idle_ns")
"""The parts that add up to `span_ns` exactly, each moment counted once."""

_MATCHED = ("exposed_wait_ns", "exposed_transfer_ns")
"""They add up to `exposed_comm_ns`; known only if all collectives exposed in the step are matched across all ranks."""

FIGURES = (
    *("span_ns", "compute_ns", "comm_ns", "overlapped_ns", "compute_only_ns", "exposed_comm_ns"),
    *(*_MATCHED, "memory_only_ns", "idle_ns", "preempted_ns", "overlap_ratio"),
)
"""The figures of each step, in order."""

_PERHAPS = (*_MATCHED, "preempted_ns")
"""Figures that may be unknown."""

_SUMMED = ("span_ns", "compute_ns", "comm_ns", *PARTS)


def summary(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank and step, in ns.

    Columns: `rank`, `step` (Int64, null where unknown), `start_ns` (from the run's start, by the first rank's clock),
    `span_ns`, `compute_ns`, `comm_ns`, `overlapped_ns`, `compute_only_ns`, `exposed_comm_ns`, `exposed_wait_ns`,
    `exposed_transfer_ns` (Int64: exposed time before and after a collective's last rank arrived, see
    `waits.exposed_parts`; both null if any of it is unknown), `memory_only_ns`, `idle_ns`,
    `preempted_ns` (Int64: time in which an operator waited for a core, and nothing else ran; it is not compute, but
    exposed communication where the rank communicated, else idle; null where the trace does not tell), `overlap_ratio`
    (null where `comm_ns` is 0).
    A rank whose device activity was not recorded has no rows. Raises `OverlaplabError` for an unknown rank or step.
    """
    tables = []
    for trace in measured_traces(run, selection):
        windows = selected_windows(trace, selection)
        identity = {
            "rank": _repeated(trace.rank, len(windows)),
            "step": pd.array([window.step for window in windows], dtype="Int64"),
            "start_ns": window_bounds(windows)[0] - zero_of(run, trace),
        }
        tables.append(identity | _breakdown(run, trace, windows))
    return _table(tables, "rank", "step", "start_ns")


def totals(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank: `summary`'s columns without `step` and `start_ns`, summed, and `outside_ns`.

    A ratio of totals is the ratio of the sums. `outside_ns` is recorded time outside all steps' windows, whichever
    steps are selected; the other columns do not include it. A rank whose device activity was not recorded has no row.
    """
    tables = []
    for trace in measured_traces(run, selection):
        parts = _breakdown(run, trace, selected_windows(trace, selection))
        identity = {"rank": _repeated(trace.rank, 1), "outside_ns": np.array([_outside(trace)])}
        tables.append(identity | {name: _sum(parts[name]) for name in (*_SUMMED, *_PERHAPS)})
    return _table(tables, "rank", "outside_ns")


def _repeated(rank: int | None, count: int) -> pd.arrays.IntegerArray:
    return pd.array([rank], dtype="Int64").repeat(count)


def _sum(figures: Figures) -> Figures:
    """Their sum as a column of one row; null if any is unknown."""
    if isinstance(figures, np.ndarray):
        return figures.sum(keepdims=True)
    return pd.array([figures.sum(skipna=False)], dtype="Int64")


def _breakdown(run: Run, trace: Trace, windows: Sequence[Window]) -> dict[str, Figures]:
    """The figures of these windows, but for the ratio."""
    busy, parts = activity(trace), exposed_parts(run)[run.traces.index(trace)]
    starts, ends = window_bounds(windows)

    def length(of: Intervals) -> NDArray[np.int64]:
        return within(of, starts, ends)

    def known(figures: NDArray[np.int64], unknown: NDArray[np.bool_]) -> pd.arrays.IntegerArray:
        return pd.arrays.IntegerArray(figures, unknown)

    compute, overlapped = length(busy.compute), length(intersect(busy.communication, busy.compute))
    exposed = length(subtract(busy.communication, busy.compute))
    memory_only = length(subtract(subtract(busy.memory, busy.compute), busy.communication))
    unmatched = length(parts.unknown) > 0
    preempted = EMPTY if busy.preempted is None else busy.preempted
    return {
        "span_ns": ends - starts,
        "compute_ns": compute,
        "comm_ns": overlapped + exposed,
        "compute_only_ns": compute - overlapped,
        "overlapped_ns": overlapped,
        "exposed_comm_ns": exposed,
        "exposed_wait_ns": known(length(parts.wait), unmatched),
        "exposed_transfer_ns": known(length(parts.transfer), unmatched),
        "memory_only_ns": memory_only,
        "idle_ns": ends - starts - compute - exposed - memory_only,
        "preempted_ns": known(length(preempted), np.full(len(windows), busy.preempted is None)),
    }


def _table(tables: Sequence[Mapping[str, Figures]], *identity: str) -> pd.DataFrame:
    """The ranks' columns one after another, with the documented columns, in order."""
    dtypes = {name: "Int64" if name in ("rank", "step", *_PERHAPS) else "int64" for name in (*identity, *FIGURES)}
    columns = {
        name: pd.concat([pd.Series(each[name], dtype=dtype) for each in tables] or [pd.Series(dtype=dtype)])
        for name, dtype in dtypes.items()
        if name != "overlap_ratio"
    }
    table = pd.DataFrame(columns).reset_index(drop=True)
    comm, overlapped = table["comm_ns"].to_numpy(), table["overlapped_ns"].to_numpy()
    table["overlap_ratio"] = pd.arrays.FloatingArray(overlapped / np.where(comm, comm, 1), comm == 0)
    return table


def _outside(trace: Trace) -> int:
    start, end = activity(trace).extent
    inside = clip(union(*window_bounds(step_windows(trace))), start, end)
    return end - start - total(inside)
