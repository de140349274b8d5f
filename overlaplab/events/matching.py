"""Rows of the event table, by texts and by threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.intervals import Integers, Mask


def matching(column: pd.Series, predicate: Callable[[str], object]) -> Mask:
    """Mark rows of a categorical column whose text the predicate accepts, which is called once per category."""
    texts = _as_categorical(column)
    accepted = np.array([bool(predicate(text)) for text in texts.categories], dtype=bool)
    if not accepted.any():
        return np.zeros(len(column), dtype=bool)
    return np.append(accepted, False).take(texts.codes, mode="wrap")  # code -1 (missing) takes the last


def thread_numbers(events: pd.DataFrame, rows: NDArray[np.integer] | slice = slice(None)) -> Integers:
    """For every event, or for those of these rows, a number that identifies its (process, thread)."""
    processes, threads = (_as_categorical(events[name]) for name in ("pid", "tid"))
    threads_per_process = max(len(threads.categories), 1)
    return np.asarray(processes.codes[rows].astype(np.int64) * threads_per_process + threads.codes[rows])


def _as_categorical(column: pd.Series) -> pd.Categorical:
    """The column's codes and texts: of few rows, the accessor `cat` takes longer than all else."""
    return cast(pd.Categorical, column.array)
