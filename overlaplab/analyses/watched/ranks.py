"""A watched training's ranks side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from overlaplab.analyses.watched.steps import EXPOSED, rank_parts

_OF_STEPS = ("span_ns", "data_ns")
_OF_BURSTS = ("forward_ns", "backward_ns", "exposed_comm_ns", *EXPOSED)
_MEDIANS = [*_OF_STEPS, *_OF_BURSTS]
COLUMNS = ("rank", "steps", "last_step", *_MEDIANS, "late_share", "late_median_ns")
"""The columns of `watched_ranks`, in order."""


def watched_ranks(steps: pd.DataFrame, bursts: pd.DataFrame, late: pd.DataFrame) -> pd.DataFrame:
    """A row per rank, from the tables of `watched_steps`, `watched_bursts` and `watched_late`.

    Columns: `rank`, `steps`, `last_step`, medians over its steps without a profiler of `span_ns` and `data_ns` and,
    over the measured ones, of `forward_ns`, `backward_ns`, `exposed_comm_ns`, `exposed_gradients_ns`,
    `exposed_gathers_ns` and `exposed_others_ns`; `late_share` (in how many of the measured steps that tell who was last
    it was late) and `late_median_ns` (how much, where it was). Null where unknown.
    """
    rows: list[dict[str, Any]] = []
    undisturbed = bursts[~bursts["profiled"]]
    for rank, part in rank_parts(steps):
        of_rank = steps.iloc[part]
        profiled = of_rank["profiled"].to_numpy()
        steps_of_rank = of_rank[~profiled] if profiled.any() else of_rank
        row = {"rank": rank, "steps": len(of_rank), "last_step": of_rank["step"].max()}
        row |= {column: _median(steps_of_rank[column]) for column in _OF_STEPS}
        bursts_of_rank = undisturbed[undisturbed["rank"] == rank]
        row |= {column: _median(bursts_of_rank[column]) for column in _OF_BURSTS}
        rows.append(row)
    table = pd.DataFrame(rows, columns=list(COLUMNS[:-2]))
    table[_MEDIANS] = table[_MEDIANS].astype("Float64").round().astype("Int64")
    telling = late["step"].nunique()
    by_rank = late[late["late"]].groupby("late_rank")
    times = by_rank["step"].nunique().reindex(table["rank"], fill_value=0).to_numpy()
    table["late_share"] = pd.array(times / telling if telling else [None] * len(table), dtype="Float64")
    medians = by_rank["late_ns"].median().reindex(table["rank"]).reset_index(drop=True)
    table["late_median_ns"] = medians.astype("Float64").round().astype("Int64")
    return table


def _median(values: pd.Series[Any]) -> float | None:
    """The median of what is known; None where nothing is."""
    numbers = values.to_numpy() if values.dtype == np.int64 else values.dropna().to_numpy(np.int64)
    return float(np.median(numbers)) if len(numbers) else None
