"""The step and rank that speak for a run: the one home of every default, and of what is left out of means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.intervals import Mask

SPREADS = 5
"""An outlier lies further from the median step than this many times the steps' spread: 1.4826 × the median absolute
deviation, which of normal figures is their standard deviation."""
MUCH_LONGER = 0.2
"""And further than this share of the median step time, by its length or by its exposed time."""
MIN_EXPOSED_SHARE = 0.03
"""With exposed communication below 3 % of all steps' time, the kind of steps that takes most time speaks."""
_FEWEST = 3
"""The fewest steps among which one can be an outlier: of two nobody knows which one is the exception."""


def worst_step(table: pd.DataFrame, rank: int | None = None, step: int | None = None) -> dict[str, Any]:
    """The row of a median step of the most exposed rank, from one or more rows of `overlaplab.summary`.

    Steps of the `costliest_kind` speak. The rank is that with the most exposed communication per step, on ties the
    first. Of its steps it is the median one by exposed communication (of an even number the higher), so that it is
    typical. Damaged steps and `outlier_steps` do not count, unless there are no others. A given rank or step, if the
    table has it, is taken as given.
    """
    kind = costliest_kind(table)
    table = without_outliers(drop_damaged(_rows_with(_rows_with(table, "rank", rank), "step", step)))
    table = _rows_with(table, "step_kind", kind)
    means = table.groupby("rank", dropna=False, sort=False)["exposed_comm_ns"].mean()
    chosen = means.index[int(means.to_numpy(dtype="float64").argmax())]
    of_rank = rows_of(table, {"rank": chosen}).sort_values("exposed_comm_ns", ascending=False, kind="stable")
    row = of_rank.iloc[[(len(of_rank) - 1) // 2]].to_dict("records")[0]
    return {str(name): value for name, value in row.items()}


def costliest_kind(table: pd.DataFrame) -> int | None:
    """The kind of steps, in rows of `overlaplab.summary`, that costs a training most; None where all are of one.

    That is the kind with the most exposed communication in all its steps, or, where hardly any is exposed, the one that
    takes most time. A kind of a single step does not count unless there is no other: how often it comes is unknown.
    """
    rows = drop_damaged(table)
    if "step_kind" not in rows or rows["step_kind"].nunique() < 2:
        return None
    often = rows.groupby("step_kind")["step"].nunique()
    rows = rows[rows["step_kind"].isin(often.index[often > min(1, often.max() - 1)])]
    sums = rows.groupby("step_kind")[["exposed_comm_ns", "span_ns"]].sum()
    exposed = sums["exposed_comm_ns"].sum() > MIN_EXPOSED_SHARE * sums["span_ns"].sum()
    return int(str(sums["exposed_comm_ns" if exposed else "span_ns"].idxmax()))


def outlier_steps(table: pd.DataFrame) -> tuple[int, ...]:
    """The numbers of the steps that are unlike the others of their kind, from rows of `overlaplab.summary`; none of
    fewer than three. A kind of a single step is compared with all others.

    A step's figures are the longest time and the most exposed time of any rank in it. It is an outlier if one of them
    lies further from the median of those steps than `SPREADS` times their spread, and than `MUCH_LONGER` of the median
    step time.
    """
    return tuple(int(step) for step in _outlier_distances(table).index)


def outlier_rows(table: pd.DataFrame) -> pd.DataFrame:
    """For each of `outlier_steps` the row of the rank that was exposed most in it, in order of steps.

    Takes rows of `overlaplab.summary`, and adds `away_ns` (int64): how far the step is from the median one, by its
    length or its exposed time, whichever is further.
    """
    away = _outlier_distances(table)
    rows = table[table["step"].isin(away.index).to_numpy(dtype=bool)]
    order = ["step", "exposed_comm_ns", "span_ns"]
    rows = rows.sort_values(order, ascending=[True, False, False], kind="stable").drop_duplicates("step")
    return rows.assign(away_ns=away.to_numpy(np.int64)).reset_index(drop=True)


def _outlier_distances(table: pd.DataFrame) -> pd.Series:
    """How far each outlier step is from the median step of its kind, in ns, by its number."""
    rows = drop_damaged(table)
    rows = rows[rows["step"].notna()]
    by = rows.groupby("step")
    steps = by[["span_ns", "exposed_comm_ns"]].max()
    kinds = by["step_kind"].first() if "step_kind" in rows else pd.Series(0, index=steps.index)
    unlike = [pd.Series(dtype="float64")]
    for _, steps_of_kind in kinds.groupby(kinds):
        away = _unlike_most(steps if len(steps_of_kind) == 1 else steps.loc[steps_of_kind.index])
        unlike.append(away[away.index.isin(steps_of_kind.index)])
    outliers: pd.Series = pd.concat([each for each in unlike if len(each)] or unlike[:1]).sort_index()
    return outliers


def _unlike_most(steps: pd.DataFrame) -> pd.Series:
    """How far each outlier among these steps is from their median, in ns."""
    if len(steps) < _FEWEST:
        return pd.Series(dtype="float64")
    enough = MUCH_LONGER * float(steps["span_ns"].median())
    away = (steps - steps.median()).abs().max(axis=1)
    return away[_is_far(steps["span_ns"], enough) | _is_far(steps["exposed_comm_ns"], enough)]


def drop_damaged(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `overlaplab.summary` without `damaged_steps`."""
    return without_steps(table, damaged_steps(table))


def damaged_steps(table: pd.DataFrame) -> tuple[int, ...]:
    """The numbers of the steps that are damaged on any rank, from rows of `overlaplab.summary`; none, if all are."""
    steps = {*table.loc[table["damaged"], "step"].dropna()} if "damaged" in table else set()
    return tuple(sorted(map(int, steps))) if len(steps) < table["step"].nunique(dropna=False) else ()


def without_outliers(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `overlaplab.summary`, or of a table with its `rank` and `step`, without outlier steps."""
    return without_steps(table, outlier_steps(table))


def without_steps(table: pd.DataFrame, steps: tuple[int, ...]) -> pd.DataFrame:
    """The rows of all other steps."""
    return table[~table["step"].isin(steps).to_numpy(dtype=bool)] if steps else table


def rows_of(table: pd.DataFrame, window: Mapping[str, Any]) -> pd.DataFrame:
    """A table's rows for the rank and step of a row of `overlaplab.summary`, or one of both; null matches null."""
    keep = pd.Series(True, index=table.index)
    for name in (name for name in ("rank", "step") if name in window):
        keep &= table[name].isna() if pd.isna(window[name]) else (table[name] == window[name]).fillna(False)
    return table[keep.to_numpy(dtype=bool)]


def _is_far(figures: pd.Series, enough: float) -> Mask:
    values = figures.to_numpy(dtype="float64")
    away = np.abs(values - np.median(values))
    return np.asarray((away > SPREADS * 1.4826 * np.median(away)) & (away > enough))


def _rows_with(table: pd.DataFrame, name: str, value: int | None) -> pd.DataFrame:
    """The rows with this value; all where none has it, and for None."""
    rows = table if value is None else table[(table[name] == value).fillna(False).to_numpy(dtype=bool)]
    return rows if len(rows) else table
