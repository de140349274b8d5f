"""Kinds of steps in words: how often each comes, and what it costs."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses.worst import damaged_steps, without_outliers, without_steps
from overlaplab.evidence.step_kinds import kind_period
from overlaplab.findings.thresholds import ALIKE_KINDS, MOST_STEPS
from overlaplab.words import count, ms, numbers_named


def steps_of_kind(table: pd.DataFrame, step: int | None) -> pd.DataFrame:
    """The rows of `overlaplab.summary` whose steps are of the same kind as this one."""
    if "step_kind" not in table or step is None:
        return table
    kinds = table.loc[(table["step"] == step).fillna(False).to_numpy(dtype=bool), "step_kind"].unique()
    return table[table["step_kind"].isin(kinds)]


def kind_name(table: pd.DataFrame, step: int | None) -> str:
    """How often steps of the same kind as this one come: `one step in 4`; empty where all steps are of one kind."""
    kind_rows = steps_of_kind(table, step)
    numbers, every = sorted(kind_rows["step"].dropna().unique()), sorted(table["step"].dropna().unique())
    if step is None or len(numbers) == len(every):
        return ""
    period = kind_period(numbers, every)
    return f"{len(numbers)} of {count(len(every), 'step')}" if period is None else f"one step in {period}"


def kinds_finding(table: pd.DataFrame) -> str | None:
    """Name the kinds of steps in rows of `overlaplab.summary`, and what each costs in the mean over ranks and
    steps; None where there is one, or all cost as much.

    Kinds of a single step that is much unlike the others are outliers, see `outliers_finding`.
    """
    rows = without_outliers(without_steps(table, damaged_steps(table)))
    if "step_kind" not in rows or rows["step_kind"].nunique() < 2:
        return None
    means = rows.groupby("step_kind")[["span_ns", "exposed_comm_ns"]].mean()
    if (means.max() - means.min()).max() <= ALIKE_KINDS * rows["span_ns"].mean():
        return None
    parts, all_known = [], True
    for _, kind_rows in rows.groupby("step_kind"):
        numbers = sorted(map(int, kind_rows["step"].unique()))
        often = kind_name(rows, numbers[0])
        named = f" ({numbers_named(numbers, last=' and ')})" if len(numbers) <= MOST_STEPS else ""
        span, exposed = (float(kind_rows[name].mean()) for name in ("span_ns", "exposed_comm_ns"))
        is_known = often.startswith("one step in") or _fills(rows, kind_rows)
        all_known &= is_known
        parts.append(f"{often}{named} with {ms(span)}, {ms(exposed)} of it exposed")
    mean = float(rows["span_ns"].mean())
    unknown = "" if all_known else " How often each kind comes is not known."
    return f"Its steps are of {len(parts)} kinds: {'; '.join(parts)}. A mean step takes {ms(mean)}.{unknown}"


def _fills(rows: pd.DataFrame, kind_rows: pd.DataFrame) -> bool:
    """Whether all other kinds come periodically, so that this one has the rest."""
    others = [kind for kind in rows["step_kind"].unique() if kind not in set(kind_rows["step_kind"])]
    steps = sorted(rows["step"].dropna().unique())
    of_others = [sorted(rows.loc[rows["step_kind"] == kind, "step"].unique()) for kind in others]
    return all(kind_period(numbers, steps) is not None for numbers in of_others)
