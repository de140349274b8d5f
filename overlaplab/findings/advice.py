"""What another setting would gain, from one recorded run, and whether recordings confirm it.

The first sentence is the diagnosis's own advice, so that no two screens advise differently.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd

from overlaplab import simulate
from overlaplab.analyses.across_runs.tiers import Verified
from overlaplab.events import Run
from overlaplab.evidence.arrays import int_or_none
from overlaplab.findings.actions.ranked import certainty_words
from overlaplab.findings.actions.words import cap_words, first_bucket_words
from overlaplab.findings.diagnosis.diagnose import Diagnosis, place_name
from overlaplab.findings.diagnosis.other_problems import LEAVE_CORES
from overlaplab.findings.loops import Loop
from overlaplab.findings.predictions import find_disturbance
from overlaplab.findings.thresholds import LITTLE_GAIN, MOST_BUCKETS_LISTED
from overlaplab.findings.windows import window_word
from overlaplab.traits import BUCKETS
from overlaplab.words import (
    cap_digits,
    capitalise,
    count,
    doubt_clause,
    duration,
    join_names,
    ms,
    percent,
    size_exact,
    to_ms,
)

Row: TypeAlias = Mapping[Any, Any]
"""A row of `simulate.advise`."""

_CHANGES_LEAST = ("first_bucket", "cap", "prefetch", "cap_and_first_bucket")
"""The `option`s of `simulate.advise` that are advised: of those that gain as much the first. Lists of caps are not."""

_COLUMNS_OF = {"first_bucket": "first_bucket_mb", "cap": "bucket_cap_mb", "prefetch": "prefetch"}
"""By action the column of `simulate.advise` that has its setting."""


def advice_refused(run: Run) -> tuple[str, str] | None:
    """Why nothing can be said of other settings, and what to do about it; None where it can."""
    manifest = run.manifest
    if manifest is None:
        return None
    if (disturbance := find_disturbance(run)) is not None:
        return disturbance
    if not simulate.can_try_buckets(run):
        beyond = "every other cap would send more than twice, or less than half, of what was measured"
        emulated = "" if manifest.by_recorder else ", or behind an emulated link"
        return beyond, f"Also record it with another bucket_cap_mb{emulated}."
    return None


def choose_setting(table: pd.DataFrame, diagnosis: Diagnosis | None) -> Row | None:
    """The setting to try, of rows of `simulate.advise`, or None: the one that the run's diagnosis advises, if any, else
    what changes least of those that gain as much.
    """
    rows = [row for row in table[table["best"]].to_dict("records") if row["option"] in _CHANGES_LEAST]
    worth = [row for row in rows if not _is_little(row)]
    for first in diagnosis.actions[:1] if diagnosis else ():
        name = first.action.name
        worth = [r for r in worth if r["option"] == name and r[_COLUMNS_OF[name]] == first.setting] or worth
    most = max((row["gain_ns"] for row in worth), default=0)
    enough = [row for row in worth if row["gain_ns"] >= most - LITTLE_GAIN * _present_ns(row)]
    return min(enough, key=lambda row: _CHANGES_LEAST.index(row["option"]), default=None)


def neighbour(table: pd.DataFrame, row: Row) -> Row | None:
    """The setting next to an advised one: a bucket fewer, or else more; a unit further ahead, or else less far."""
    same_option = table[table["option"] == row["option"]]
    column, first_sign = ("prefetch", 1) if row["option"] == "prefetch" else ("buckets", -1)
    for sign in (first_sign, -first_sign):
        beyond = same_option[(same_option[column] - row[column]) * sign > 0]
        if len(beyond):
            away = (beyond[column] - row[column]).abs()
            nearest: list[Row] = beyond[away == away.min()].to_dict("records")
            return max(nearest, key=lambda other: int(other["gain_ns"]))
    return None


def option_words(row: Row) -> str:
    """A setting of `simulate.advise` as its option is written."""
    match row["option"]:
        case "cap":
            return cap_words(row["bucket_cap_mb"])
        case "first_bucket":
            return first_bucket_words(row["first_bucket_mb"])
        case "cap_and_first_bucket":
            return f"{cap_words(row['bucket_cap_mb'])} and {first_bucket_words(row['first_bucket_mb'])}"
        case "prefetch":
            return f"prefetch {row['prefetch']}"
    return "a cap for each bucket (bucket_cap_mb_list)"


def advice_sentences(table: pd.DataFrame, diagnosis: Diagnosis) -> Iterator[str]:
    """What the advised setting and the best list of caps gain, and what no buckets gain: rows of `simulate.advise`."""
    if table.empty:
        most_ns = cutting_limit_ns(table, diagnosis)
        caps_by_model = [each for each in diagnosis.actions if each.action.name == "cap" and each.what]
        if caps_by_model:
            caps = (f"{each.text} gains {ms(each.gain_ns)} ({certainty_words(each)})" for each in caps_by_model)
            yield f"Each model has a cap of its own: {'; '.join(caps)}."
        elif most_ns is None:
            yield (
                "No bucket or prefetch setting can be predicted from this run alone: `overlaplab predict` with"
                " --bucket-cap-mb or --prefetch says why."
            )
        else:
            where = place_name(diagnosis)
            yield f"Other buckets gain at most {ms(most_ns)} in {where}; none was replayed with all ranks."
        return
    chosen, window = choose_setting(table, diagnosis), window_word(diagnosis.step)
    whole = "mean step" if window == "step" else window
    if chosen is None:
        tried = " or ".join(dict.fromkeys(_KINDS[option] for option in table["option"] if option in _KINDS))
        yield f"Another {tried} is not predicted to gain more than {percent(LITTLE_GAIN, 1)} of the {window}."
    else:
        another_is_advised = diagnosis.advice == LEAVE_CORES or any(
            each.is_worth_it and each.action.name not in _COLUMNS_OF for each in diagnosis.actions[:1]
        )
        yield f"{'Of these settings' if another_is_advised else 'First to try'}: {_sentence(chosen, window)}"
    for row in table[table["best"] & (table["option"] == "buckets") & (table["buckets"] > 1)].to_dict("records"):
        if not _is_little(row):
            first = next((each for each in diagnosis.actions if each.is_worth_it), None)
            doubt_ns = max(LITTLE_GAIN * _present_ns(row), int_or_none(row["half_ns"]) or 0)
            more = first is not None and row["replayed"] and row["gain_ns"] > first.gain_ns + doubt_ns
            yield f"{capitalise(_sentence(row, window))}{_MORE_THAN_FIRST if more else ''}"
    played = bool(table["least_ns"].notna().any())
    gained_ns = max((int(ns) for ns in table.loc[table["replayed"], "gain_ns"]), default=0)
    most_ns = cutting_limit_ns(table, diagnosis)
    if most_ns is not None and (played or most_ns >= gained_ns):  # a step's bound keeps its idle time, a play need not
        where = f"of the {whole}" if played else f"in {place_name(diagnosis)}"
        yield f"No division into buckets gains more than {'about ' if played else ''}{ms(most_ns)} {where}."
    if table["replayed"].any():
        ranges = (
            "Gains are means over undisturbed steps (over all if every step was disturbed). Ranges go from the smallest"
            " of these steps' gains to the largest, widened by 1 % of a step."
        )
        yield f"{ranges if window == 'step' else ''}{_recorded_gains(table)}".strip()


def _recorded_gains(table: pd.DataFrame) -> str:
    if table["half_ns"].isna().all():
        return " How much recordings differ is unknown."
    half = ms(int(table["half_ns"].max()))
    return (
        f" The gain between the means of several recordings of each setting lies within ± {half} of the predicted one"
        " in 95 of 100 cases; between two single ones it may differ more."
    )


_MORE_THAN_FIRST = (
    " That is more than the first action gains; its caps are cut to this recording, so record it before you keep it."
)
_KINDS = {
    "cap": "bucket_cap_mb",
    "first_bucket": "first bucket",
    "cap_and_first_bucket": "first bucket",
    "prefetch": "prefetch",
}
"""What the options of `_CHANGES_LEAST` are called where none of them gains enough."""


def _sentence(row: Row, window: str) -> str:
    words, now_ns = option_words(row), _present_ns(row)
    if row["option"] == "buckets":
        words += f", the best {row['buckets']}, {_caps(row['caps_mb'])}"
    elif pd.notna(row["buckets"]):
        words += f", {count(row['buckets'], 'bucket')}"
    if not row["replayed"]:
        return f"{words}: gain at most {ms(row['gain_ns'])} of {ms(now_ns)}, if nothing is delayed and no rank is late."
    doubt = doubt_clause(int(row["gain_ns"]), int_or_none(row["half_ns"]))
    over = f"; over the steps {ms(row['low_ns'])} to {ms(row['high_ns'])}" if window == "step" else ""
    return (
        f"{words}: predicted gain {ms(row['gain_ns'])} ({percent(row['gain_ns'], now_ns)} of {ms(now_ns)}){doubt}"
        f"{over}{_memory(row)}."
    )


def _memory(row: Row) -> str:
    if pd.isna(row["memory_bytes"]) or not row["memory_bytes"]:
        return ""
    return f"; each rank holds up to {size_exact(row['memory_bytes'])} more"


def _caps(caps_mb: Sequence[float]) -> str:
    shown = [cap_digits(cap) for cap in caps_mb[:MOST_BUCKETS_LISTED]]
    more = len(caps_mb) - len(shown)
    return f"with caps of {', '.join(shown)} MiB and {more} more" if more else f"with caps of {join_names(shown)} MiB"


def cutting_limit_ns(table: pd.DataFrame, diagnosis: Diagnosis) -> int | None:
    """The most that any division into buckets gains, from rows of `simulate.advise`; None where that is unknown.

    It is of the mean step where buckets were played, else of the diagnosis's step.
    """
    played = table[table["least_ns"].notna()]
    if len(played):
        row = played.iloc[0]
        return max(int(row["step_ns"] + row["gain_ns"] - row["least_ns"]), 0)
    return diagnosis.bucket_gain_ns


def _present_ns(row: Row) -> int:
    """The mean step as recorded; a row's `step_ns` is the step with its setting."""
    return int(row["step_ns"] + row["gain_ns"])


def _is_little(row: Row) -> bool:
    """Whether a setting gains too little of the present step to be worth an effort."""
    return bool(row["gain_ns"] <= LITTLE_GAIN * _present_ns(row))


def advice_lines(table: pd.DataFrame, loop: Loop, diagnosis: Diagnosis) -> Iterator[str]:
    """The lines of a training script, or the options of `overlaplab record`, to change; none where none would gain, or
    where something else is advised.
    """
    if diagnosis.advice == LEAVE_CORES:
        return
    for each in diagnosis.actions[:1]:
        if each.action.name in ("strategy", "library_collectives"):
            yield f"overlaplab record … --strategy {each.what}"
        if each.is_certain and each.action.name not in _BY_LINES:
            return
    worth = {row["option"]: row for row in table[table["best"]].to_dict("records") if not _is_little(row)}
    if loop.framework == "engine" and (chosen := choose_setting(table, diagnosis)) is not None:
        yield f"overlaplab record … {' '.join(record_options(chosen, loop))}"
    if loop.swept is not None and "cap" in worth and "bucket_cap_mb" in loop.swept.settings:
        yield shlex.join(loop.swept.words(bucket_cap_mb=cap_digits(worth["cap"]["bucket_cap_mb"])))
    if loop.traits == BUCKETS:
        if "cap" in worth:
            yield f"DistributedDataParallel(model, bucket_cap_mb={cap_digits(worth['cap']['bucket_cap_mb'])})"
        if "buckets" in worth and worth["buckets"]["buckets"] > 1:
            caps = ", ".join(cap_digits(cap) for cap in worth["buckets"]["caps_mb"])
            yield f"DistributedDataParallel(model, bucket_cap_mb_list=[{caps}])"
    another_is_certain = any(each.is_certain and each.action.name != "prefetch" for each in diagnosis.actions[:1])
    gathers_cost = _gathers_ns(diagnosis) > LITTLE_GAIN * diagnosis.span_ns
    if loop.framework == "fsdp2" and loop.roots < 2 and loop.units != 1 and gathers_cost and not another_is_certain:
        yield from _AHEAD


_BY_LINES = ("first_bucket", "cap", "strategy", "prefetch")
"""First actions beside which `advice_lines` names settings, too; beside any other that is certain it does not."""


def _gathers_ns(diagnosis: Diagnosis) -> int:
    """How much of the step waited for gathers."""
    rows = [share.rows[share.rows["kind"] == "all_gather"] for share in diagnosis.causes]
    return sum(int(each["exposed_ns"].sum()) for each in rows)


_AHEAD = (
    "for i, layer in enumerate(layers):",
    "    layer.set_modules_to_forward_prefetch(layers[i + 1 : i + 3])",
    "    layer.set_modules_to_backward_prefetch(layers[max(i - 2, 0) : i][::-1])",
)
"""FSDP2's calls that gather two units ahead, where it gathers one by itself."""


def record_options(row: Row, loop: Loop) -> list[str]:
    """The options of `overlaplab record` for a setting; a strategy without buckets becomes one with them."""
    options: list[str] = []
    if row["option"] != "prefetch" and loop.traits is not None and not loop.traits.buckets:
        options += ["--strategy", "bucketed"]
    for name in ("bucket_cap_mb", "first_bucket_mb", "prefetch"):
        if pd.notna(row[name]):
            options += [f"--{name.replace('_', '-')}", f"{row[name]:.12g}"]
    return options


def verified_finding(row: Row, verified: Verified, other: Row | None, beside: Verified | None) -> tuple[bool, str]:
    """Whether recordings confirm the gain of an advised setting, a row of `simulate.advise`, in a sentence.

    `verified` compares the present setting with it, `beside` it with its neighbour, the row `other`.
    """
    low, high = verified.gained_ms - verified.error_ms, verified.gained_ms + verified.error_ms
    inside = low <= to_ms(row["high_ns"]) and high >= to_ms(row["low_ns"])
    overtaken = beside is not None and beside.faster
    confirmed = verified.faster and inside and not overtaken
    apart = "are told apart" if verified.faster else "cannot be told apart"
    parts = [
        f"{'Confirmed' if confirmed else 'Not confirmed'}: the median step takes {duration(verified.after_ms)} with"
        f" {option_words(row)}, {duration(verified.before_ms)} before",
        f"{count(verified.recordings, 'recording')} of each {apart}",
        f"the gain is {duration(verified.gained_ms)} ± {duration(verified.error_ms)},"
        f" {'within' if inside else 'outside'} the predicted {ms(row['low_ns'])} to {ms(row['high_ns'])}"
        f" ({ms(row['gain_ns'])})",
    ]
    if beside is not None and other is not None:
        parts.append(
            f"{option_words(other)}, next to it, {'is faster still' if overtaken else 'is not faster'}:"
            f" {duration(beside.after_ms)}"
        )
    return confirmed, f"{'; '.join(parts)}."
