"""Which of several settings is fastest, if any is beyond the spread.

A setting wins if its median step is shorter than every other's by more than the larger of the two spreads, and if each
of its recordings has a shorter median than each of the other's.

The spread is the interquartile range of all its steps from eight steps on; with fewer, whose quartiles tell little, the
whole range; fewer than three tell none, and nothing wins. The ranks of a step wait for each other, so they count once.

The second condition is for what differs between recordings of the same setting (where memory lies, what else the
machine does), which no number of steps in one recording shows: under exchangeable recordings, one of k settings with R
recordings each lies wholly below all others by chance in k·R!·(kR−R)!/(kR)! of all sweeps: 10 % of two settings with
three recordings each, 1.8 % of four. Both conditions together named a winner among equals in under 5 % of simulated
sweeps of four settings, recordings that differ three times as much as steps included
(`test_equals_seldom_have_a_fastest`). With one recording each, what differs between recordings is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from overlaplab.words import to_ms

__all__ = ["FEWEST", "Steps", "fastest", "spread", "step_times"]

FEWEST = 3
"""Steps that it takes to tell a spread."""
_QUARTILES = 8
"""Steps from which on quartiles tell it."""

Steps = npt.NDArray[np.float64]


def step_times(table: pd.DataFrame) -> Steps:
    """The spans of `summary`'s rows in ms, of shape (ranks, steps), NaN where a rank lacks a step."""
    of_rank = [to_ms(spans.to_numpy()) for _, spans in table.groupby("rank", dropna=False)["span_ns"]]
    times = np.full((len(of_rank), max(map(len, of_rank), default=0)), np.nan)
    for row, spans in zip(times, of_rank, strict=True):
        row[: len(spans)] = spans
    return times


def fastest(settings: Sequence[Sequence[Steps]]) -> int | None:
    """The place of the fastest setting, None where there is none beyond the spread.

    Each setting is its recordings, each an array of shape (ranks, steps) of step times in any one unit, NaN where a
    rank lacks a step.
    """
    if len(settings) < 2 or any(np.isfinite(one).sum() == 0 for recordings in settings for one in recordings):
        return None
    pooled = [np.concatenate([one.ravel() for one in recordings]) for recordings in settings]
    middles = [float(np.nanmedian(values)) for values in pooled]
    spreads = [spread(recordings) for recordings in settings]
    best = int(np.argmin(middles))
    own = [float(np.nanmedian(one)) for one in settings[best]]
    for place, recordings in enumerate(settings):
        if place == best:
            continue
        widest = max(spreads[best], spreads[place])
        if not middles[place] - middles[best] > widest:  # of NaN, too
            return None
        if not max(own) < min(float(np.nanmedian(one)) for one in recordings):
            return None
    return best


def spread(recordings: Sequence[Steps]) -> float:
    """The spread of a setting's steps; infinite where too few tell it."""
    steps = sum(one.shape[1] for one in recordings)
    values = np.concatenate([one.ravel() for one in recordings])
    if steps < FEWEST:
        return float("inf")
    if steps < _QUARTILES:
        return float(np.nanmax(values) - np.nanmin(values))
    low, high = np.nanquantile(values, [0.25, 0.75])
    return float(high - low)
