"""What prefetching may hold, and what of the gradients' reduce-scatters is exposed."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses import HeldLimit
from overlaplab.words import count, ms, percent, size_exact


def held_limit(limit: HeldLimit) -> str:
    """The name of the line at what a prefetch may hold."""
    staying = f", {limit.staying} of them kept from the forward pass" if limit.staying else ""
    return f"prefetch {limit.prefetch} may hold {count(limit.units, 'unit')}{staying}: {size_exact(limit.bytes)}"


def gather_waits_title(steps: pd.DataFrame) -> str:
    """How long compute waited for gathers at most: rows of `schedule_steps` whose wait is known."""
    if steps.empty:
        return "How long compute waited for gathers is unknown"
    return f"Compute waited for gathers for {_at_most(steps['wait_ns'])}"


CHOOSE_A_CELL = "Click a cell to see its rank and step."
"""Where a page can follow a click on a strip of ranks by steps."""


def scatters_exposed_title(steps: pd.DataFrame) -> str:
    """How long reduce-scatters were exposed at most: rows of `analyses.scatter_steps`."""
    if not steps["exposed_ns"].any():
        return "No reduce-scatter is exposed"
    return f"Reduce-scatters were exposed for {_at_most(steps['exposed_ns'])}"


def _at_most(times: pd.Series) -> str:
    return f"{ms(int(times.max()))} at most in a rank's step"


def scatters_exposed(scatters: pd.DataFrame, exposed: pd.DataFrame) -> str | None:
    """How much of a step's reduce-scatters is exposed; None without any.

    Takes rows of `analyses.scatters` and of `overlaplab.exposed` about one rank and step.
    """
    timed = scatters.dropna(subset=["start_ns", "end_ns"])
    if timed.empty:
        return None
    took = int((timed["end_ns"] - timed["start_ns"]).sum())
    scatter_rows = exposed[exposed["kind"] == "reduce_scatter"]
    bare = int(scatter_rows["exposed_ns"].sum())
    if bare == 0:
        return f"Of {ms(took)} of reduce-scatters nothing is exposed."
    worst = scatter_rows.groupby("what")["exposed_ns"].sum()
    most = f", most of it of {worst.idxmax()} ({ms(int(worst.max()))})" if len(worst) > 1 else ""
    return f"Of {ms(took)} of reduce-scatters {ms(bare)} is exposed ({percent(bare, took)} of their time){most}."
