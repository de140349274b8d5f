"""What a step's problem is where it is not communication, and what to do about that."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses.idle import HostRole
from overlaplab.causes import Cause
from overlaplab.findings.thresholds import IDLE_OVER_EXPOSED, IDLE_PROBLEM_SHARE, LITTLE_EXPOSED, MAJORITY
from overlaplab.findings.windows import table_time
from overlaplab.words import percent

LEAVE_CORES = (
    "Leave the cores to the ranks: end other programs, or record fewer ranks. Until then no gain can be told from the"
    " machine's load."
)


def other_problem(
    table: pd.DataFrame, causes: pd.DataFrame | None, idle_rows: pd.DataFrame | None, host: HostRole = "launches"
) -> str | None:
    """What the problem is if it is not communication; None if it is communication, or if there is no problem.

    Takes rows of `overlaplab.summary`, of `overlaplab.exposed` and `analyses.idle` for the same ranks and steps, and
    what the host does. Communication is not the problem in two cases: if its exposed time, without pauses of compute
    that did not wait for it, is at most `LITTLE_EXPOSED` of the step time; or if idle time is more than
    `IDLE_PROBLEM_SHARE` of the step time and more than `IDLE_OVER_EXPOSED` times that exposed time.
    """
    span = int(table["span_ns"].sum())
    exposed = int(table["exposed_comm_ns"].sum())
    gaps = 0 if causes is None else int(causes.loc[causes["cause"] == Cause.GAP, "exposed_ns"].sum())
    idle, memory = int(table["idle_ns"].sum()), int(table["memory_only_ns"].sum())
    cost = exposed - gaps
    is_idle = idle > IDLE_OVER_EXPOSED * cost and idle > IDLE_PROBLEM_SHARE * span
    if span == 0 or (cost > LITTLE_EXPOSED * span and not is_idle):
        return None
    of_whole = f"of the {table_time(table)}"
    begin = "Communication is not the problem: "
    if not table["comm_ns"].any():
        begin = ""
    elif cost > LITTLE_EXPOSED * span:
        paused = f", {percent(gaps, span)} only because compute paused" if gaps else ""
        share = percent(exposed, span)
        begin = f"Communication is not the first problem ({share} {of_whole} is exposed{paused}): "
    if idle > IDLE_PROBLEM_SHARE * span:
        return f"{begin}{percent(idle, span)} {of_whole} is idle{why_idle(idle_rows, host)}."
    if memory > IDLE_PROBLEM_SHARE * span:
        return f"{begin}for {percent(memory, span)} {of_whole} only copies run."
    computing = percent(int(table["compute_ns"].sum()), span)
    return f"{begin}for {computing} {of_whole} the rank computes." if begin else None


def other_problem_advice(table: pd.DataFrame, idle_rows: pd.DataFrame | None, host: HostRole) -> str:
    """What to do where `other_problem` is not None; takes the same tables."""
    span = int(table["span_ns"].sum())
    idle, memory = int(table["idle_ns"].sum()), int(table["memory_only_ns"].sum())
    if memory > idle and memory > IDLE_PROBLEM_SHARE * span:
        return "Copies are the larger part: pin memory, copy asynchronously, or keep data on the device."
    if idle <= IDLE_PROBLEM_SHARE * span:
        return "What is left is computation: larger or fused kernels, lower precision, or more ranks."
    if waits_for_cores(idle_rows):
        return LEAVE_CORES
    if idle_rows is not None and idle_rows["host_wait_ns"].sum() >= MAJORITY * idle_rows["idle_ns"].sum():
        return _SLOW_HOST[host]
    return "Look at the timeline for what the idle device waits for: another stream, or an event."


def waits_for_cores(idle_rows: pd.DataFrame | None) -> bool:
    """Whether most idle time in rows of `analyses.idle` is that of operators that waited for a core."""
    if idle_rows is None or not idle_rows["idle_ns"].any():
        return False
    return bool(idle_rows["preempted_ns"].sum() >= MAJORITY * idle_rows["idle_ns"].sum())


_SLOW_HOST: dict[HostRole, str] = {
    "computes": "See on the timeline what the rank does between its operators: it may load data, run Python, or wait.",
    "launches": (
        "Make the host launch less: larger batches, torch.compile or CUDA graphs, no synchronisation within the step, a"
        " faster data loader."
    ),
    "launches graphs": (
        "Its CUDA graphs leave gaps: see on the timeline what the host does between them, such as synchronisation,"
        " loading data, or launches outside the graphs."
    ),
}
"""What to do where the host is the reason for most idle time."""


def why_idle(idle_rows: pd.DataFrame | None, host: HostRole) -> str:
    """Why a rank was idle, as the end of a clause; empty where it was not."""
    if idle_rows is None or not idle_rows["idle_ns"].any():
        return ""
    whole = int(idle_rows["idle_ns"].sum())
    host_wait, kernel = int(idle_rows["host_wait_ns"].sum()), int(idle_rows["kernel_wait_ns"].sum())
    if waits_for_cores(idle_rows):
        return ", as operators waited for a core"
    if host_wait >= MAJORITY * whole:
        return ", as no operator runs" if host == "computes" else ", as the device waits for its host"
    if kernel >= MAJORITY * whole:
        return ", between kernels that are too short"
    return "; what ran next had been launched, and waited for something else"
