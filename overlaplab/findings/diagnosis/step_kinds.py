"""Kinds of steps in words: how often each comes, and what it costs."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses.worst import damaged_steps, without_outliers, without_steps
from overlaplab.evidence.step_kinds import kind_period
from overlaplab.findings.thresholds import ALIKE_KINDS, LITTLE_GAIN, MAJORITY, MOST_STEPS
from overlaplab.words import count, ms, numbers_named, shorten

_PHASES = {
    "before": "work before the forward pass takes",
    "forward": "forward passes take",
    "backward": "backward passes take",
    "optimizer": "optimizer steps take",
    "between": "work between the passes takes",
    "kernels": "kernels take",
    "copies": "copies take",
    "pause": "the device is idle while its host does nothing that is recorded, for",
    "launching": "the device is idle while its host launches, for",
}


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


def kinds_finding(table: pd.DataFrame, phases: pd.DataFrame | None = None) -> str | None:
    """Name the kinds of steps in rows of `overlaplab.summary`, and what each costs in the mean over ranks and
    steps; None where there is one, or all cost as much. With rows of `analyses.kind_phases`, what a longer kind does.

    Kinds of a single step that is much unlike the others are outliers, see `outliers_finding`.
    """
    rows = without_outliers(without_steps(table, damaged_steps(table)))
    if "step_kind" not in rows or rows["step_kind"].nunique() < 2:
        return None
    means = rows.groupby("step_kind")[["span_ns", "exposed_comm_ns"]].mean()
    usual_ns = float(means["span_ns"].iloc[0])
    if (means.max() - means.min()).max() <= ALIKE_KINDS * rows["span_ns"].mean():
        return None
    parts, all_known, longer = [], True, ""
    for kind, kind_rows in rows.groupby("step_kind"):
        numbers = sorted(map(int, kind_rows["step"].unique()))
        often = kind_name(rows, numbers[0])
        named = f" ({numbers_named(numbers, last=' and ')})" if len(numbers) <= MOST_STEPS else ""
        span, exposed = (float(kind_rows[name].mean()) for name in ("span_ns", "exposed_comm_ns"))
        is_known = often.startswith("one step in") or _fills(rows, kind_rows)
        all_known &= is_known
        parts.append(f"{often}{named} with {ms(span)}, {ms(exposed)} of it exposed")
        if phases is not None:
            longer += _why_longer(often, phases[phases["step_kind"] == kind], span - usual_ns, usual_ns)
    mean = float(rows["span_ns"].mean())
    unknown = "" if all_known else " How often each kind comes is not known."
    return f"Its steps are of {len(parts)} kinds: {'; '.join(parts)}. A mean step takes {ms(mean)}.{unknown}{longer}"


def _why_longer(often: str, phases: pd.DataFrame, longer_ns: float, usual_ns: float) -> str:
    """The phase that most of the time goes into by which steps of a kind are longer than usual, as a sentence."""
    if phases.empty:
        return ""
    first = phases.to_dict("records")[0]
    own_ns, others_ns = int(first["own_ns"]), int(first["others_ns"])
    if own_ns - others_ns < max(MAJORITY * longer_ns, LITTLE_GAIN * usual_ns):
        return ""
    words = _PHASES[first["phase"]] if pd.isna(first["what"]) else f"{shorten(str(first['what']), 40)} takes"
    took, took_others = (
        f"{ms(ns)}" + (f" ({number:.3g} of them)" if number > 1 else "")
        for ns, number in ((own_ns, first["own"]), (others_ns, first["others"]))
    )
    beside = f", in the others {took_others}" if others_ns else ""
    return f" In {often}, {words} {took}{beside}."


def _fills(rows: pd.DataFrame, kind_rows: pd.DataFrame) -> bool:
    """Whether all other kinds come periodically, so that this one has the rest."""
    others = [kind for kind in rows["step_kind"].unique() if kind not in set(kind_rows["step_kind"])]
    steps = sorted(rows["step"].dropna().unique())
    of_others = [sorted(rows.loc[rows["step_kind"] == kind, "step"].unique()) for kind in others]
    return all(kind_period(numbers, steps) is not None for numbers in of_others)
