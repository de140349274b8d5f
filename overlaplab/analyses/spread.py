"""Which of several settings is fastest, if the difference exceeds the spread.

A setting wins if its median step is shorter than every other's by more than the larger of the two spreads, and if each
of its recordings has a shorter median than each of the other's.

With eight steps or more the spread is the interquartile range of all the setting's steps. With fewer, quartiles mean
little, so it is the whole range. With fewer than three steps it is unknown, and nothing wins. The ranks of a step wait
for each other, so a step counts once.

The second condition covers differences between recordings of the same setting (memory layout, other load), which more
steps in one recording do not show. If recordings are exchangeable, one of k settings with R recordings each lies wholly
below all others by chance in k·R!·(kR−R)!/(kR)! of all sweeps: 10 % of two settings with three recordings each, 1.8 %
of four. Both conditions together named a winner among equals in under 5 % of simulated sweeps of four settings, even
where recordings differ three times as much as steps (`test_equals_seldom_have_a_fastest`). With one recording per
setting, differences between recordings remain unseen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from overlaplab.words import to_ms

FEWEST = 3
"""The fewest steps with a spread."""
_QUARTILES = 8
"""The fewest steps whose quartiles are used."""

Steps = npt.NDArray[np.float64]


def step_times(table: pd.DataFrame) -> Steps:
    """The spans of `summary`'s rows in ms, of shape (ranks, steps), NaN where a rank lacks a step."""
    of_rank = [to_ms(spans.to_numpy()) for _, spans in table.groupby("rank", dropna=False)["span_ns"]]
    times = np.full((len(of_rank), max(map(len, of_rank), default=0)), np.nan)
    for row, spans in zip(times, of_rank, strict=True):
        row[: len(spans)] = spans
    return times


def fastest(settings: Sequence[Sequence[Steps]]) -> int | None:
    """The index of the fastest setting; None if no difference exceeds the spread.

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
        if not middles[place] - middles[best] > widest:  # also where NaN
            return None
        if not max(own) < min(float(np.nanmedian(one)) for one in recordings):
            return None
    return best


def spread(recordings: Sequence[Steps]) -> float:
    """The spread of a setting's steps; infinite with too few steps."""
    steps = sum(one.shape[1] for one in recordings)
    values = np.concatenate([one.ravel() for one in recordings])
    if steps < FEWEST:
        return float("inf")
    if steps < _QUARTILES:
        return float(np.nanmax(values) - np.nanmin(values))
    low, high = np.nanquantile(values, [0.25, 0.75])
    return float(high - low)
