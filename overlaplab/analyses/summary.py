"""Where each rank's time went: the breakdown of every step (docs/design.md, "The arithmetic")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from overlaplab.events import Run, Trace, Window, activity, empty_table, step_windows, window_bounds
from overlaplab.evidence.clocks import run_zero_ns
from overlaplab.evidence.selection import measured_traces, selected_windows
from overlaplab.evidence.step_kinds import step_kinds
from overlaplab.evidence.waits import exposed_parts
from overlaplab.intervals import EMPTY, clip, intersect, lengths_within, subtract, total, union
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.words import to_ms

PARTS = ("compute_only_ns", "overlapped_ns", "exposed_comm_ns", "memory_only_ns", "idle_ns")
"""The parts that add up to `span_ns` exactly, each moment counted once."""

_MATCHED = ("exposed_wait_ns", "exposed_transfer_ns")
"""They add up to `exposed_comm_ns`; known only if all collectives exposed in the step are matched across all ranks."""

FIGURES = (
    *("span_ns", "compute_ns", "comm_ns", "overlapped_ns", "compute_only_ns", "exposed_comm_ns"),
    *(*_MATCHED, "memory_only_ns", "idle_ns", "preempted_ns", "overlap_ratio"),
)
"""The figures of each step, the ratio last. Scalars and regressions take them all."""

_PERHAPS = (*_MATCHED, "preempted_ns")
"""Figures that may be unknown."""


def summary(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank and step, in ns.

    Columns: `rank`, `step` (Int64, null where unknown), `start_ns` (from the run's start, by the first rank's clock),
    `span_ns`, `compute_ns`, `comm_ns`, `overlapped_ns`, `compute_only_ns`, `exposed_comm_ns`, `exposed_wait_ns`,
    `exposed_transfer_ns` (Int64: exposed time before and after a collective's last rank arrived, see
    `waits.exposed_parts`; both null if any of it is unknown), `memory_only_ns`, `idle_ns`,
    `preempted_ns` (Int64: time in which an operator waited for a core, and nothing else ran; it is not compute, but
    exposed communication where the rank communicated, else idle; null where the trace does not tell), `overlap_ratio`
    (null where `comm_ns` is 0), `damaged` (bool: the trace has events in it at times that cannot be true; the figures
    are without these, and the step counts in no median), `step_kind` (Int64: see `evidence.step_kinds`).
    A rank whose device activity was not recorded has no rows. Raises `OverlaplabError` for an unknown rank or step.
    """
    tables, damaged = [], []
    for trace in measured_traces(run, selection):
        windows = selected_windows(trace, selection)
        starts = window_bounds(windows)[0] - run_zero_ns(run, trace)
        steps = pd.Series([window.step for window in windows], dtype="Int64")
        tables.append(_breakdown(run, trace, windows).assign(rank=trace.rank, step=steps, start_ns=starts))
        damaged += [window.damaged for window in windows]
    table = _stack_ranks(tables, "rank", "step", "start_ns").assign(damaged=np.array(damaged, dtype=bool))
    return table.assign(step_kind=table["step"].map(step_kinds(run), na_action="ignore").astype("Int64"))


STEP_PARTS = {
    "compute_only_ms": ("compute_only_ns",),
    "hidden_ms": ("overlapped_ns",),
    "exposed_ms": ("exposed_comm_ns",),
    "rest_ms": ("memory_only_ns", "idle_ns"),
}
"""The parts of a median step, and the columns of `summary` that each consists of."""


def median_parts(table: pd.DataFrame) -> dict[str, float | None]:
    """The median step of rows of `summary`, split in proportion to the parts' shares of all steps' time, in ms; None
    where nothing was measured.

    Medians of the parts would not add up to it.
    """
    median, span = to_ms(table["span_ns"].median()), int(table["span_ns"].sum())
    return {
        part: median * sum(int(table[column].sum()) for column in columns) / span if span else None
        for part, columns in STEP_PARTS.items()
    }


def ratio_of_sums(table: pd.DataFrame) -> float | None:
    """The overlap ratio of all these rows together; None without communication."""
    comm = int(table["comm_ns"].sum())
    return int(table["overlapped_ns"].sum()) / comm if comm else None


def totals(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank: `rank`, `outside_ns`, and the figures of `summary` (`FIGURES`), summed.

    A ratio of totals is the ratio of the sums. `outside_ns` is recorded time outside all steps' windows, whichever
    steps are selected; the other columns do not include it. A rank whose device activity was not recorded has no row.
    """
    tables = []
    for trace in measured_traces(run, selection):
        parts = _breakdown(run, trace, selected_windows(trace, selection))
        sums = {name: [column.sum(skipna=False)] for name, column in parts.items()}
        tables.append(pd.DataFrame(sums).assign(rank=trace.rank, outside_ns=_outside_ns(trace)))
    return _stack_ranks(tables, "rank", "outside_ns")


def _breakdown(run: Run, trace: Trace, windows: Sequence[Window]) -> pd.DataFrame:
    """One row per window with its figures, but for the ratio."""
    busy, parts = activity(trace), exposed_parts(run)[run.traces.index(trace)]
    starts, ends = window_bounds(windows)
    compute_ns, exposed_ns, overlapped_ns, memory_ns, wait_ns, transfer_ns, unmatched_ns, preempted_ns = (
        lengths_within(times, starts, ends)
        for times in (
            busy.compute,
            busy.exposed_communication,
            intersect(busy.communication, busy.compute),
            subtract(subtract(busy.memory, busy.compute), busy.communication),
            *(parts.wait, parts.transfer, parts.unknown),
            EMPTY if busy.preempted is None else busy.preempted,
        )
    )
    return pd.DataFrame(
        {
            "span_ns": ends - starts,
            "compute_ns": compute_ns,
            "comm_ns": overlapped_ns + exposed_ns,
            "compute_only_ns": compute_ns - overlapped_ns,
            "overlapped_ns": overlapped_ns,
            "exposed_comm_ns": exposed_ns,
            "exposed_wait_ns": pd.arrays.IntegerArray(wait_ns, unmatched_ns > 0),
            "exposed_transfer_ns": pd.arrays.IntegerArray(transfer_ns, unmatched_ns > 0),
            "memory_only_ns": memory_ns,
            "idle_ns": ends - starts - compute_ns - exposed_ns - memory_ns,
            "preempted_ns": pd.arrays.IntegerArray(preempted_ns, np.full(len(windows), busy.preempted is None)),
        }
    )


def _stack_ranks(tables: Sequence[pd.DataFrame], *identity: str) -> pd.DataFrame:
    """The ranks' rows one after another, with the documented columns, in order."""
    names = (*identity, *FIGURES[:-1])
    dtypes = {name: "Int64" if name in ("rank", "step", *_PERHAPS) else "int64" for name in names}
    table = pd.concat(tables, ignore_index=True)[list(names)].astype(dtypes) if tables else empty_table(dtypes)
    comm, overlapped = table["comm_ns"].to_numpy(), table["overlapped_ns"].to_numpy()
    table["overlap_ratio"] = pd.arrays.FloatingArray(overlapped / np.where(comm, comm, 1), comm == 0)
    return table


def _outside_ns(trace: Trace) -> int:
    start, end = activity(trace).extent
    inside = clip(union(*window_bounds(step_windows(trace))), start, end)
    return end - start - total(inside)
