"""Where each rank's time went: the breakdown of every step (docs/design.md, "The arithmetic")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from overlaplab.events import Run, Trace, Window, activity, step_windows, table_of
from overlaplab.evidence.clocks import zero_of
from overlaplab.evidence.selection import measured_traces, selected_windows
from overlaplab.evidence.waits import exposed_parts
from overlaplab.intervals import clip, intersect, subtract, total, union
from overlaplab.selection import EVERYTHING, Selection

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
    (null where `comm_ns` is 0), `damaged` (bool: the trace has events in it at times that cannot be true; the figures
    are without these, and the step counts in no median).
    A rank whose device activity was not recorded has no rows. Raises `OverlaplabError` for an unknown rank or step.
    """
    rows, damaged = [], []
    for trace in measured_traces(run, selection):
        for window in selected_windows(trace, selection):
            start = window.start_ns - zero_of(run, trace)
            rows.append({"rank": trace.rank, "step": window.step, "start_ns": start, **_breakdown(run, trace, window)})
            damaged.append(window.damaged)
    return _finished(rows, "rank", "step", "start_ns").assign(damaged=np.array(damaged, dtype=bool))


def totals(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank: `summary`'s columns without `step` and `start_ns`, summed, and `outside_ns`.

    A ratio of totals is the ratio of the sums. `outside_ns` is recorded time outside all steps' windows, whichever
    steps are selected; the other columns do not include it. A rank whose device activity was not recorded has no row.
    """
    rows = []
    for trace in measured_traces(run, selection):
        parts = [_breakdown(run, trace, window) for window in selected_windows(trace, selection)]
        rows.append(
            {"rank": trace.rank, "outside_ns": _outside(trace)}
            | {column: _sum(part[column] for part in parts) for column in (*_SUMMED, *_PERHAPS)}
        )
    return _finished(rows, "rank", "outside_ns")


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Their sum; None if any is unknown."""
    values = list(numbers)
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _breakdown(run: Run, trace: Trace, window: Window) -> dict[str, int | None]:
    own, parts = activity(trace), exposed_parts(run)[run.traces.index(trace)]
    start, end = window.start_ns, window.end_ns
    compute = clip(own.compute, start, end)
    comm = clip(own.communication, start, end)
    memory = clip(own.memory, start, end)
    overlapped, exposed = total(intersect(comm, compute)), total(subtract(comm, compute))
    memory_only = total(subtract(subtract(memory, compute), comm))
    matched = not len(clip(parts.unknown, start, end))
    return {
        "span_ns": end - start,
        "compute_ns": total(compute),
        "comm_ns": overlapped + exposed,
        "compute_only_ns": total(compute) - overlapped,
        "overlapped_ns": overlapped,
        "exposed_comm_ns": exposed,
        "exposed_wait_ns": total(clip(parts.wait, start, end)) if matched else None,
        "exposed_transfer_ns": total(clip(parts.transfer, start, end)) if matched else None,
        "memory_only_ns": memory_only,
        "idle_ns": end - start - total(compute) - exposed - memory_only,
        "preempted_ns": None if own.preempted is None else total(clip(own.preempted, start, end)),
    }


def _finished(rows: Sequence[Mapping[str, int | None]], *identity: str) -> pd.DataFrame:
    """A table of these rows with the documented columns, in order."""
    dtypes = {name: "Int64" if name in ("rank", "step", *_PERHAPS) else "int64" for name in (*identity, *FIGURES)}
    table = table_of(rows, dtypes | {"overlap_ratio": "Float64"})
    comm, overlapped = table["comm_ns"].to_numpy(), table["overlapped_ns"].to_numpy()
    table["overlap_ratio"] = pd.arrays.FloatingArray(overlapped / np.where(comm, comm, 1), comm == 0)
    return table


def _outside(trace: Trace) -> int:
    start, end = activity(trace).extent
    steps = step_windows(trace)
    inside = clip(union([step.start_ns for step in steps], [step.end_ns for step in steps]), start, end)
    return end - start - total(inside)
