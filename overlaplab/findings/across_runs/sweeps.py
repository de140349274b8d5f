"""The values of bucket_cap_mb in a sweep that are fastest, or why none is, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd

from overlaplab.findings.across_runs.comparison import ALL_TIE, ties, too_few_recordings
from overlaplab.findings.thresholds import AVOID_SHARE, FEWEST_RECORDINGS, FEWEST_STEPS, LITTLE_GAIN
from overlaplab.words import cap_digits, capitalise, count, duration, join_names, percent, shorten

Row: TypeAlias = Mapping[Any, Any]
"""A row of `overlaplab.sweep`."""


def sweep_subject(strategy: str | None, ranks: int, recordings: int, note: str | None) -> str:
    """The subject of a sweep in one line; `note` is that of `links_note`."""
    parts = (strategy, count(ranks, "rank"), count(recordings, "recording"), note)
    return shorten(", ".join(part for part in parts if part), 200)


def sweep_title(table: pd.DataFrame) -> str:
    """The gist of `sweep_finding`, short enough for a chart."""
    first, *slower = _tiers(table)
    if slower:
        best = first[0]
        if len(first) == 1:
            return f"Fastest: bucket_cap_mb {_cap(best)}, {duration(best['step_ms'])} per step"
        bad = [row for tier in slower if _to_avoid(table, tier, best) for row in tier]
        tied = ties([_cap(row) for row in first])
        return f"bucket_cap_mb {tied}{f'; avoid {_caps(bad)}' if bad else ', others are slower'}"
    return f"Step time: {_why_undecided(table)}"


def sweep_finding(table: pd.DataFrame) -> str:
    """The caps in tiers, the fastest first, or why none is faster than another, from rows of `overlaplab.sweep`."""
    first, *slower = _tiers(table)
    best = first[0]
    if not slower:
        return _undecided_finding(table)
    once = "" if _decided_by_recordings(table) else " in one recording of each"
    if len(first) == 1:
        parts = [f"Fastest{once}: bucket_cap_mb {_cap(best)}, median step {duration(best['step_ms'])}"]
    else:
        last = first[-1]["step_ms"]
        tied = ties([_cap(row) for row in first])
        parts = [f"bucket_cap_mb {tied}{once}, median steps {duration(best['step_ms'])} to {duration(last)}"]
    bad = [row for tier in slower if _to_avoid(table, tier, best) for row in tier]
    parts += [
        f"{_caps(tier)} {'are' if len(tier) > 1 else 'is'} {_slower_words(tier, best)}"
        for tier in slower
        if not _to_avoid(table, tier, best)
    ]
    if bad:
        parts.append(f"avoid {_caps(bad)}, {_slower_words(bad, best)}{_all_of_it(bad, table)}")
    return "; ".join(parts)


def _undecided_finding(table: pd.DataFrame) -> str:
    """Why no cap is faster than another."""
    first, second = _two_shortest(table)
    why = capitalise(_why_undecided(table))
    if _decided_by_recordings(table):
        why = f"{count(int(table['runs'].sum()), 'recording')} show no clear difference between caps"
    return (
        f"{why}: bucket_cap_mb {_cap(first)} has the shortest median step,"
        f" {first['step_ms']:.1f} ms; the next, {_cap(second)}, has {second['step_ms']:.1f} ms"
    )


def _why_undecided(table: pd.DataFrame) -> str:
    if _decided_by_recordings(table):
        return "recordings show no clear difference"
    if table["spread_ms"].isna().any():
        return "too few steps to show a difference"
    return "no clear difference" if len(table) <= 2 else ALL_TIE


def _all_of_it(caps: Sequence[Row], table: pd.DataFrame) -> str:
    """That each recording of these caps is slower than any of another; empty if not, or if a cap has only one."""
    others = table[~table["bucket_cap_mb"].isin([row["bucket_cap_mb"] for row in caps])]
    if not _decided_by_recordings(table) or min(row["lowest_ms"] for row in caps) <= others["highest_ms"].max():
        return ""
    return f": every recording of {'them' if len(caps) > 1 else 'it'} is slower than every other cap's"


def sweep_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """What a reader of a sweep's figures must know, a line each."""
    notes = []
    if table["spread_ms"].isna().any():
        notes.append(f"fewer than {FEWEST_STEPS} steps of a cap have no spread, so caps cannot be compared")
    fewest = int(table["runs"].min())
    if fewest == 1:
        notes.append("one recording of a cap: how much recordings of the same cap differ is unknown")
    else:
        notes += too_few_recordings(fewest, "caps")
    if table["runs"].nunique() > 1:
        counts = ", ".join(f"{_cap(row)}: {row['runs']}" for row in table.to_dict("records"))
        notes.append(f"not every cap was recorded as often (recordings by cap: {counts})")
    with_buckets = table.dropna(subset=["buckets"])
    for buckets, same in with_buckets.groupby("buckets", sort=True):
        if len(same) > 1:
            caps = " and ".join(_cap(row) for row in same.to_dict("records"))
            notes.append(f"caps {caps} make the same number of buckets, {buckets}: a difference between them is chance")
    return tuple(notes)


def sweep_advice(table: pd.DataFrame) -> tuple[str, ...]:
    """What to do after a sweep, a sentence each."""
    tier, *slower = _tiers(table)
    if not slower:
        return (_tell_apart(table),)
    first = tier[0]
    few = int(table["runs"].min()) < FEWEST_RECORDINGS
    advice = [f"Repeat it first: {_recording_advice(table)}"] if few else []
    if len(tier) > 1:
        caps = " or ".join([", ".join(map(_cap, tier[:-1])), _cap(tier[-1])])
        advice.append(f"Train with bucket_cap_mb {caps} on this model, link and number of ranks.")
        if not few and tier[-1]["step_ms"] - first["step_ms"] > LITTLE_GAIN * first["step_ms"]:
            advice.append(f"More recordings may tell them apart: {_recording_advice(table)}")
    else:
        advice.append(f"Train with bucket_cap_mb {_cap(first)} on this model, link and number of ranks.")
        smallest, largest = first["bucket_cap_mb"] == table["bucket_cap_mb"].min(), _is_largest(table, first)
        if smallest or largest:
            where = "smallest" if smallest else "largest"
            advice.append(f"It is the {where} cap of the sweep: add {'smaller' if smallest else 'larger'} ones.")
    exposed = first["exposed_ms"]
    whose = "its step" if len(tier) == 1 else f"the step with {_cap(first)}"
    if exposed <= LITTLE_GAIN * first["step_ms"]:
        advice.append(f"Little is left to hide: exposed communication is {100 * LITTLE_GAIN:.0f} % of {whose} at most.")
    else:
        advice.append(
            f"{duration(exposed)} of {whose} ({percent(exposed, first['step_ms'])}) is still exposed communication:"
            " the Summary of its run shows where."
        )
    return tuple(advice)


def sweep_ends(table: pd.DataFrame) -> dict[float, str]:
    """The caps with the shortest and the longest median step, with what each is in words."""
    tiers = _tiers(table)
    best, worst = tiers[0][0], tiers[-1][-1]
    return {
        row["bucket_cap_mb"]: f"bucket_cap_mb {_cap(row)}, the {which} median step"
        for row, which in ((best, "shortest"), (worst, "longest"))
    }


def sweep_left_out(number: int) -> str:
    """How many recordings of a sweep a report does not show one by one."""
    return (
        f"Below are one recording of the best cap and one of the worst. {count(number, 'recording')} more:"
        " overlaplab report with a run's own folder shows that run."
    )


def _tell_apart(table: pd.DataFrame) -> str:
    """How to find out which of the two shortest is faster, or why that is not worth it."""
    first, second = _two_shortest(table)
    lead = second["step_ms"] - first["step_ms"]
    if lead <= LITTLE_GAIN * second["step_ms"]:
        return (
            f"Leave bucket_cap_mb as it is among {_cap(first)} and {_cap(second)}: they differ by"
            f" {100 * lead / second['step_ms']:.1f} % of the step time."
        )
    return f"Record more before choosing: {_recording_advice(table)}"


def _recording_advice(table: pd.DataFrame) -> str:
    """How to record more: as often as can decide, or twice as often as now."""
    fewest = int(table["runs"].min())
    repeats = FEWEST_RECORDINGS if fewest < FEWEST_RECORDINGS else 2 * fewest
    return f"overlaplab sweep with --repeats {repeats} and the same --out goes on."


def _tiers(table: pd.DataFrame) -> list[list[Row]]:
    """The rows of each tier, the fastest first."""
    ordered = table.sort_values(["tier", "step_ms"], kind="stable")
    return [[*rows.to_dict("records")] for _, rows in ordered.groupby("tier")]


def _decided_by_recordings(table: pd.DataFrame) -> bool:
    """Whether recordings decide, and not the steps of one (see `across_runs.tiers`)."""
    return bool(table["runs"].min() > 1)


def _to_avoid(table: pd.DataFrame, tier: Sequence[Row], best: Row) -> bool:
    """Whether a slower tier is so much slower that one should avoid it, by several recordings of each cap."""
    return _decided_by_recordings(table) and bool(tier[0]["step_ms"] - best["step_ms"] > AVOID_SHARE * best["step_ms"])


def _slower_words(caps: Sequence[Row], best: Row) -> str:
    least = min(row["step_ms"] for row in caps) - best["step_ms"]
    at_least = "at least " if len(caps) > 1 else ""
    return f"{at_least}{percent(least, best['step_ms'])} slower than {_cap(best)}"


def _two_shortest(table: pd.DataFrame) -> tuple[Row, Row]:
    first, second, *_ = table.sort_values("step_ms", kind="stable").to_dict("records")
    return first, second


def _is_largest(table: pd.DataFrame, row: Row) -> bool:
    """Whether this is the largest cap, and a larger one would make different buckets."""
    several = bool(pd.isna(row["buckets"]) or row["buckets"] > 1)
    return several and bool(row["bucket_cap_mb"] == table["bucket_cap_mb"].max())


def _caps(rows: Sequence[Row]) -> str:
    return join_names([_cap(row) for row in rows])


def _cap(row: Row) -> str:
    return cap_digits(row["bucket_cap_mb"])
