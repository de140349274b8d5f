"""Which of several runs is fastest, or why none is, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from overlaplab.findings.thresholds import FEWEST_STEPS
from overlaplab.words import duration


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
