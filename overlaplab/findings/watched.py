"""Sentences about a watched training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from overlaplab.load.watched import Watched, WatchedRecording
from overlaplab.words import count, join_names, ms, percent

SAME_RANK_SHARE = 0.8
"""If one rank was the late one this often, it always is."""
SELDOM_LATE_SHARE = 0.1
"""Ranks that are late in fewer of the measured steps are not worth a word."""
BEHIND_STEPS = 20
"""A rank this many steps behind the others has stopped: ranks that train are hardly more than one apart."""
_EXPOSED_WORDS = {
    "exposed_gradients_ns": "gradients",
    "exposed_gathers_ns": "gathers",
    "exposed_others_ns": "other collectives",
}


def watched_sentences(
    watched: Watched, ranks: pd.DataFrame, late: pd.DataFrame, kinds: pd.DataFrame, changes: pd.DataFrame
) -> list[str]:
    """What a watched training shows, most important first; takes the tables of `overlaplab.analyses.watched`."""
    return [
        _headline(watched, ranks, kinds),
        _who_is_late(watched, ranks, late),
        *(_change(change) for _, change in changes.iterrows()),
        *(_kind(kind) for _, kind in kinds[kinds["period"].notna()].iterrows()),
        *_stopped_sentences(watched, ranks),
        *(f"Recorded by itself at step {each.step}: {each.path} ({each.reason})." for each in _recordings(watched)),
    ]


def watched_notes(watched: Watched) -> list[str]:
    """What of a training is not watched, and why."""
    missing = sorted(set(range(watched.world_size)) - {rank.header.rank for rank in watched.ranks})
    notes = [f"{count(len(missing), 'rank')} of {watched.world_size} left no file here"] if missing else []
    unseen = {note: None for rank in watched.ranks for note in rank.header.notes}
    return [*notes, *unseen, "waits in functional collectives and DTensor are not seen"]


def _headline(watched: Watched, ranks: pd.DataFrame, kinds: pd.DataFrame) -> str:
    if kinds.empty:
        return "No step has ended yet."
    steps, span_ns = int(ranks["steps"].max()), int(kinds["span_ns"].iloc[0])
    head = f"{count(steps, 'step')} of {count(len(watched.ranks), 'rank')}, {ms(span_ns)} each (median): "
    exposed = ranks["exposed_comm_ns"].dropna()
    if exposed.empty:
        return head + "how much communication was exposed is unknown."
    parts = [
        f"{ms(float(ranks[column].median()))} for {word}"
        for column, word in _EXPOSED_WORDS.items()
        if ranks[column].notna().any()
    ]
    exposed_ns = float(exposed.median())
    return f"{head}{ms(exposed_ns)} of exposed communication, {percent(exposed_ns, span_ns)} ({join_names(parts)})."


def _who_is_late(watched: Watched, ranks: pd.DataFrame, late: pd.DataFrame) -> str:
    if watched.world_size == 1:
        return "There is one rank, which waits for nobody."
    if late.empty:
        return "Who is late is unknown: only all-reduces tell."
    telling = late["step"].nunique()
    whose = late[late["late"]]
    share = whose["step"].nunique() / telling
    if share < SELDOM_LATE_SHARE:
        return f"Hardly ever is a rank late: in {percent(share, 1)} of {count(telling, 'measured step')}."
    by_rank = whose["late_rank"].value_counts()
    rank, times = int(by_rank.index[0]), int(by_rank.iloc[0])
    late_ns = float(whose["late_ns"].median())
    if times >= SAME_RANK_SHARE * len(whose):
        median_ns = float(whose.loc[whose["late_rank"] == rank, "late_ns"].median())
        return (
            f"Rank {rank} is the last in {percent(times, telling)} of {count(telling, 'measured step')}, by"
            f" {ms(median_ns)} (median): where one is late, it is this one."
        )
    return (
        f"In {percent(share, 1)} of {count(telling, 'measured step')} a rank is late, by {ms(late_ns)} (median), and"
        f" not always the same one: most often rank {rank}, in {percent(times, len(whose))} of them."
    )


def _change(change: pd.Series[Any]) -> str:
    before, after = int(change["before_ns"]), int(change["after_ns"])
    if change["change"] == "late rank":
        between = f"between steps {change['since_step']} and {change['step']}"
        if not before:
            return f"Rank {change['rank']} has become late {between}, by {ms(after)}; until then it was not."
        if not after:
            return f"Rank {change['rank']} has ceased to be late {between}; until then it was, by {ms(before)}."
        return f"Rank {change['rank']} has changed {between}: it is late by {ms(after)}, until then by {ms(before)}."
    longer = "longer" if after > before else "shorter"
    text = (
        f"From step {change['step']} on steps take {percent(abs(after - before), before)} {longer}: {ms(after)}, until"
        f" then {ms(before)}"
    )
    if pd.isna(change["exposed_before_ns"]) or pd.isna(change["exposed_after_ns"]):
        return text + "."
    return (
        f"{text}; exposed communication is {ms(int(change['exposed_after_ns']))}, until then"
        f" {ms(int(change['exposed_before_ns']))}."
    )


def _kind(kind: pd.Series[Any]) -> str:
    return (
        f"Every {kind['period']} steps, from step {kind['first_step']} on, one takes {ms(int(kind['extra_ns']))} longer"
        f" ({count(int(kind['steps']), 'step')}): a kind of its own, such as checkpoints."
    )


def _stopped_sentences(watched: Watched, ranks: pd.DataFrame) -> Iterator[str]:
    furthest = ranks["last_step"].max()
    for row in ranks.to_dict("records"):
        if furthest - row["last_step"] >= BEHIND_STEPS:
            yield f"Rank {row['rank']} has ended no step after {row['last_step']}; others are at {furthest}."


def _recordings(watched: Watched) -> list[WatchedRecording]:
    return list({each.step: each for rank in watched.ranks for each in rank.header.recordings}.values())
