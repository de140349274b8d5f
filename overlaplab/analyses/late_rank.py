"""The rank that the others wait for: in how many steps it is that one, and what it does for longer than they."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from overlaplab.analyses.collectives import collectives
from overlaplab.analyses.phases import phase_times
from overlaplab.events import (
    Run,
    Trace,
    WorkKind,
    counting_as,
    empty_table,
    once_per_run,
    outermost,
    rule_of,
    step_windows,
    windows_at,
)
from overlaplab.evidence.labels import span_intervals
from overlaplab.evidence.passes import PASSES, pass_labels
from overlaplab.intervals import lengths_within
from overlaplab.vocabulary import Rule

MIN_LATE_SHARE = 0.8
"""A rank that is the latest in fewer than 80 % of steps is not late as such."""

_MAX_APART = 0.01
"""Ranks whose numbers of kernels or operators differ by at most 1 % run the same ones."""
_MUCH_LONGER = 1.1
"""Passes whose times on two ranks differ by less have inputs of equal length."""
_NAME_COLUMNS = {"name": "object", "own_ns": "int64", "others_ns": "int64", "own": "float64", "others": "float64"}
_PHASE_COLUMNS = {"phase": "object", "what": "object", "own_ns": "int64", "others_ns": "int64"}


@once_per_run
def late_steps(run: Run) -> pd.DataFrame:
    """One row per step in which ranks waited for others, with the rank that was waited for longest in it.

    Columns: `step`, `rank` (Int64), `wait_ns` (int64: of all others, whether or not they computed meanwhile).
    """
    table = collectives(run)
    matched = table[table["last_rank"].notna() & ~table["within_clock_error"].fillna(True).astype(bool)]
    others = matched[matched["rank"] != matched["last_rank"]]
    waits = others.groupby(["step", "last_rank"])["wait_ns"].sum().reset_index()
    waits = waits[waits["wait_ns"] > 0].sort_values("wait_ns", ascending=False, kind="stable")
    rows = waits.drop_duplicates("step").sort_values("step").rename(columns={"last_rank": "rank"})
    return rows.astype({"step": "Int64", "rank": "Int64", "wait_ns": "int64"}).reset_index(drop=True)


def is_chronic(steps: pd.DataFrame, recorded: int) -> bool:
    """Whether one rank is late as a rule, in rows of `late_steps` of `recorded` steps.

    A rank is the latest in 80 % of them; or `latest_rank` has 80 % of all wait, and, its longest wait left out, still
    half of the rest. True of at most one step, or if none is late.
    """
    often = steps["rank"].value_counts()
    if recorded <= 1 or often.empty or often.max() >= MIN_LATE_SHARE * recorded:
        return True
    of_rank = steps.loc[steps["rank"] == latest_rank(steps), "wait_ns"]
    total, for_rank, longest = int(steps["wait_ns"].sum()), int(of_rank.sum()), int(of_rank.max())
    others, others_for_rank = total - longest, for_rank - longest
    return for_rank >= MIN_LATE_SHARE * total and 0 < others <= 2 * others_for_rank


def latest_rank(steps: pd.DataFrame) -> int | None:
    """The rank that was waited for longest, in rows of `late_steps`; None where none was."""
    sums = steps.groupby("rank")["wait_ns"].sum()
    return None if sums.empty else int(str(sums.idxmax()))


def late_rank_phases(run: Run, rank: int) -> pd.DataFrame:
    """What a rank does in a mean step, beside the others in the median, by phase; empty where that is unknown.

    Columns: `phase`, `what` (the name of what the host does outside of passes, see `evidence.host_work`;
    else null), `own_ns`, `others_ns` (both int64: without exposed communication). The largest difference comes first;
    last come phases in which another rank differs by more than twice as much. Phases are those of `phases.phase_times`,
    but `kernels` is called `same_kernels` where the others run as many.
    """
    rules = {rule_of(trace) for trace in run.traces}
    if len(run.traces) < 2 or rules not in ({Rule.CPU}, {Rule.GPU}):
        return empty_table(_PHASE_COLUMNS)
    spent = {trace.rank: _mean_times(trace) for trace in run.traces}
    if rank not in spent or not all(spent.values()):
        return empty_table(_PHASE_COLUMNS)
    same = Rule.GPU in rules and _has_as_many_kernels(run, rank)
    rows, is_anothers = [], []
    for phase, what in dict.fromkeys(key for each in spent.values() for key in each):
        others = [each.get((phase, what), 0) for other, each in spent.items() if other != rank]
        named = "same_kernels" if phase == "kernels" and same else phase
        own_ns, others_ns = spent[rank].get((phase, what), 0), int(np.median(others))
        rows.append((named, what, own_ns, others_ns))
        is_anothers.append(max(others) - others_ns > 2 * (own_ns - others_ns) > 0)
    table = pd.DataFrame(rows, columns=list(_PHASE_COLUMNS)).astype(_PHASE_COLUMNS)
    return _sort_by_excess(table, is_anothers)


def computes_longer(run: Run, rank: int) -> bool:
    """Whether the rank computes in as many operators as the others, for a tenth longer, and does nothing else for so
    much longer, as `late_rank_phases` tells: its inputs are larger, or its processor is slower.
    """
    phases = late_rank_phases(run, rank)
    if phases.empty or phases["own_ns"].iloc[0] < _MUCH_LONGER * phases["others_ns"].iloc[0]:
        return False
    names = late_rank_names(run, rank, phases["phase"].iloc[0])  # empty where nothing computes in the phase
    number, others = float(names["own"].sum()), float(names["others"].sum())
    return others > 0 and have_equal_counts(number, others)


def have_equal_counts(number: float, others: float) -> bool:
    """Whether a rank runs as many kernels or operators as the others, but for one in a hundred."""
    return abs(number - others) <= _MAX_APART * others


def late_rank_names(run: Run, rank: int, phase: str) -> pd.DataFrame:
    """What a rank computes in a phase of `late_rank_phases`, beside the others in the median, by name.

    Columns: `name` (of a kernel; on CPUs of an operator that no other one contains), `own_ns`, `others_ns` (both int64:
    how long they take in a mean step), `own`, `others` (float64: how many there are). The largest difference comes
    first. Empty of phases in which nothing computes: of all but passes, `kernels` and `same_kernels`.
    """
    if phase not in (*PASSES, "kernels", "same_kernels") or len(run.traces) < 2:
        return empty_table(_NAME_COLUMNS)
    by_rank = {trace.rank: _computed_by_name(trace, phase) for trace in run.traces}
    took = pd.DataFrame({each: table["took_ns"] for each, table in by_rank.items()}).fillna(0)
    number = pd.DataFrame({each: table["number"] for each, table in by_rank.items()}).fillna(0)
    table = pd.DataFrame(
        {
            "name": took.index.astype(object),
            "own_ns": took[rank].to_numpy(),
            "others_ns": took.drop(columns=[rank]).median(axis=1).to_numpy(),
            "own": number[rank].to_numpy(),
            "others": number.drop(columns=[rank]).median(axis=1).to_numpy(),
        }
    )
    return _sort_by_excess(table).round({"own_ns": 0, "others_ns": 0}).astype(_NAME_COLUMNS)


def _sort_by_excess(table: pd.DataFrame, last: Sequence[bool] | bool = False) -> pd.DataFrame:
    """By how much longer the rank takes than the others, the largest difference first; rows of `last` at the end."""
    order = table.assign(last=last, ns=table["others_ns"] - table["own_ns"]).sort_values(["last", "ns"], kind="stable")
    return table.loc[order.index].reset_index(drop=True)


def _computed_by_name(trace: Trace, phase: str) -> pd.DataFrame:
    """By name `took_ns` and `number` in a mean step."""
    windows, events = step_windows(trace), outermost(trace, WorkKind.COMPUTE)
    starts = events["start_ns"].to_numpy()
    inside = windows_at(windows, starts) >= 0
    if phase in PASSES:
        passes = span_intervals(label for label in pass_labels(trace) if label.word == phase)
        inside &= lengths_within(passes, starts, starts + 1) > 0
    names = trace.events["name"].astype(object).to_numpy()[events["event"].to_numpy()[inside]]
    took = (events["end_ns"] - events["start_ns"]).to_numpy()[inside]
    sums = pd.Series(took).groupby(names).agg(["sum", "size"]) / max(len(windows), 1)
    return sums.rename(columns={"sum": "took_ns", "size": "number"})


def _mean_times(trace: Trace) -> dict[tuple[str, str | None], int]:
    """By phase and name how long a rank works in a mean step, in ns."""
    return {key: int(times.sum()) // len(times) for key, times in phase_times(trace).items()}


def _has_as_many_kernels(run: Run, rank: int) -> bool:
    """Whether a rank computes in as many kernels as the others do in the median."""
    counts = {trace.rank: int(counting_as(trace, WorkKind.COMPUTE).sum()) for trace in run.traces}
    others = float(np.median([number for other, number in counts.items() if other != rank]))
    return have_equal_counts(counts[rank], others)
