"""Which bucket_cap_mb of a sweep is fastest, or why none is, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from overlaplab.findings.thresholds import ENOUGH_RECORDINGS, FEWEST_STEPS, LITTLE_GAIN
from overlaplab.words import count, duration, shorten


def sweep_subject(strategy: str | None, ranks: int, recordings: int, note: str | None) -> str:
    """The subject of a sweep in one line; `note` is that of `links_note`."""
    parts = (strategy, count(ranks, "rank"), count(recordings, "recording"), note)
    return shorten(", ".join(part for part in parts if part), 200)


def sweep_title(table: pd.DataFrame) -> str:
    """`sweep_finding`, short enough for a chart."""
    won = table[table["fastest"].astype(bool)]
    if len(won) == 1:
        return f"Fastest: bucket_cap_mb {won['bucket_cap_mb'].iloc[0]:g}, {duration(won['step_ms'].iloc[0])} per step"
    if table["spread_ms"].isna().any():
        return "Step time: too few steps to tell a difference"
    return "Step time: no difference beyond the spread"


def sweep_finding(table: pd.DataFrame) -> str:
    """The fastest cap, or that no difference exceeds the spread, from rows of `overlaplab.sweep`."""
    first, second = _two_shortest(table)
    if table["fastest"].any():
        lead = second["step_ms"] - first["step_ms"]
        once = " in one recording of each" if int(table["runs"].max()) == 1 else ""
        return (
            f"Fastest{once}: bucket_cap_mb {_cap(first)}, median step {first['step_ms']:.1f} ms;"
            f" the next, {_cap(second)}, takes {lead:.1f} ms longer ({_percent(lead, second['step_ms'])} of its step)"
        )
    why = "Too few steps to tell a difference" if table["spread_ms"].isna().any() else "No difference beyond the spread"
    return (
        f"{why}: bucket_cap_mb {_cap(first)} has the shortest median step,"
        f" {first['step_ms']:.1f} ms; the next, {_cap(second)}, has {second['step_ms']:.1f} ms"
    )


def sweep_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """What a reader of a sweep's figures must know, a line each."""
    notes = []
    if table["spread_ms"].isna().any():
        notes.append(f"fewer than {FEWEST_STEPS} steps of a cap have no spread, so no cap can be called the fastest")
    fewest = int(table["runs"].min())
    if fewest == 1:
        notes.append("one recording of a cap: how much recordings of the same cap differ is unknown")
    elif fewest < ENOUGH_RECORDINGS:
        notes.append(
            f"{fewest} recordings of a cap show little of how much they differ; {ENOUGH_RECORDINGS} show enough"
        )
    if table["runs"].nunique() > 1:
        counts = ", ".join(f"{_cap(row)}: {row['runs']}" for row in table.to_dict("records"))
        notes.append(f"not every cap was recorded as often (recordings by cap: {counts})")
    known = table.dropna(subset=["buckets"])
    for buckets, same in known.groupby("buckets", sort=True):
        if len(same) > 1:
            caps = " and ".join(_cap(row) for row in same.to_dict("records"))
            notes.append(f"caps {caps} make the same number of buckets, {buckets}: a difference between them is chance")
    return tuple(notes)


def sweep_advice(table: pd.DataFrame) -> tuple[str, ...]:
    """What to do after a sweep, a sentence each."""
    first, second = _two_shortest(table)
    if not table["fastest"].any():
        return (_tell_apart(table, first, second),)
    few = int(table["runs"].min()) < ENOUGH_RECORDINGS
    repeat = f"Repeat it first: overlaplab sweep with --repeats {ENOUGH_RECORDINGS} and the same --out goes on."
    advice = [repeat] if few else []
    advice += [f"Train with bucket_cap_mb {_cap(first)} on this model, link and number of ranks."]
    smallest, largest = first["bucket_cap_mb"] == table["bucket_cap_mb"].min(), _is_largest(table, first)
    if smallest or largest:
        where = "smallest" if smallest else "largest"
        advice.append(f"It is the {where} cap of the sweep: add {'smaller' if smallest else 'larger'} ones.")
    exposed = first["exposed_ms"]
    if exposed <= LITTLE_GAIN * first["step_ms"]:
        advice.append(
            f"Little is left to hide: its exposed communication is {100 * LITTLE_GAIN:.0f} % of the step at most."
        )
    else:
        advice.append(
            f"{exposed:.1f} ms of its step ({_percent(exposed, first['step_ms'])}) is still exposed communication:"
            " its Summary shows where."
        )
    return tuple(advice)


def _tell_apart(table: pd.DataFrame, first: Mapping[Any, Any], second: Mapping[Any, Any]) -> str:
    """How to find out which of the two shortest is faster, or why that is not worth it."""
    lead = second["step_ms"] - first["step_ms"]
    if lead <= LITTLE_GAIN * second["step_ms"]:
        return (
            f"Leave bucket_cap_mb as it is among {_cap(first)} and {_cap(second)}: they differ by"
            f" {_percent(lead, second['step_ms'])} of the step time."
        )
    if int(table["runs"].min()) < ENOUGH_RECORDINGS:
        return (
            f"Record more before choosing: overlaplab sweep with --repeats {ENOUGH_RECORDINGS} and the same --out goes"
            " on."
        )
    return "Record more steps (--steps) in a new sweep, on a machine with nothing else to do."


def _two_shortest(table: pd.DataFrame) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
    first, second, *_ = table.sort_values("step_ms", kind="stable").to_dict("records")
    return first, second


def _is_largest(table: pd.DataFrame, row: Mapping[Any, Any]) -> bool:
    """Whether this is the largest cap, and a larger one would make different buckets."""
    return bool(
        row["bucket_cap_mb"] == table["bucket_cap_mb"].max() and (pd.isna(row["buckets"]) or row["buckets"] > 1)
    )


def _cap(row: Mapping[Any, Any]) -> str:
    return f"{row['bucket_cap_mb']:g}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"
