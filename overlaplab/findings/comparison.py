"""Which of several runs is fastest, or why none is, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import pandas as pd

from overlaplab.findings.thresholds import FEWEST_STEPS
from overlaplab.words import duration, shorten


def no_fastest(table: pd.DataFrame) -> str | None:
    """Why no row of `overlaplab.compare` is the fastest; None if one is, or if there is only one run."""
    if len(table) < 2 or table["fastest"].any():
        return None
    if table["model"].nunique() > 1:
        return "different models, not comparable"
    if table["spread_ms"].isna().any():
        return f"too few steps to tell a difference (fewer than {FEWEST_STEPS} in a run)"
    return "no difference beyond the spread"


def compare_title(table: pd.DataFrame, labels: Sequence[str], by_cap: bool) -> str:
    """The fastest row of `overlaplab.compare`, or why there is none; `by_cap`: the labels are caps."""
    if len(table) < 2:
        return "Step time of one run: choose another to compare"
    if (why := no_fastest(table)) is not None:
        return f"Step time: {why}"
    wins = table["fastest"].astype(bool)
    fastest = [label for label, won in zip(labels, wins, strict=True) if won]
    if len(fastest) > 1:
        return f"Fastest: {', '.join(fastest)}, recordings of one setting"
    median = table.loc[wins, "step_ms_median"].iloc[0]
    return f"Fastest: {'bucket_cap_mb ' if by_cap else ''}{fastest[0]}, {duration(median)} per step"


def compare_advice(table: pd.DataFrame) -> str:
    """What to do next, from rows of `overlaplab.compare`."""
    if len(table) < 2:
        return "Choose another run to compare this one with."
    if table["fastest"].any():
        return "Keep the fastest, or vary one more thing about it and compare again."
    if table["model"].nunique() > 1:
        return "Compare runs of one model: its layers, width, batch and sequence decide how long a step takes."
    if table["spread_ms"].isna().any():
        return (
            f"Record at least {FEWEST_STEPS} steps of each run before choosing: fewer do not show how much steps"
            " differ."
        )
    return "Record more steps or repeat the runs before choosing: the difference is within the spread."


def run_labels(table: pd.DataFrame) -> tuple[str, list[str]]:
    """The axis' title and a distinct word per run."""
    caps = table["bucket_cap_mb"]
    same = all(table[column].nunique(dropna=False) <= 1 for column in ("strategy", "ranks", "emulated"))
    if same and caps.notna().all() and caps.nunique() == len(table) > 1:
        return "bucket_cap_mb", [f"{cap:g}" for cap in caps]
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
        f"{label} (emulated link)" if mixed and emulated else label
        for label, emulated in zip(labels, table["emulated"], strict=True)
    ]


def short_names(table: pd.DataFrame) -> list[str]:
    """The last part of each run's path, or as many parts as tell the runs apart."""
    parts = [PurePath(str(path)).parts for path in table["path"]]
    for depth in range(1, max(map(len, parts), default=1)):
        names = ["/".join(own[-depth:]) for own in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(path) for path in table["path"]]
