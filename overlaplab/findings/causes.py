"""Why communication was exposed, and what to do about each cause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from overlaplab.analyses.exposed import Cause
from overlaplab.analyses.worst import worst_step
from overlaplab.findings.bound import no_buckets_help
from overlaplab.findings.thresholds import MAJORITY, MOST_CAUSES, MUCH
from overlaplab.findings.unseen import OTHER_RANKS, Unseen, started_late
from overlaplab.findings.verdict import other_problem
from overlaplab.words import ms, percent, rank_word, shorten

CAUSE_MEANINGS = {
    Cause.STRAGGLER: "its last rank had not arrived",
    Cause.LATE: "ready, and the link free, but not launched yet",
    Cause.QUEUED: "launched, but the link was busy with another collective",
    Cause.TAIL: "nothing left to hide it behind",
    Cause.BLOCKING: "waited for at once, or launched after the backward",
    Cause.LINK: "takes longer than the compute there is to hide it behind",
    Cause.GAP: "compute paused, but not to wait for it",
    Cause.UNKNOWN: "waiting for other ranks, or transfer",
}
"""What each cause means, in a few words."""


def cause_label(row: Mapping[Any, Any]) -> str:
    """The cause of a row of `overlaplab.exposed`, with the rank that was waited for: `straggler wait for rank 2`."""
    cause = str(row["cause"])
    return cause if pd.isna(row["late_rank"]) else f"{cause} for rank {rank_word(row['late_rank'])}"


def collective_label(row: Mapping[Any, Any], limit: int = 60) -> str:
    """The collective of a row of `overlaplab.exposed`, with its number in `collectives`: `bucket 3, all-reduce 19`."""
    if pd.isna(row["collective"]):
        return "of no collective"
    kind = "collective" if pd.isna(row["kind"]) else str(row["kind"]).replace("_", "-")
    name = f"{shorten(kind, 20)} {row['collective']}"
    return name if pd.isna(row["what"]) else f"{shorten(str(row['what']), max(limit - len(name) - 2, 8))}, {name}"


def exposed_finding(rows: pd.DataFrame) -> str:
    """The causes in one or more rows of one rank and step, the most expensive first."""
    sums = rows.groupby("cause")["exposed_ns"].sum().sort_values(ascending=False, kind="stable")
    parts = [f"{ms(int(took))} {cause}" for cause, took in sums.items()]
    rest = f", {ms(int(sums.iloc[MOST_CAUSES:].sum()))} the rest" if len(parts) > MOST_CAUSES else ""
    return ", ".join(parts[:MOST_CAUSES]) + rest


def rank_and_step(window: Mapping[str, Any]) -> str:
    """The rank and step of a row of `overlaplab.summary`: `rank 0, step 4`."""
    step = "" if pd.isna(window["step"]) else f", step {window['step']}"
    return f"rank {rank_word(window['rank'])}{step}"


def exposed_lead(rows: pd.DataFrame, window: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Why communication was exposed in `window`, the worst row of `table`, which has rows of `overlaplab.summary`.

    `rows` are those of `overlaplab.exposed` about the same rank and step; there may be none.
    """
    several = table["rank"].nunique(dropna=False) > 1
    where = f"Rank {rank_word(window['rank'])}{' (the most exposed)' if several else ''}"
    if pd.notna(window["step"]):
        where += f", step {window['step']}" + (" (its median step)" if table["step"].nunique() > 1 else "")
    share = percent(window["exposed_comm_ns"], window["span_ns"])
    causes = f": {exposed_finding(rows)}" if len(rows) else ""
    return f"{where}: {ms(window['exposed_comm_ns'])} exposed, {share} of the step{causes}."


def exposed_advice(
    table: pd.DataFrame,
    causes: pd.DataFrame,
    idled: pd.DataFrame | None = None,
    unseen: Unseen = OTHER_RANKS,
    bound: Mapping[str, Any] | None = None,
) -> str:
    """What to do about exposed communication, in a sentence or two.

    Takes rows of `overlaplab.summary`, and of `overlaplab.exposed` and `analyses.idle` for the same ranks and steps,
    what the traces do not show, and the row of `simulate.bound` for the worst step, if any.
    """
    span = int(table["span_ns"].sum())
    if span == 0:
        return "Nothing to do: nothing was measured."
    if (other := other_problem(table, causes, idled)) is not None:
        return f"{_leave(table, other)} {_other_problem_advice(table, idled)}"
    whole = int(causes["exposed_ns"].sum())
    if whole == 0:
        return "Nothing to do: no communication is exposed."
    sums = causes[causes["cause"] != Cause.GAP].groupby("cause")["exposed_ns"].sum()
    cause, took = Cause(str(sums.idxmax())), int(sums.max())
    share = percent(took, whole)
    begin = f"Go after {cause.value} first: it is {share} of all exposed communication ({CAUSE_MEANINGS[cause]})."
    if whole - int(sums.sum()) > took:  # compute gaps, which head the table above
        begin += " Compute gaps, the largest part, are pauses of the host that communication does not cause."
    if cause is Cause.UNKNOWN and unseen.waits is not None:
        return f"{begin} What of it is waiting cannot be told: {unseen.waits}."
    rows = causes[causes["cause"] == cause]
    remedy = _remedy(cause, rows)
    if remedy == _TAILS["bucket"] and bound is not None and no_buckets_help(bound, worst_step(table)):
        remedy = _NO_BUCKETS
    advice = f"{begin} {remedy}"
    if cause is Cause.STRAGGLER and (late := _late_rank(rows)) is not None:
        advice += started_late(unseen, late)
    if cause is not Cause.UNKNOWN and table["exposed_wait_ns"].isna().any():
        why = "open all their traces together to tell" if unseen.waits is None else unseen.waits
        advice += f" But some of it may be waiting for other ranks: {why}."
    return advice


def _leave(table: pd.DataFrame, other: str) -> str:
    exposed, span = int(table["exposed_comm_ns"].sum()), int(table["span_ns"].sum())
    if exposed == 0:
        return other
    gain = f"{percent(exposed, span)} of the step time"
    return f"Leave communication for later: hiding all that is exposed would gain at most {gain}."


def _other_problem_advice(table: pd.DataFrame, idled: pd.DataFrame | None) -> str:
    span = int(table["span_ns"].sum())
    idle, memory = int(table["idle_ns"].sum()), int(table["memory_only_ns"].sum())
    if memory > idle and memory > MUCH * span:
        return "Copies are the larger part: pin memory, copy asynchronously, or keep data on the device."
    if idle <= MUCH * span:
        return "What is left is computation: larger or fused kernels, lower precision, or more ranks."
    if idled is not None and idled["host_wait_ns"].sum() >= MAJORITY * idled["idle_ns"].sum():
        return (
            "Make the host launch less: larger batches, torch.compile or CUDA graphs, no synchronisation within the"
            " step, a faster data loader."
        )
    return "Look at the timeline for what the idle device waits for: another stream, or an event."


def _remedy(cause: Cause, rows: pd.DataFrame) -> str:
    gathers = rows.groupby(rows["kind"] == "all_gather")["exposed_ns"].sum()
    gathered = int(gathers.get(True, 0)) > MAJORITY * int(gathers.sum())
    if cause is Cause.STRAGGLER:
        late = _late_rank(rows)
        who = "the late rank" if late is None else f"rank {late}"
        return f"Balance the ranks' work: look at what {who} does on the timeline while the others wait."
    if cause is Cause.LATE:
        if gathered:
            return "Gather earlier: prefetch one unit more, which holds one more in memory at a time."
        return "See what held the launch: a bucket behind another one, or a host that is slow."
    if cause is Cause.TAIL:
        if gathered:
            return "Gather the first unit before the step begins, or make it smaller."
        return _TAILS[_moved_most(rows)]
    return _REMEDIES[cause]


def _late_rank(rows: pd.DataFrame) -> object:
    """The rank that was waited for longest; None where unknown."""
    late = rows.groupby("late_rank")["exposed_ns"].sum()
    return None if late.empty else late.idxmax()


def _moved_most(rows: pd.DataFrame) -> str:
    """What most of the exposed time moved: a `bucket`, a `unit` (or a parameter), or something `unknown`."""
    what = rows["what"].astype("object")
    moved = what.map(lambda name: "unknown" if pd.isna(name) else "bucket" if _BUCKET.match(str(name)) else "unit")
    return str(rows["exposed_ns"].groupby(moved.to_numpy()).sum().idxmax())


_BUCKET = re.compile(r"bucket \d+$")
_TAILS = {
    "bucket": "Make the last bucket smaller: try a lower bucket_cap_mb, and compare the runs (overlaplab sweep).",
    "unit": "Make what is reduced last smaller, or leave something to compute until it is sent.",
    "unknown": "Make the last one smaller, launch it earlier, or leave something to compute until it is sent.",
}
"""The remedy for a tail that is not a gather, by what it moves."""
_NO_BUCKETS = "No other buckets would hide it: send fewer bytes (lower precision, accumulation), or use a faster link."
"""Against a tail where the best buckets of all gain little."""
_REMEDIES = {
    Cause.QUEUED: "Send less while the link is busy: lower precision, fewer synchronisations by accumulating; or put"
    " gathers ahead of reductions.",
    Cause.BLOCKING: "Launch during the backward pass and wait at its end, as strategy bucketed and torch's"
    " DistributedDataParallel do; else find something to compute before the result is needed.",
    Cause.LINK: "No schedule hides it: send fewer bytes (lower precision, accumulation), or use a faster link.",
    Cause.UNKNOWN: "Open all ranks' traces together, to tell waiting from transfer.",
}
