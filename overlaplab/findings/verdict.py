"""The verdict on a run in a few sentences, each percentage with its denominator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from overlaplab.analyses.exposed import Cause
from overlaplab.analyses.worst import rows_of, worst_step
from overlaplab.findings.bound import bound_finding
from overlaplab.findings.thresholds import IDLE_OVER_EXPOSED, LITTLE_EXPOSED, MAJORITY, MOST_RANKS, MUCH
from overlaplab.findings.unseen import OTHER_RANKS, Unseen, started_late
from overlaplab.manifest import Manifest
from overlaplab.words import count, ms, percent, rank_word, shorten


def verdict(
    table: pd.DataFrame,
    manifest: Manifest | None,
    causes: pd.DataFrame | None = None,
    idled: pd.DataFrame | None = None,
    unseen: Unseen = OTHER_RANKS,
    bound: Mapping[str, Any] | None = None,
) -> str:
    """The summary in a few sentences.

    Takes rows of `overlaplab.summary`, and of `overlaplab.exposed` and `analyses.idle` for the same ranks and steps.
    The second shows which ranks were waited for, the third what the problem is if it is not communication. `unseen`:
    what the traces do not show. `bound`: the row of `simulate.bound` for the step that the verdict is about, if any.
    """
    if table.empty:
        return "Nothing in this run counts as compute, communication or memory: there is nothing to show."
    ranks = table["rank"].nunique(dropna=False)
    strategy = shorten(manifest.strategy or "Recorded loop") if manifest is not None else "Foreign traces"
    start = f"{strategy}, {count(ranks, 'rank')}, median step {ms(table['span_ns'].median())}"
    sentences = [
        f"{start}, {_worst(table, causes)}" if table["comm_ns"].any() else f"{start}. It has no communication."
    ]
    if table["comm_ns"].any():
        hidden, comm = int(table["overlapped_ns"].sum()), int(table["comm_ns"].sum())
        over = "" if len(table) == 1 else ", over all ranks and steps," if ranks > 1 else ", over all steps,"
        share = percent(hidden, comm)
        sentences.append(
            f"How much of communication is hidden is unknown: of low-latency DeepEP only the kernels that send and that"
            f" receive are seen ({share} of their and the others' time{over} is hidden), not the time between."
            if unseen.only_ends
            else f"{share} of communication time{over} is hidden."
        )
    if (late := _waited_for(worst_step(table), causes)) is not None and len(late):
        sentences.append(started_late(unseen, late.index[0]).strip())
    other = other_problem(table, causes, idled)
    if other is None and bound is not None:
        sentences.insert(1, bound_finding(bound, worst_step(table)) or "")
    sentences.append(other or "")
    return " ".join(filter(None, sentences))


def other_problem(table: pd.DataFrame, causes: pd.DataFrame | None, idled: pd.DataFrame | None) -> str | None:
    """What the problem is if it is not communication; None if it is communication, or if there is no problem.

    Takes the same tables as `verdict`. Communication is not the problem in two cases: if its exposed time, without
    pauses of compute that did not wait for it, is at most `LITTLE_EXPOSED` of the step time; or if idle time is more
    than `MUCH` of the step time and more than `IDLE_OVER_EXPOSED` times as long.
    """
    span = int(table["span_ns"].sum())
    exposed = int(table["exposed_comm_ns"].sum())
    gaps = 0 if causes is None else int(causes.loc[causes["cause"] == Cause.GAP, "exposed_ns"].sum())
    idle, memory = int(table["idle_ns"].sum()), int(table["memory_only_ns"].sum())
    cost = exposed - gaps
    if span == 0 or (cost > LITTLE_EXPOSED * span and not (idle > IDLE_OVER_EXPOSED * cost and idle > MUCH * span)):
        return None
    begin = "Communication is not the problem: "
    if not table["comm_ns"].any():
        begin = ""
    elif cost > LITTLE_EXPOSED * span:
        begin = f"Communication is not the first problem ({percent(cost, span)} of the step time is exposed): "
    if idle > MUCH * span:
        return f"{begin}{percent(idle, span)} of the step time is idle{_why_idle(idled)}."
    if memory > MUCH * span:
        return f"{begin}for {percent(memory, span)} of the step time nothing but copies run."
    return (
        f"{begin}for {percent(int(table['compute_ns'].sum()), span)} of the step time the ranks compute."
        if begin
        else None
    )


def _why_idle(idled: pd.DataFrame | None) -> str:
    if idled is None or not idled["idle_ns"].any():
        return ""
    whole = int(idled["idle_ns"].sum())
    host, kernel = int(idled["host_wait_ns"].sum()), int(idled["kernel_wait_ns"].sum())
    if host >= MAJORITY * whole:
        return ", since the host launches too slowly"
    if kernel >= MAJORITY * whole:
        return ", between kernels that are too short"
    return "; what ran next had been launched, and waited for something else"


def _worst(table: pd.DataFrame, causes: pd.DataFrame | None) -> str:
    """A median step of the worst rank: what was exposed, as wait and transfer."""
    row = worst_step(table)
    several = table["rank"].nunique(dropna=False) > 1
    where = f"{'worst rank' if several else 'rank'} {rank_word(row['rank'])}"
    if len(table) > 1 and pd.notna(row["step"]):
        where += f" (step {row['step']})"
    share = percent(row["exposed_comm_ns"], row["span_ns"])
    of = "step" if pd.notna(row["step"]) else "trace"
    exposed = f"{where}: {ms(row['exposed_comm_ns'])} exposed ({share} of its {of})"
    if row["exposed_comm_ns"] == 0:
        return f"{exposed}."
    if pd.isna(row["exposed_wait_ns"]):
        return f"{exposed}; how much of that is waiting for other ranks is unknown."
    wait, transfer = int(row["exposed_wait_ns"]), int(row["exposed_transfer_ns"])
    if wait == 0 or transfer == 0:
        return f"{exposed}, all of it {'transfer' if transfer else f'waiting{_for_whom(row, causes)}'}."
    return f"{exposed}: {_number(wait)} waiting{_for_whom(row, causes)}, {_number(transfer)} transfer."


def _number(ns: int) -> str:
    """A time in ms without the unit, which is already in the sentence."""
    return ms(ns).removesuffix(" ms")


def _waited_for(window: Mapping[str, Any], causes: pd.DataFrame | None) -> pd.Series | None:
    """For how long this rank and step waited for each late rank, the longest first."""
    if causes is None:
        return None
    rows = rows_of(causes, window)
    waits = rows[(rows["cause"] == Cause.STRAGGLER) & rows["late_rank"].notna()]
    return waits.groupby("late_rank")["exposed_ns"].sum().sort_values(ascending=False, kind="stable")


def _for_whom(window: Mapping[str, Any], causes: pd.DataFrame | None) -> str:
    """The ranks that came last, the one waited for longest first."""
    late = _waited_for(window, causes)
    if late is None or late.empty:
        return " for other ranks"
    if len(late) == 1:
        return f" for rank {late.index[0]}"
    named: list[Any] = [f"{_number(int(took))} for rank {rank}" for rank, took in late.head(MOST_RANKS).items()]
    return f" ({', '.join(named)}{', …' if len(late) > MOST_RANKS else ''})"
