"""What prefetching may hold, and what of the gradients' reduce-scatters is exposed."""

from __future__ import annotations

import pandas as pd

from overlaplab.words import count, ms, percent, size


def held_limit(units: int, num_bytes: int) -> str:
    """The name of the line at what a prefetch may hold: so many units, so many bytes."""
    return f"prefetch {units - 1} may hold {count(units, 'unit')}: {size(num_bytes)}"


def gather_waits_title(steps: pd.DataFrame) -> str:
    """In which rank's step compute waited longest for gathers: rows of `schedule_steps` whose wait is known."""
    if steps.empty:
        return "How long compute waited for gathers is unknown"
    worst = steps.iloc[int(steps["wait_ns"].astype("int64").to_numpy().argmax())]
    where = f"on rank {worst['rank']} in step {worst['step']}"
    return f"Compute waited longest for gathers {where}: {ms(int(worst['wait_ns']))}"


def scatters_exposed(scatters: pd.DataFrame, exposed: pd.DataFrame) -> str | None:
    """How much of a step's reduce-scatters is exposed; None without any.

    Takes rows of `analyses.scatters` and of `overlaplab.exposed` about one rank and step.
    """
    known = scatters.dropna(subset=["start_ns", "end_ns"])
    if known.empty:
        return None
    took = int((known["end_ns"] - known["start_ns"]).sum())
    own = exposed[exposed["kind"] == "reduce_scatter"]
    bare = int(own["exposed_ns"].sum())
    if bare == 0:
        return f"Of {ms(took)} of reduce-scatters nothing is exposed."
    worst = own.groupby("what")["exposed_ns"].sum()
    most = f", most of it of {worst.idxmax()} ({ms(int(worst.max()))})" if len(worst) > 1 else ""
    return f"Of {ms(took)} of reduce-scatters {ms(bare)} is exposed ({percent(bare, took)}){most}."
