"""How long each rank's computing thread waited for a core, by the kernel's counts (docs/design.md, "Machine busy")."""

from __future__ import annotations

import pandas as pd

from overlaplab.events import Run, processor_counts, window_bounds, windows_at
from overlaplab.evidence.selection import selected_traces, selected_windows
from overlaplab.selection import EVERYTHING, Selection

COLUMNS = {
    **dict.fromkeys(("rank", "step"), "Int64"),
    **dict.fromkeys(("unit", "phase"), "object"),
    **dict.fromkeys(("span_ns", "ran_ns", "delayed_ns"), "int64"),
}
"""The columns of `delays` and their dtypes."""


def delays(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step, unit and phase, in ns. No rows where the trace holds no counts.

    Columns: `rank`, `step` (Int64), `unit`, `phase` (`forward` or `backward`; both are empty for the rest of the step),
    `span_ns` (between the counts), `ran_ns` (of it, on a core), `delayed_ns` (of it, waiting for one; what then is left
    is blocked time). A step's rows cover it but for the ends. Raises `OverlaplabError` for an unknown rank or step.
    """
    tables = []
    for trace in selected_traces(run, selection):
        counts, windows = processor_counts(trace), selected_windows(trace, selection)
        if not len(counts) or not windows:
            continue
        place = windows_at(windows, counts["start_ns"].to_numpy())
        inside = (place >= 0) & (counts["end_ns"].to_numpy() <= window_bounds(windows)[1][place])
        counts = counts.assign(place=place, span_ns=counts["end_ns"] - counts["start_ns"])[inside]
        by = counts.groupby(["place", "unit", "phase"], sort=False)[["span_ns", "ran_ns", "delayed_ns"]]
        summed = by.sum().reset_index().sort_values("place", kind="stable")
        steps = pd.array([window.step for window in windows], dtype="Int64")[summed["place"].to_numpy()]
        tables.append(summed.assign(rank=trace.rank, step=steps))
    table = pd.concat(tables) if tables else pd.DataFrame(columns=list(COLUMNS))
    return table[list(COLUMNS)].astype(COLUMNS).reset_index(drop=True)
