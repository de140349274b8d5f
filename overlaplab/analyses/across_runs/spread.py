"""How much the steps of a setting differ.

With eight steps or more the spread is the interquartile range of all the setting's steps. With fewer, quartiles mean
little, so it is the whole range. With fewer than three steps it is unknown. The ranks of a step wait for each other, so
a step counts once.
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


def spread(recordings: Sequence[Steps]) -> float:
    """The spread of a setting's steps; infinite with too few steps."""
    steps = sum(recording.shape[1] for recording in recordings)
    values = np.concatenate([recording.ravel() for recording in recordings])
    if steps < FEWEST:
        return float("inf")
    if steps < _QUARTILES:
        return float(np.nanmax(values) - np.nanmin(values))
    low, high = np.nanquantile(values, [0.25, 0.75])
    return float(high - low)
