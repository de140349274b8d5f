"""Kinds of steps in words: how often each comes, and what it costs."""

from __future__ import annotations

from collections.abc import Hashable

import pandas as pd

from overlaplab.analyses.worst import damaged_steps, without_outliers, without_steps
from overlaplab.evidence.step_kinds import kind_period
from overlaplab.findings.thresholds import ALIKE_KINDS, LITTLE_GAIN, MAJORITY, MOST_STEPS
from overlaplab.words import count, ms, numbers_named, rank_word, shorten

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


def kinds_finding(table: pd.DataFrame, phases: pd.DataFrame) -> str | None:
    """Name the kinds of steps in rows of `overlaplab.summary`, what each costs in the mean over ranks and steps, and
    what takes longer than in the shortest kind, by rows of `analyses.step_phases`; None where there is one, or all cost
    as much.

    Kinds of a single step that is much unlike the others are outliers, see `outliers_finding`.
    """
    rows = without_outliers(without_steps(table, damaged_steps(table)))
    if "step_kind" not in rows or rows["step_kind"].nunique() < 2:
        return None
    means = rows.groupby("step_kind")[["span_ns", "exposed_comm_ns"]].mean()
    if (means.max() - means.min()).max() <= ALIKE_KINDS * rows["span_ns"].mean():
        return None
    parts, all_known = [], True
    names: dict[Hashable, tuple[str, str]] = {}
    for kind, kind_rows in rows.groupby("step_kind"):
        numbers = sorted(map(int, kind_rows["step"].unique()))
        how_often = kind_name(rows, numbers[0])
        named = f" ({numbers_named(numbers, last=' and ')})" if len(numbers) <= MOST_STEPS else ""
        span, exposed = (float(kind_rows[name].mean()) for name in ("span_ns", "exposed_comm_ns"))
        is_known = how_often.startswith("one step in") or _is_remainder(rows, kind_rows)
        all_known &= is_known
        names[kind] = how_often, how_often + named
        parts.append(f"{how_often}{named} with {ms(span)}, {ms(exposed)} of it exposed")
    mean = float(rows["span_ns"].mean())
    unknown = "" if all_known else " How often each kind comes is not known."
    longer = _longer_kinds(rows, phases, names)
    return f"Its steps are of {len(parts)} kinds: {'; '.join(parts)}. A mean step takes {ms(mean)}.{unknown}{longer}"


def _longer_kinds(rows: pd.DataFrame, phases: pd.DataFrame, names: dict[Hashable, tuple[str, str]]) -> str:
    """What takes longer in each kind of steps than in the shortest; `names`: a kind's name, and that with its steps."""
    spans_ns = rows.groupby("step_kind")["span_ns"].mean().to_dict()
    shortest = min(spans_ns, key=lambda kind: spans_ns[kind])
    are_unique = len({how_often for how_often, _ in names.values()}) == len(names)
    named = {kind: how_often if are_unique else with_steps for kind, (how_often, with_steps) in names.items()}
    others = "other steps" if len(names) == 2 else named[shortest]
    took = _phases_by_kind(rows, phases)
    of_shortest = took[took["step_kind"] == shortest]
    sentences = ""
    for kind in spans_ns:
        of_kind = took[took["step_kind"] == kind]
        if kind != shortest and len(of_kind) and len(of_shortest):
            both = of_kind.merge(of_shortest, on=_PHASE, how="left", suffixes=("", "_others"))
            least_ns = max(MAJORITY * (spans_ns[kind] - spans_ns[shortest]), LITTLE_GAIN * spans_ns[shortest])
            sentences += _why_longer(named[kind], others, both.fillna({"took_ns_others": 0}), least_ns)
    return sentences


_PHASE = ["rank", "phase", "what"]


def _phases_by_kind(rows: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """How long each rank's phases take, and how many passes they have, in a mean step of each kind."""
    of_kind = phases.merge(rows[["rank", "step", "step_kind"]], on=["rank", "step"])
    of_kind["what"] = of_kind["what"].fillna("")
    by_kind = of_kind.groupby([*_PHASE, "step_kind"], dropna=False, sort=False)
    return by_kind[["took_ns", "number"]].mean().reset_index()


def _why_longer(how_often: str, others: str, phases: pd.DataFrame, least_ns: float) -> str:
    """A sentence on the phase that exceeds that of the shortest kind by most, and on its rank if it does so on that one
    alone; empty where by less than `least_ns`. `phases`: `_phases_by_kind`, beside those of the shortest: `…_others`.
    """
    phases = phases.assign(more_ns=phases["took_ns"] - phases["took_ns_others"])
    phases = phases.sort_values("more_ns", ascending=False, kind="stable")
    first = phases.iloc[0]
    if first["more_ns"] < least_ns:
        return ""
    alike = phases[(phases["phase"] == first["phase"]) & (phases["what"] == first["what"])]
    elsewhere_ns = alike["more_ns"].iloc[1:].max() if len(alike) > 1 else 0
    is_one_rank = phases["rank"].nunique() > 1 and elsewhere_ns < MAJORITY * first["more_ns"]
    words = f"{shorten(first['what'], 40)} takes" if first["what"] else _PHASES[first["phase"]]
    where = f" on rank {rank_word(first['rank'])}" if is_one_rank else ""
    times, times_others = (_time(first[f"took_ns{suffix}"], first[f"number{suffix}"]) for suffix in ("", "_others"))
    beside = f", {times_others} in {others}" if first["took_ns_others"] else ""
    return f" In {how_often}, {words} {times}{where}{beside}."


def _time(took_ns: float, number: float) -> str:
    return ms(took_ns) + (f" ({number:.3g} of them)" if number > 1 else "")


def _is_remainder(rows: pd.DataFrame, kind_rows: pd.DataFrame) -> bool:
    """Whether all other kinds come periodically, so that this one has the rest."""
    others = [kind for kind in rows["step_kind"].unique() if kind not in set(kind_rows["step_kind"])]
    steps = sorted(rows["step"].dropna().unique())
    of_others = [sorted(rows.loc[rows["step_kind"] == kind, "step"].unique()) for kind in others]
    return all(kind_period(numbers, steps) is not None for numbers in of_others)
