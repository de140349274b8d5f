"""How fast collectives moved their data, how long ranks waited in them and for whom, and what to do about it."""

from __future__ import annotations

import pandas as pd

from overlaplab.analyses.collectives import time_spent
from overlaplab.findings.diagnosis.diagnose import Diagnosis
from overlaplab.findings.diagnosis.unseen import why_waits_unknown
from overlaplab.findings.thresholds import LARGE_COLLECTIVE
from overlaplab.words import count, joined, ms, percent, rank_word

NO_COLLECTIVES = "This run has no collectives: nothing in its traces counts as communication between ranks."
_ABSENT = "not all members' traces are here"


def exposed_by_axis(table: pd.DataFrame) -> str | None:
    """How much of the exposed time is each axis' of the mesh; rows of `overlaplab.exposed`. None if none is known."""
    if table["axis"].isna().all():
        return None
    sums = table["exposed_ns"].groupby(table["axis"].fillna("others")).sum().sort_values(ascending=False, kind="stable")
    told = joined([f"{axis} {ms(int(own))}" for axis, own in sums.items()])
    return f"Exposed by axis, all these ranks and steps together: {told}."


def collectives_lead(table: pd.DataFrame, found: Diagnosis | None = None) -> str:
    """How much of the ranks' time in collectives was waiting, and for which rank the diagnosed one waited most.

    Takes rows of `overlaplab.collectives`, and the diagnosis of one of their ranks' steps.
    """
    number = count(int(table["index"].nunique()), "collective")
    table = table[~table.duplicated(["rank", "start_ns", "end_ns"]) | table["start_ns"].isna()]  # a kernel counts once
    every = table["index"].nunique()
    known = table[table["wait_ns"].notna()]
    if known.empty:
        took = table.dropna(subset=["start_ns", "end_ns"])
        spent = ms(int(time_spent(took).sum()))
        why = why_waits_unknown(table) or "that takes the traces of all ranks that took part"
        return f"{number}, in which ranks spent {spent}. How much of it is waiting is unknown: {why}."
    spent_ns, waited_ns = int(time_spent(known).sum()), int(known["wait_ns"].sum())
    in_these = "them" if known["index"].nunique() == every else f"the {known['index'].nunique()} whose waits are known"
    first = (
        f"{number}: of the {ms(spent_ns)} that {count(int(table['rank'].nunique()), 'rank')} spent in {in_these},"
        f" {ms(waited_ns)} was spent waiting for the last rank to arrive."
    )
    if found is None or found.late_rank is None:
        return first
    where = "Rank" if found.step is None else f"In step {found.step} rank"
    return (
        f"{first} {where} {rank_word(found.rank)}'s longest waits were for rank {found.late_rank}:"
        f" {ms(found.waited_ns)} of its exposed time."
    )


def bandwidth_title(known: pd.DataFrame, link_gb_per_s: float | None) -> str:
    """How fast the largest collectives moved their data.

    `known`: the rows of `overlaplab.analyses.each_collective` whose bus bandwidth and bytes are known.
    """
    if known.empty:
        return "No bus bandwidth: sizes or groups of the collectives are unknown"
    large = known[known["bytes"] >= LARGE_COLLECTIVE * known["bytes"].max()]
    most = float(large["bus_gb_per_s"].astype("float64").median())
    bound = "at least " if known["bus_is_lower_bound"].any() else ""
    share = "" if link_gb_per_s is None else f": {percent(most, link_gb_per_s)} of the link's bandwidth"
    return f"The largest collectives move {bound}{most:,.3g} GB/s, in the median{share}"


def bandwidth_remarks(table: pd.DataFrame, known: pd.DataFrame) -> list[str]:
    """How many known bandwidths are lower bounds, and how many rows of the table are left out as unknown."""
    remarks = []
    if bounds := int(known["bus_is_lower_bound"].sum()):
        why = why_waits_unknown(known) or "how long the data took is not known without all ranks"
        remarks.append(f"{bounds} of {len(known)} are lower bounds: {why}.")
    doubtful = int(table["doubtful"].sum())
    if doubtful:
        remarks.append(f"{count(doubtful, 'collective')} left out: doubtful matches.")
    if len(table) - doubtful > len(known) > 0:
        remarks.append(f"{count(len(table) - doubtful - len(known), 'collective')} left out: size or group unknown.")
    return remarks


def waits_title(table: pd.DataFrame, known: pd.DataFrame) -> str:
    """In how many of the rows whose wait and transfer are known the wait was longer."""
    if known.empty:
        return f"Wait and transfer are unknown: {why_waits_unknown(table) or _ABSENT}"
    longer = int((known["wait_ns"] > known["transfer_ns"]).sum())
    return f"In {longer} of {count(len(known), 'collective')} a rank waited longer than the data took"


def late_ranks_title(late: pd.DataFrame) -> str:
    """How long ranks waited for late ones, from rows of `overlaplab.stragglers`; the chart names them."""
    if late.empty or not late["last"].any():
        return "No rank came last by more than the clocks' error"
    return f"All ranks together waited {ms(late['cost_ns'].sum())} for late ones"
