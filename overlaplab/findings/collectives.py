"""How fast collectives moved their data, how long ranks waited in them and for whom, and what to do about it."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses.collectives import time_spent
from overlaplab.findings.diagnosis.diagnose import Diagnosis
from overlaplab.findings.diagnosis.unseen import why_waits_unknown
from overlaplab.findings.thresholds import LARGE_COLLECTIVE
from overlaplab.words import count, join_names, ms, percent, rank_word, rate, size_exact

NO_COLLECTIVES = "This run has no collectives: nothing in its traces counts as communication between ranks."
_ABSENT = "not all members' traces are here"


def exposed_by_axis(table: pd.DataFrame) -> str | None:
    """How much of the exposed time is each axis' of the mesh; rows of `overlaplab.exposed`. None if none is known."""
    if table["axis"].isna().all():
        return None
    sums = table["exposed_ns"].groupby(table["axis"].fillna("others")).sum().sort_values(ascending=False, kind="stable")
    parts = join_names([f"{axis} {ms(int(axis_ns))}" for axis, axis_ns in sums.items()])
    return f"Exposed by axis, all these ranks and steps together: {parts}."


def collectives_lead(
    table: pd.DataFrame, diagnosis: Diagnosis | None = None, summary: pd.DataFrame | None = None
) -> str:
    """How much of the ranks' time in collectives was waiting, and for which rank the diagnosed one waited most.

    Takes rows of `overlaplab.collectives`, the diagnosis of one of their ranks' steps, and rows of `summary` of the
    same ranks and steps, which tell how much of the waiting was exposed.
    """
    number = count(int(table["index"].nunique()), "collective")
    table = table[~table.duplicated(["rank", "start_ns", "end_ns"]) | table["start_ns"].isna()]  # a kernel counts once
    every = table["index"].nunique()
    with_waits = table[table["wait_ns"].notna()]
    if with_waits.empty:
        timed = table.dropna(subset=["start_ns", "end_ns"])
        why = why_waits_unknown(table) or "that takes the traces of all ranks that took part"
        if timed.empty:
            return f"{number}. How long ranks spent in them, and how much of that is waiting, is unknown: {why}."
        spent = ms(int(time_spent(timed).sum()))
        return f"{number}, in which ranks spent {spent}. How much of it is waiting is unknown: {why}."
    spent_ns, waited_ns = int(time_spent(with_waits).sum()), int(with_waits["wait_ns"].sum())
    number_known = with_waits["index"].nunique()
    all_of_them = "it" if every == 1 else "them"
    in_these = all_of_them if number_known == every else f"the {number_known} whose waits are known"
    first = (
        f"{number}: of the {ms(spent_ns)} that {count(int(table['rank'].nunique()), 'rank')} spent in {in_these},"
        f" {ms(waited_ns)} was spent waiting for the last rank to arrive{_name_exposed(waited_ns, summary)}."
    )
    if diagnosis is None or diagnosis.late_rank is None:
        return first
    where = "Rank" if diagnosis.step is None else f"In step {diagnosis.step} rank"
    return (
        f"{first} {where} {rank_word(diagnosis.rank)}'s longest waits were for rank {diagnosis.late_rank}:"
        f" {ms(diagnosis.waited_ns)} of its exposed time."
    )


def _name_exposed(waited_ns: int, summary: pd.DataFrame | None) -> str:
    """How much of the waiting was exposed; empty where that is unknown."""
    if summary is None or summary["exposed_wait_ns"].isna().any():
        return ""
    exposed_ns = int(summary["exposed_wait_ns"].sum())
    return f", {ms(exposed_ns)} of it exposed" if exposed_ns <= waited_ns else ""


def bandwidth_title(with_bandwidth: pd.DataFrame, link_gb_per_s: float | None) -> str:
    """How fast the largest collectives moved their data, those of at least half the bytes of the very largest.

    `with_bandwidth`: the rows of `overlaplab.analyses.each_collective` whose bus bandwidth and bytes are known.
    """
    if with_bandwidth.empty:
        return "No bus bandwidth: sizes or groups of the collectives are unknown"
    large = with_bandwidth[with_bandwidth["bytes"] >= LARGE_COLLECTIVE * with_bandwidth["bytes"].max()]
    most = float(large["bus_gb_per_s"].astype("float64").median())
    bound = "at least " if with_bandwidth["bus_is_lower_bound"].any() else ""
    share = "" if link_gb_per_s is None else f": {percent(most, link_gb_per_s)} of the link's bandwidth"
    least = size_exact(int(large["bytes"].min()))
    return f"Collectives of {least} and more move {bound}{rate(most)}, in the median{share}"


def bandwidth_remarks(table: pd.DataFrame, with_bandwidth: pd.DataFrame) -> list[str]:
    """How many known bandwidths are lower bounds, and how many rows of the table are left out as unknown."""
    remarks = []
    if bounds := int(with_bandwidth["bus_is_lower_bound"].sum()):
        why = why_waits_unknown(with_bandwidth) or "how long the data took is not known without all ranks"
        remarks.append(f"{bounds} of {len(with_bandwidth)} are lower bounds: {why}.")
    if doubtful := int(table["doubtful"].sum()):
        remarks.append(f"{count(doubtful, 'collective')} left out: doubtful matches.")
    if unmatched := int((table["unmatched"].notna() & table["bus_gb_per_s"].isna() & ~table["doubtful"]).sum()):
        remarks.append(f"{count(unmatched, 'collective')} left out: not matched on other ranks.")
    unknown = len(table) - doubtful - unmatched - len(with_bandwidth)
    if unknown > 0 < len(with_bandwidth):
        remarks.append(f"{count(unknown, 'collective')} left out: size or group unknown.")
    return remarks


def waits_title(table: pd.DataFrame, measured: pd.DataFrame) -> str:
    """In how many of the rows whose wait and transfer are known the wait was longer."""
    if measured.empty:
        return f"Wait and transfer are unknown: {why_waits_unknown(table) or _ABSENT}"
    longer = int((measured["wait_ns"] > measured["transfer_ns"]).sum())
    return f"In {longer} of {count(len(measured), 'collective')} a rank waited longer than the data took"


def late_ranks_title(late: pd.DataFrame) -> str:
    """How long ranks waited for late ones, from rows of `overlaplab.stragglers`; the chart names them."""
    if late.empty or not late["last"].any():
        return "No rank came last by more than the clocks' error"
    return f"Ranks waited {ms(late['cost_ns'].sum())} for those late by more than the clocks' error"
