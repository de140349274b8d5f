"""Sentences about watched trainings and Flight Recorder dumps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from overlaplab.analyses.watched.dumped import dumped_groups
from overlaplab.analyses.watched.late import MIN_LATE_NS
from overlaplab.load.flight_recorder import FlightDumps
from overlaplab.load.watched import Watched, WatchedRecording
from overlaplab.words import count, join_names, ms, ordinal, percent, shorten

SAME_RANK_SHARE = 0.8
"""Share of all late arrivals: a rank with as many is said to be the late one whenever one is."""
SELDOM_LATE_SHARE = 0.1
"""Share of the measured steps, or of dumped collectives: if a rank is late in fewer, no rank is named."""
BEHIND_STEPS = 20
"""A rank this many steps behind the others has stopped: ranks that train are hardly more than one apart."""
_EXPOSED_WORDS = {
    "exposed_gradients_ns": "gradients",
    "exposed_gathers_ns": "gathers",
    "exposed_others_ns": "other collectives",
}


def watched_sentences(
    watched: Watched,
    ranks: pd.DataFrame,
    late: pd.DataFrame,
    kinds: pd.DataFrame,
    changes: pd.DataFrame,
    stopped: pd.DataFrame,
) -> list[str]:
    """What a watched training shows, most important first; takes the tables of `overlaplab.analyses.watched`."""
    return [
        _headline(watched, ranks, kinds),
        *_stopped_sentences(watched, ranks, stopped),
        _late_in_training(watched, ranks, late),
        *(_change_sentence(change) for _, change in changes.iterrows()),
        *(_kind_sentence(kind) for _, kind in kinds[kinds["period"].notna()].iterrows()),
        *(f"Recorded by itself at step {each.step:,}: {each.path} ({each.reason})." for each in _recordings(watched)),
    ]


def watched_notes(watched: Watched) -> list[str]:
    """What of a training is not watched, and why."""
    missing = sorted(set(range(watched.world_size)) - {rank.header.rank for rank in watched.ranks})
    notes = [f"{count(len(missing), 'rank')} of {watched.world_size} left no file here"] if missing else []
    unseen = dict.fromkeys(note for rank in watched.ranks for note in rank.header.notes)
    return [*notes, *unseen, "waits in functional collectives and DTensor are not seen"]


def _headline(watched: Watched, ranks: pd.DataFrame, kinds: pd.DataFrame) -> str:
    if kinds.empty and len(ranks):
        steps = count(int(ranks["steps"].max()), "step")
        return f"{steps}, in all of which a profiler ran: how long they take is unknown."
    if kinds.empty:
        return "No step has ended yet."
    span_ns = int(kinds["span_ns"].iloc[0])
    steps, ranks_there = count(int(ranks["steps"].max()), "step"), count(len(watched.ranks), "rank")
    head = f"{steps} of {ranks_there}, {ms(span_ns)} each (median): "
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


def _late_in_training(watched: Watched, ranks: pd.DataFrame, late: pd.DataFrame) -> str:
    if watched.world_size == 1:
        return "There is one rank, which waits for nobody."
    if late.empty:
        return "Who is late is unknown: only all-reduces show it."
    measured_steps = late["step"].nunique()
    measured = count(measured_steps, "measured step")
    late_rows = late[late["late"]].drop_duplicates(["step", "late_rank"])  # a rank may be late in several groups
    share = late_rows["step"].nunique() / measured_steps
    if share < SELDOM_LATE_SHARE:
        return f"A rank is rarely late: in {percent(share, 1)} of {measured}."
    by_rank = late_rows["late_rank"].value_counts()
    rank, times = int(by_rank.index[0]), int(by_rank.iloc[0])
    late_ns = float(late_rows["late_ns"].median())
    if times >= SAME_RANK_SHARE * len(late_rows):
        median_ns = float(late_rows.loc[late_rows["late_rank"] == rank, "late_ns"].median())
        last = f"Rank {rank} is the last in {percent(times, measured_steps)} of {measured}, by {ms(median_ns)} (median)"
        if times == 1:
            return f"{last}."
        same = "whenever a rank is late, it is" if times == len(late_rows) else "when a rank is late, it is mostly"
        return f"{last}: {same} this one."
    return (
        f"In {percent(share, 1)} of {measured} a rank is late, by {ms(late_ns)} (median), and"
        f" not always the same one: most often rank {rank}, in {percent(times, late_rows['step'].nunique())} of them."
    )


def _change_sentence(change: pd.Series[Any]) -> str:
    """A sentence for a row of `watched_changes`: a late rank or the step time is no longer what it was."""
    before, after = int(change["before_ns"]), int(change["after_ns"])
    if change["change"] == "late rank":
        between = f"between steps {change['since_step']:,} and {change['step']:,}"
        if not before:
            return f"Rank {change['rank']} has become late {between}, by {ms(after)}; until then it was not."
        if not after:
            return f"Rank {change['rank']} has ceased to be late {between}; until then it was, by {ms(before)}."
        return f"Rank {change['rank']} has changed {between}: it is late by {ms(after)}, until then by {ms(before)}."
    difference = f"{percent(abs(after - before), before)} {'longer' if after > before else 'shorter'}"
    text = f"From step {change['step']:,} on steps take {difference}: {ms(after)}, until then {ms(before)}"
    if pd.isna(change["exposed_before_ns"]) or pd.isna(change["exposed_after_ns"]):
        return text + "."
    was, now = (ms(int(change[f"exposed_{when}_ns"])) for when in ("before", "after"))
    return f"{text}; exposed communication is {now}, until then {was}."


def _kind_sentence(kind: pd.Series[Any]) -> str:
    return (
        f"Every {kind['period']:,} steps, from step {kind['first_step']:,} on, one takes {ms(int(kind['extra_ns']))}"
        f" longer ({count(int(kind['steps']), 'step')}): a kind of its own, such as checkpoints."
    )


def _stopped_sentences(watched: Watched, ranks: pd.DataFrame, stopped: pd.DataFrame) -> Iterator[str]:
    """A sentence on all ranks if all have stopped; else one for each that has stopped or is far behind the others."""
    if len(stopped) > 1 and len(stopped) == len(watched.ranks) and stopped["others_wait_in"].isna().all():
        yield _all_stopped(stopped)
        return
    for row in stopped.to_dict("records"):
        yield _stopped_sentence(row)
    last_steps = {rank.header.rank: -1 for rank in watched.ranks} | dict(
        zip(ranks["rank"], ranks["last_step"], strict=True)
    )
    furthest = max(last_steps.values())
    for rank, step in last_steps.items():
        if furthest - step >= BEHIND_STEPS and rank not in set(stopped["rank"]):
            after = "" if step < 0 else f" after {step:,}"
            yield f"Rank {rank} has ended no step{after}; others are at {furthest:,}."


def _all_stopped(stopped: pd.DataFrame) -> str:
    rows = stopped.sort_values("since_ns").to_dict("records")
    last_step = rows[0]["last_step"]
    what = "its first step" if pd.isna(last_step) else f"a step after step {last_step:,}"
    text = f"No rank has ended {what}{_for_seconds(rows[0]['since_ns'])}"
    are_at_one_collective = all(
        pd.isna(row["group"]) or (row["group"], row["enqueued"]) == (rows[0]["group"], rows[0]["enqueued"])
        for row in rows
    )
    if not are_at_one_collective:
        return f"{text}."
    if pd.isna(rows[0]["group"]):
        return f"{text}; which collectives they wait in is unknown."
    return f"{text}: the last collective of group {rows[0]['group']} that all have enqueued is {rows[0]['enqueued']:,}."


def _stopped_sentence(row: dict[Any, Any]) -> str:
    if row["ended"]:
        wait = "" if pd.isna(row["others_wait_in"]) else f" in {row['others_wait_in']:,}"
        return f"Rank {row['rank']} has ended its training{_after_step(row['last_step'])}; the others wait{wait}."
    text = f"Rank {row['rank']} has stopped{_after_step(row['last_step'])}"
    if row["answers"]:
        text += _for_seconds(row["since_ns"])
    else:
        text += ", and its process writes no more: it was stopped or killed"
    if pd.isna(row["group"]):
        return f"{text}; what it had enqueued is unknown."
    earlier = "" if row["answers"] or pd.isna(row["looked_step"]) else f" by the end of step {row['looked_step']:,}"
    verb = "it has enqueued" if row["answers"] else "it had enqueued"
    text += f". The last collective of group {row['group']} that {verb}{earlier} is {row['enqueued']:,}"
    return f"{text}." if pd.isna(row["others_wait_in"]) else f"{text}; the others wait in {row['others_wait_in']:,}."


def _after_step(step: Any) -> str:
    return " in its first step" if pd.isna(step) else f" after step {step:,}"


def _for_seconds(since_ns: Any) -> str:
    return "" if pd.isna(since_ns) else f", for {since_ns / 1e9:,.0f} s"


def _recordings(watched: Watched) -> list[WatchedRecording]:
    return list({each.step: each for rank in watched.ranks for each in rank.header.recordings}.values())


def watched_about(watched: Watched, ranks: pd.DataFrame) -> str:
    """What a watched training is, for a page's head: `8 ranks · step 2,000 of a training that has ended`."""
    step = 0 if ranks.empty else int(ranks["last_step"].max()) + 1
    ended = all(rank.header.ended for rank in watched.ranks)
    training = "of a training that has ended" if ended else "of a training that has not ended"
    return f"{count(watched.world_size, 'rank')} · step {step:,} {training}"


def watched_recordings(watched: Watched) -> pd.DataFrame:
    """The recordings that the watch has started, once each, in order: `step`, `path` and `reason`."""
    rows = [(each.step, each.path, each.reason) for each in sorted(_recordings(watched), key=lambda each: each.step)]
    return pd.DataFrame(rows, columns=["step", "path", "reason"])


def kind_word_of_steps(period: int) -> str:
    """What a kind of steps is called in a chart: `every 100th step`."""
    return f"every {ordinal(period)} step"


def watched_times_note(series: pd.DataFrame, highest_ns: float) -> str:
    """How the chart of step times is to be read."""
    width = _steps_per_column(series)
    text = (
        "Each step's time is the median over the ranks."
        if width == 1
        else f"{width:,} steps a column: lines are medians, bands go from the least to the most."
    )
    beyond = series[(series["span_high_ns"] > highest_ns).fillna(False)]
    if beyond.empty:
        return text
    return f"{text} The longest steps, of up to {ms(int(beyond['span_high_ns'].max()))}, lie above the chart."


def watched_shares_note(series: pd.DataFrame) -> str:
    """How the chart of exposed shares is to be read."""
    measured, steps = (int(series[name].sum()) for name in ("measured_steps", "steps"))
    text = f"Measured in bursts: in {measured:,} of {steps:,} steps without a profiler."
    periods = series.loc[series["exposed_share"].notna(), "period"].dropna().unique()
    words = [kind_word_of_steps(int(period)) for period in periods]
    return f"{text} Circles: {join_names(words)}." if words else text


def watched_strip_title(strip: pd.DataFrame) -> str:
    """Who was late most often."""
    late = strip.groupby("rank")[["late_steps", "telling_steps"]].sum()
    if late.empty or not late["late_steps"].any():
        return "Who was late: nobody"
    rank = int(late["late_steps"].idxmax())  # type: ignore[call-overload]
    most = late.loc[rank]
    share = percent(most["late_steps"], most["telling_steps"])
    return f"Who was late: most often rank {rank}, in {share} of the measured steps"


def watched_strip_note(strip: pd.DataFrame) -> str:
    """How the strip is to be read."""
    return f"{_steps_per_column(strip):,} steps a column; nothing is drawn where no all-reduce shows who was late."


def _steps_per_column(table: pd.DataFrame) -> int:
    return int((table["last_step"] - table["first_step"]).max()) + 1 if len(table) else 1


MAX_NAMED = 3
"""How many disagreements are listed, and how many kinds in each."""


def dumped_sentences(dumps: FlightDumps, collectives: pd.DataFrame, stopped: pd.DataFrame) -> list[str]:
    """What dumps show, most important first; takes the tables of `dumped_collectives` and `dumped_stopped`."""
    return [
        f"{count(len(collectives), 'collective')} of {count(dumped_groups(dumps), 'group')} in the dumps of"
        f" {count(len(dumps.ranks), 'rank')}.",
        *_disagreements(collectives),
        *(
            f"Rank {row['rank']} has stopped: the last collective of group {shorten(row['group'])} that it has launched"
            f" is {row['enqueued']:,}; others have launched {row['others_wait_in']:,}."
            for row in stopped.to_dict("records")
        ),
        _late_in_dumps(collectives),
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


def _late_in_dumps(collectives: pd.DataFrame) -> str:
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
