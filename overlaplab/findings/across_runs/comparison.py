"""The fastest of several runs, or why none is, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import comb
from pathlib import PurePath
from typing import NamedTuple

import pandas as pd

from overlaplab.analyses.across_runs.tiers import steps_can_tell
from overlaplab.findings.runs import PREDICTED
from overlaplab.findings.thresholds import FEWEST_RECORDINGS, FEWEST_STEPS, MOST_BEATEN, MOST_REASONS, MOST_RUNS_LISTED
from overlaplab.words import cap_digits, count, duration, join_names, percent, sentence, shorten


def no_fastest(table: pd.DataFrame) -> str | None:
    """Why no row of `overlaplab.compare` is the fastest; None if one is, or if there is only one run."""
    if len(table) < 2 or table["fastest"].any():
        return None
    if table["model"].nunique() > 1:
        return "different models, not comparable"
    settings = table["recording_of"].nunique()
    if table["tier"].nunique() > 1:
        return ties([setting.label for setting in _settings(table) if setting.tier == 1])
    if _decided_by_recordings(table):
        return f"recordings show no clear difference{'' if settings <= 2 else ' from the shortest'}"
    if table["spread_ms"].isna().any():
        return f"too few steps to show a difference (fewer than {FEWEST_STEPS} in a run)"
    return "no clear difference" if settings <= 2 else ALL_TIE


ALL_TIE = "all tie with the shortest"
"""Why none of more than two settings is the fastest; they may differ from each other (see `across_runs.tiers`)."""


def ties(labels: Sequence[str]) -> str:
    """That settings of the first tier tie with the first of them; the others may differ from each other."""
    return f"{join_names(labels)} tie" if len(labels) <= 2 else f"{labels[0]} ties with {join_names(labels[1:])}"


def compare_title(table: pd.DataFrame, labels: Sequence[str], by_cap: bool) -> str:
    """The fastest row of `overlaplab.compare`, or why there is none; `by_cap`: the labels are caps."""
    if len(table) < 2:
        return "Step time of one run: choose another to compare"
    if (why := no_fastest(table)) is not None:
        others = count(table.loc[table["tier"].eq(1), "recording_of"].nunique() - 1, "other")
        some_slower = table["tier"].nunique() > 1 and table["model"].nunique() < 2
        return f"Step time: {f'the fastest ties with {others}' if some_slower else why}"
    wins = table["fastest"].astype(bool)
    fastest = [label for label, won in zip(labels, wins, strict=True) if won]
    if len(fastest) > 1:
        return f"Fastest: {', '.join(fastest)}, recordings of one setting"
    median = table.loc[wins, "step_ms_median"].iloc[0]
    return f"Fastest: {'bucket_cap_mb ' if by_cap else ''}{fastest[0]}, {duration(median)} per step"


def compare_finding(table: pd.DataFrame) -> str:
    """Say which of the rows of `overlaplab.compare` has the shortest step, which others it beats, and by how much.

    Two that are not the shortest are not compared, so that what is said of a pair does not depend on the others.
    """
    if len(table) < 2:
        return "One run: nothing is compared"
    if table["model"].nunique() > 1:
        return f"Different models, not comparable: {_models_differ(table)}"
    settings = _settings(table)
    if len(settings) < 2:
        return f"Nothing to compare: no step was measured in {_first_names(_without_steps(table))}"
    first = [setting for setting in settings if setting.tier == 1]
    slower = [setting for setting in settings if setting.tier != 1]
    if not slower:
        best, second, *_ = settings
        return (
            f"{sentence(no_fastest(table) or '').removesuffix('.')}: {best.label} has the shortest median step,"
            f" {duration(best.step_ms)}; the next, {second.label}, has {duration(second.step_ms)}"
        )
    once = "" if _decided_by_recordings(table) else " in one recording of each"
    least = first[0].step_ms
    named = slower if len(slower) <= MOST_BEATEN + 1 else slower[:MOST_BEATEN]
    beaten = [
        f"{setting.label} by {duration(setting.step_ms - least)} ({percent(setting.step_ms - least, setting.step_ms)}"
        f"{f' of the step of {setting.label}' if place == 0 else ''})"
        for place, setting in enumerate(named)
    ]
    if len(named) < len(slower):
        beaten.append(f"{count(len(slower) - len(named), 'slower one')} by more")
    leader, *tied = [setting.label for setting in first]
    beside = f"; it ties with {join_names(tied)}" if tied else ""
    return f"{leader} beats {join_names(beaten)}{once}{beside}"


def compare_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """What a reader of a comparison must know of how it was decided, a line each."""
    fewest = int(table["recording_of"].value_counts().min())
    judged = table["tier"].notna().all()
    few = too_few_recordings(fewest, "settings") if fewest > 1 and judged else ()
    if fewest == 1 and judged and table["tier"].eq(1).all():
        few = _too_few_steps(table)
    by = "a predicted run is no recording: it is judged by the spread of the steps that it was predicted from"
    return (*few, by) if table["predicted"].any() else few


def too_few_recordings(fewest: int, what: str) -> tuple[str, ...]:
    """A note that so few recordings of each of two `what` cannot tell them apart; none where they can."""
    if fewest >= FEWEST_RECORDINGS:
        return ()
    return (
        f"{fewest} recordings of each cannot tell two {what} apart: all of one are faster than all of the other by"
        f" chance in {percent(2, comb(2 * fewest, fewest))} of cases; {FEWEST_RECORDINGS} can",
    )


def _too_few_steps(table: pd.DataFrame) -> tuple[str, ...]:
    """That steps of single recordings tie, although all of one may be shorter than all of the other."""
    steps = table.groupby("recording_of")["steps"].sum()
    fewest = int(steps.min())
    if len(steps) < 2 or steps_can_tell(fewest, fewest) or fewest < FEWEST_STEPS:
        return ()
    return (
        f"{fewest} steps of each tell two settings apart only by a gap wider than their range: all of one are shorter"
        f" than all of the other by chance in {percent(2, comb(2 * fewest, fewest))} of cases; {fewest + 1} steps can",
    )


def compare_advice(table: pd.DataFrame) -> str:
    """What to do next, from rows of `overlaplab.compare`."""
    if len(table) < 2:
        return "Choose another run to compare this one with."
    if table["fastest"].any():
        return "Keep the fastest, or vary one more thing about it and compare again."
    if table["model"].nunique() > 1:
        return "Compare runs of one model: its layers, width, batch and sequence decide how long a step takes."
    if table["tier"].nunique() > 1:
        first = [setting.label for setting in _settings(table) if setting.tier == 1]
        return f"Keep one of {join_names(first)}, or record each {FEWEST_RECORDINGS} times and more to tell them apart."
    if table["spread_ms"].isna().any():
        return (
            f"Record at least {FEWEST_STEPS} steps of each run before choosing: fewer do not show how much steps"
            " differ."
        )
    if _decided_by_recordings(table):
        return "Record each setting more often before choosing."
    return "Record more steps or repeat the runs before choosing: the difference is within the spread."


def work_compared(chosen: str, differing: Mapping[str, Sequence[str] | None] | None) -> str:
    """Why no other run is compared with the chosen one: per run the keys in which its work differs, None if unknown.

    The keys are those of `analyses.work_differs`; no mapping where the chosen run has no run.json.
    """
    if differing is None:
        unknown_work = "so which runs did the same work is unknown: choose those to compare."
        return f"{shorten(chosen)} has no run.json, {unknown_work}"
    if not differing:
        return f"There is no other run to compare {shorten(chosen)} with."
    unknown = [name for name, keys in differing.items() if keys is None]
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, keys in differing.items():
        if keys is not None:
            alike.setdefault(tuple(keys), []).append(name)
    reasons = [
        f"{_first_names(names)} {'differ' if len(names) > 1 else 'differs'} in"
        f" {join_names([_WORDS.get(key, key) for key in keys])}"
        for keys, names in sorted(alike.items(), key=lambda item: len(item[0]))[:MOST_REASONS]
    ]
    if unknown:
        reasons.append(f"{_first_names(unknown)}: model unknown (no run.json)")
    return f"No other run here did the same work as {shorten(chosen)}: {'; '.join(reasons)}."


_WORDS = {
    "world_size": "the number of ranks",
    "mesh": "the mesh",
    "accumulate": "the number of microbatches",
    "link": "the link",
    "link_wait": "how the link is waited for",
    "phantom_ranks": "phantom ranks",
    "hardware": "the machine",
    "seq": "the sequence's length",
    "vocab": "the vocabulary",
    "batch": "the batch",
}
"""Words for the keys of `analyses.work_differs`, where they do not read as such."""


def links_refused(names: Sequence[str]) -> str | None:
    """Name the links to folders that the dashboard does not follow, and what to do; None without any."""
    if not names:
        return None
    what = f"{'a link' if len(names) == 1 else 'links'} out of this folder"
    return f"Not opened, {what}: {_first_names(names)}. Copy the runs here, or open their own folder."


def _first_names(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = [shorten(name, 40) for name in names[:MOST_RUNS_LISTED]]
    more = len(names) - len(shown)
    return join_names([*shown, count(more, "other")] if more else shown)


class _ComparedSetting(NamedTuple):
    """The recordings of one setting in a table of `overlaplab.compare`."""

    tier: int
    step_ms: float
    label: str


def _settings(table: pd.DataFrame) -> list[_ComparedSetting]:
    """The settings of which steps were measured, the fastest first."""
    axis, labels = run_labels(table)
    named = table.assign(label=[f"{'cap ' if axis == 'bucket_cap_mb' else ''}{label}" for label in labels])
    by_setting = named.dropna(subset=["step_ms_median"]).groupby("recording_of")
    rows = by_setting.agg(tier=("tier", "first"), step_ms=("step_ms_median", "median"), label=("label", "first"))
    ordered = rows.sort_values(["tier", "step_ms"], kind="stable")
    return [_ComparedSetting(*row) for row in ordered.itertuples(index=False)]


def _without_steps(table: pd.DataFrame) -> list[str]:
    return [label for label, step in zip(run_labels(table)[1], table["step_ms_median"], strict=True) if pd.isna(step)]


def _decided_by_recordings(table: pd.DataFrame) -> bool:
    """Whether recordings decide, and not the steps of one (see `across_runs.tiers`)."""
    return bool(table["recording_of"].value_counts().min() > 1)


def _models_differ(table: pd.DataFrame) -> str:
    """In what the models differ, with the values."""
    models = [json.loads(model) for model in table["model"].dropna().unique()]
    named = dict.fromkeys(key for model in models for key in model)
    keys = [key for key in named if key != "parameters"] or list(named)  # of a model that is not the engine's
    values = {key: dict.fromkeys(str(model.get(key, "unknown")) for model in models) for key in keys}
    differences = [
        f"{_WORDS.get(key, key)} {join_names([shorten(value, 20) for value in distinct])}"
        for key, distinct in values.items()
        if len(distinct) > 1
    ]
    return "; ".join(differences[:MOST_REASONS])


def run_labels(table: pd.DataFrame) -> tuple[str, list[str]]:
    """The title of the runs' axis, `run` or `bucket_cap_mb`, and a distinct label per run."""
    caps = table["bucket_cap_mb"]
    same = all(table[column].nunique(dropna=False) <= 1 for column in ("strategy", "ranks", "emulated", "predicted"))
    if same and caps.notna().all() and caps.nunique() == len(table) > 1:
        return "bucket_cap_mb", [
            f"{cap_digits(cap)}{predicted_mark(predicted)}"
            for cap, predicted in zip(caps, table["predicted"], strict=True)
        ]
    folders = [PurePath(str(path)) for path in table["path"]]
    labels = [shorten(folder.name or str(folder), 40) for folder in folders]
    for depth in (2, 3):
        if len(set(labels)) == len(labels):
            break
        labels = [shorten("/".join(folder.parts[-depth:]), 40) for folder in folders]
    if len(set(labels)) < len(labels):
        labels = [f"{number}: {label}" for number, label in enumerate(labels, 1)]
    mixed = table["emulated"].nunique() > 1
    return "run", [
        f"{label}{' (emulated link)' if mixed and emulated else ''}{predicted_mark(predicted)}"
        for label, emulated, predicted in zip(labels, table["emulated"], table["predicted"], strict=True)
    ]


def predicted_mark(predicted: bool) -> str:
    """What follows the name of a run that nobody recorded."""
    return f" ({PREDICTED})" if predicted else ""


def short_names(table: pd.DataFrame) -> list[str]:
    """The last part of each run's path, or as many parts as tell the runs apart."""
    parts = [PurePath(str(path)).parts for path in table["path"]]
    for depth in range(1, max(map(len, parts), default=1)):
        names = ["/".join(path_parts[-depth:]) for path_parts in parts]
        if len(set(names)) == len(set(parts)):
            break
    else:
        names = [str(path) for path in table["path"]]
    return [name + predicted_mark(predicted) for name, predicted in zip(names, table["predicted"], strict=True)]
