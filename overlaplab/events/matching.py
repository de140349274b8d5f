"""Rows of the event table, by texts and by threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["matching", "thread_numbers"]


def matching(column: pd.Series, predicate: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which rows of a categorical column hold a text that the predicate accepts. It is called once per category."""
    accepted = np.array([bool(predicate(text)) for text in column.cat.categories], dtype=bool)
    if not accepted.any():
        return np.zeros(len(column), dtype=bool)
    return np.append(accepted, False).take(column.cat.codes.to_numpy(), mode="wrap")  # code -1 (missing) takes the last


def thread_numbers(events: pd.DataFrame) -> NDArray[np.int64]:
    """For every event a number that identifies its (process, thread)."""
    threads_per_process = max(len(events["tid"].cat.categories), 1)
    process = np.asarray(events["pid"].cat.codes, dtype=np.int64)
    return process * threads_per_process + np.asarray(events["tid"].cat.codes, dtype=np.int64)
