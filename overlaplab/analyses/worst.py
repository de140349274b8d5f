"""Which step of which rank to look at first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd


def worst_step(table: pd.DataFrame) -> dict[str, Any]:
    """The row of a median step of the most exposed rank, from one or more rows of `overlaplab.summary`.

    That is the rank with the most exposed communication per step, on ties the first. Of its steps it is the median one
    by exposed communication (of an even number the higher), so that it is typical.
    """
    means = table.groupby("rank", dropna=False, sort=False)["exposed_comm_ns"].mean()
    rank = means.index[int(means.to_numpy(dtype="float64").argmax())]
    own = table[table["rank"].isna() if pd.isna(rank) else table["rank"] == rank]
    own = own.sort_values("exposed_comm_ns", ascending=False, kind="stable")
    row = own.iloc[[(len(own) - 1) // 2]].to_dict("records")[0]
    return {str(name): value for name, value in row.items()}


def rows_of(table: pd.DataFrame, window: Mapping[str, Any]) -> pd.DataFrame:
    """A table's rows for the rank and step of a row of `overlaplab.summary`; null matches null."""
    keep = pd.Series(True, index=table.index)
    for name in ("rank", "step"):
        keep &= table[name].isna() if pd.isna(window[name]) else (table[name] == window[name]).fillna(False)
    return table[keep.to_numpy(dtype=bool)]
