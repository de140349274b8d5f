"""Which step of which rank to look at first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

__all__ = ["rows_of", "worst_step"]


def worst_step(table: pd.DataFrame) -> dict[str, Any]:
    """Out of `overlaplab.summary`'s rows, one or more, that of a median step of the rank most exposed.

    The rank has most exposed communication per step, the first of several; of its steps it is the one in the middle by
    exposed communication (of an even number the higher), so that it stands for the others and can be looked at.
    """
    means = table.groupby("rank", dropna=False, sort=False)["exposed_comm_ns"].mean()
    rank = means.index[int(means.to_numpy(dtype="float64").argmax())]
    own = table[table["rank"].isna() if pd.isna(rank) else table["rank"] == rank]
    own = own.sort_values("exposed_comm_ns", ascending=False, kind="stable")
    row = own.iloc[[(len(own) - 1) // 2]].to_dict("records")[0]
    return {str(name): value for name, value in row.items()}


def rows_of(table: pd.DataFrame, window: Mapping[str, Any]) -> pd.DataFrame:
    """A table's rows of the rank and step of a row of `overlaplab.summary`; null stands for null."""
    keep = pd.Series(True, index=table.index)
    for name in ("rank", "step"):
        keep &= table[name].isna() if pd.isna(window[name]) else (table[name] == window[name]).fillna(False)
    return table[keep.to_numpy(dtype=bool)]
