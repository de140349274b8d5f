"""Exposed communication by whether computation waited for it, or it blocked nothing (docs/exposed.md)."""

from __future__ import annotations

import pandas as pd

from overlaplab.events import Run, activity, window_bounds
from overlaplab.evidence.exposed_waits import ExposedWaits, exposed_waits
from overlaplab.evidence.selection import selected_traces, selected_windows
from overlaplab.intervals import EMPTY, lengths_within
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule

COLUMNS = {
    **dict.fromkeys(("rank", "step"), "Int64"),
    **dict.fromkeys(("exposed_comm_ns", "blocking_ns", "not_blocking_ns", "unresolved_ns"), "int64"),
}
"""The columns of `blocking` and their dtypes."""


def blocking(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank and step, in ns.

    Columns: `rank`, `step` (Int64), `exposed_comm_ns` (as in `summary`), and its parts, which add up to it:
    `blocking_ns` (the next kernel that computes waited for a collective), `not_blocking_ns` (none did: the computation
    was held up by something else), `unresolved_ns` (unknown; all of it where the trace has no `cuda_sync` events). A
    rank whose device activity was not recorded has no rows. Raises `OverlaplabError` for an unknown rank or step.
    """
    rows: list[tuple[object, ...]] = []
    for trace in selected_traces(run, selection):
        busy, windows = activity(trace), selected_windows(trace, selection)
        if busy.rule is Rule.UNRECORDED:
            continue
        waits, bounds = exposed_waits(trace) or ExposedWaits(EMPTY, EMPTY), window_bounds(windows)
        times = (
            lengths_within(part, *bounds) for part in (busy.exposed_communication, waits.blocking, waits.not_blocking)
        )
        rows += [
            (trace.rank, window.step, whole, blocks, not_blocking, whole - blocks - not_blocking)
            for window, whole, blocks, not_blocking in zip(windows, *times, strict=True)
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
