"""How long each rank's computing thread waited for a core, by the kernel's counts (docs/design.md, "Machine busy")."""

from __future__ import annotations

import pandas as pd

from overlaplab.events import Run, processor_counts
from overlaplab.evidence.selection import selected_traces, selected_windows
from overlaplab.selection import EVERYTHING, Selection

__all__ = ["COLUMNS", "delays"]

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
        counts = processor_counts(trace)
        for window in selected_windows(trace, selection):
            own = counts[(counts["start_ns"] >= window.start_ns) & (counts["end_ns"] <= window.end_ns)]
            own = own.assign(span_ns=own["end_ns"] - own["start_ns"])
            summed = own.groupby(["unit", "phase"], sort=False)[["span_ns", "ran_ns", "delayed_ns"]].sum().reset_index()
            tables.append(summed.assign(rank=trace.rank, step=window.step))
    found = pd.concat(tables) if tables else pd.DataFrame(columns=list(COLUMNS))
    return found[list(COLUMNS)].astype(COLUMNS).reset_index(drop=True)
