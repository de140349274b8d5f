"""Sentences about Flight Recorder dumps."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from overlaplab.load.flight_recorder import FlightDumps
from overlaplab.words import count, join_names, ms, percent, shorten

SELDOM_LATE_SHARE = 0.1
MIN_LATE_NS = 1_000_000
"""Who comes last by less than a millisecond is not late."""
MAX_NAMED = 3


def dumped_sentences(dumps: FlightDumps, collectives: pd.DataFrame, stopped: pd.DataFrame) -> list[str]:
    """What dumps show, most important first; takes the tables of `dumped_collectives` and `dumped_stopped`."""
    groups = collectives["group"].nunique()
    return [
        f"{count(len(collectives), 'collective')} of {count(groups, 'group')} in the dumps of"
        f" {count(len(dumps.ranks), 'rank')}.",
        *_disagreements(collectives),
        *(
            f"Rank {row['rank']} has stopped: the last collective of group {shorten(row['group'])} that it has launched"
            f" is {row['enqueued']:,}; others have launched {row['others_wait_in']:,}."
            for row in stopped.to_dict("records")
        ),
        _who_was_late(collectives),
    ]


def dumped_notes(dumps: FlightDumps, collectives: pd.DataFrame) -> list[str]:
    """What the dumps do not tell."""
    notes = ["arrivals are by each host's own clock; between hosts lateness may be the clocks'"]
    if collectives["duration_ns"].isna().all():
        notes.append(
            "how long collectives took is unknown: NCCL records it with TORCH_NCCL_ENABLE_TIMING=1, gloo never"
        )
    ranks = {rank.rank for rank in dumps.ranks}
    members = {member for rank in dumps.ranks for group in rank.members.values() for member in group}
    missing = sorted((members | set(range(max(ranks) + 1))) - ranks)
    if missing:
        notes.append(
            f"{count(len(missing), 'rank')} left no dump here: {join_names([str(rank) for rank in missing[:9]])}"
        )
    messages = sum(entry.is_p2p for rank in dumps.ranks for entry in rank.entries)
    if messages:
        notes.append(f"{count(messages, 'message')} between two ranks are left out")
    return notes


def _disagreements(collectives: pd.DataFrame) -> Iterator[str]:
    differ = collectives[collectives["kinds"].map(len) > 1]
    for row in differ.head(MAX_NAMED).to_dict("records"):
        yield (
            f"Ranks disagree on collective {row['sequence']:,} of group {shorten(row['group'])}:"
            f" {join_names([shorten(kind) for kind in row['kinds'][:MAX_NAMED]])}."
        )


def _who_was_late(collectives: pd.DataFrame) -> str:
    telling = collectives[collectives["late_rank"].notna()]
    if telling.empty:
        return "Who was late is unknown: no collective is in the dumps of two ranks."
    late = telling[telling["late_ns"] >= MIN_LATE_NS]
    if len(late) < SELDOM_LATE_SHARE * len(telling):
        return f"A rank was rarely late: for {percent(len(late), len(telling))} of the collectives."
    by_rank = late["late_rank"].value_counts()
    rank, times = int(by_rank.index[0]), int(by_rank.iloc[0])
    median_ns = float(late.loc[late["late_rank"] == rank, "late_ns"].median())
    return (
        f"Most often rank {rank} came last: to {percent(times, len(telling))} of {count(len(telling), 'collective')},"
        f" by {ms(median_ns)} (median)."
    )
