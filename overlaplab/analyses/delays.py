"""How long each rank's computing thread waited for a core, by the kernel's counts (docs/design.md, "Machine busy")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from overlaplab.analyses.worst import without_steps
from overlaplab.events import Run, once_per_run, processor_counts, window_bounds, windows_at
from overlaplab.evidence.selection import selected_traces, selected_windows
from overlaplab.manifest import MachineStep
from overlaplab.selection import EVERYTHING, Selection

COLUMNS = {
    **dict.fromkeys(("rank", "step"), "Int64"),
    **dict.fromkeys(("unit", "phase"), "object"),
    **dict.fromkeys(("span_ns", "ran_ns", "delayed_ns"), "int64"),
}
"""The columns of `delays` and their dtypes."""

BUSY_DELAY_SHARE = 0.20
"""Share of a step: the machine was busy if its computation waited longer for a core, where run.json's `machine` says
nothing."""

SHORT_STEP_NS = 250_000_000
"""In a shorter step the machine's ticks of 10 ms tell little: what used the cores is told over all steps."""


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
        times = counts.groupby(["place", "unit", "phase"], sort=False)[["span_ns", "ran_ns", "delayed_ns"]]
        sums = times.sum().reset_index().sort_values("place", kind="stable")
        steps = pd.array([window.step for window in windows], dtype="Int64")[sums["place"].to_numpy()]
        tables.append(sums.assign(rank=trace.rank, step=steps))
    table = pd.concat(tables) if tables else pd.DataFrame(columns=list(COLUMNS))
    return table[list(COLUMNS)].astype(COLUMNS).reset_index(drop=True)


@once_per_run
def busy_rows(run: Run) -> pd.DataFrame:
    """For each rank and step in which the machine was busy `span_ns`, `delayed_ns`, and which shares of the cores its
    machine's ranks (`own`) and others (`foreign`) used, NaN where unknown: from run.json, or else the trace's counts.
    """
    recorded = run.manifest.machine if run.manifest else None
    if recorded is None:
        steps = delays(run).groupby(["rank", "step"], dropna=False, as_index=False)[["span_ns", "delayed_ns"]].sum()
        return steps[steps["delayed_ns"] > BUSY_DELAY_SHARE * steps["span_ns"]].assign(own=np.nan, foreign=np.nan)
    of_rank: dict[int | None, list[MachineStep]] = {}
    for row in recorded:
        of_rank.setdefault(row.rank, []).append(row)
    shares_of_rank = {rank: _shares(rows) for rank, rows in of_rank.items()}
    rows = [
        (row.rank, row.step, row.took_ns, row.delayed_ns or 0)
        + (_shares([row]) if row.took_ns >= SHORT_STEP_NS else shares_of_rank[row.rank])
        for row in recorded
        if row.busy
    ]
    return pd.DataFrame(rows, columns=["rank", "step", "span_ns", "delayed_ns", "own", "foreign"])


def _shares(rows: Sequence[MachineStep]) -> tuple[float, float]:
    """The shares of the cores' time that the machine's ranks used and that other processes did, NaN where unknown."""
    counted = [(row.busy_ns, row.foreign_ns) for row in rows if row.busy_ns is not None and row.foreign_ns is not None]
    if len(counted) < len(rows):
        return np.nan, np.nan
    whole_ns = max(sum(row.cores * row.took_ns for row in rows), 1)
    foreign_ns = sum(foreign for _, foreign in counted)
    return max(sum(busy for busy, _ in counted) - foreign_ns, 0) / whole_ns, foreign_ns / whole_ns


def busy_steps(run: Run) -> set[int]:
    """The numbers of the steps in which the machine was busy."""
    return {int(number) for number in busy_rows(run)["step"].dropna()}


def busy_share(run: Run, step: int | None) -> float | None:
    """The part of this step that the computation of the rank that lost most waited for a core; None where the machine
    was not busy in it, or that is unknown.
    """
    busy = busy_rows(run)
    busy = busy[busy["step"].eq(-1 if step is None else step).fillna(False) & (busy["span_ns"] > 0)]
    return float((busy["delayed_ns"] / busy["span_ns"]).max()) if len(busy) else None


def without_busy_steps(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """Rows of `overlaplab.summary` of this run without the steps in which the machine was busy. A kind of step that was
    busy in all its steps keeps them.
    """
    quiet = without_steps(table, tuple(busy_steps(run)))
    if "step_kind" not in table:
        return quiet if len(quiet) else table
    return table[table["step"].isin(quiet["step"]) | ~table["step_kind"].isin(quiet["step_kind"])]
