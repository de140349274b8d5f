"""Rows of the event table: by texts, by threads and by times; and which call of the host launched which."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events.run import Trace, once_per_trace
from overlaplab.intervals import Integers, Mask
from overlaplab.vocabulary import ANNOTATION_CATEGORIES, is_device_category, is_runtime_category

Rows = NDArray[np.integer] | Mask | slice
_ALL = slice(None)


def matching(column: pd.Series, predicate: Callable[[str], object]) -> Mask:
    """Mark rows of a categorical column whose text the predicate accepts, which is called once per category."""
    texts = _as_categorical(column)
    accepted = np.array([bool(predicate(text)) for text in texts.categories], dtype=bool)
    if not accepted.any():
        return np.zeros(len(column), dtype=bool)
    return np.append(accepted, False).take(texts.codes, mode="wrap")  # code -1 (missing) takes the last


def host_ranges(events: pd.DataFrame, predicate: Callable[[str], object] | None = None) -> Mask:
    """Mark the host's named ranges, but not their copies on a device; only names that the predicate accepts."""
    ranges = matching(events["category"], ANNOTATION_CATEGORIES.__contains__)
    return ranges if predicate is None else ranges & matching(events["name"], predicate)


def event_times(events: pd.DataFrame, rows: Rows = _ALL) -> tuple[Integers, Integers]:
    """The starts and ends of all events, or of those of these rows, in absolute ns."""
    starts = events["ts_ns"].to_numpy(np.int64)[rows]
    return starts, starts + events["dur_ns"].to_numpy(np.int64)[rows]


def thread_numbers(events: pd.DataFrame, rows: Rows = _ALL) -> Integers:
    """For every event, or for those of these rows, a number that identifies its (process, thread)."""
    processes, threads = (_as_categorical(events[name]) for name in ("pid", "tid"))
    threads_per_process = max(len(threads.categories), 1)
    return np.asarray(processes.codes[rows].astype(np.int64) * threads_per_process + threads.codes[rows])


def _as_categorical(column: pd.Series) -> pd.Categorical:
    """The column's codes and texts: of few rows, the accessor `cat` takes longer than all else."""
    return cast(pd.Categorical, column.array)


def runtime_calls(events: pd.DataFrame) -> Mask:
    """Mark the host's calls that launched something on a device, identified by `correlation`."""
    runtime = matching(events["category"], is_runtime_category)
    return np.asarray(runtime & (events["correlation"].to_numpy() >= 0))


@once_per_trace
def launches_graphs(trace: Trace) -> bool:
    """Whether the host launches CUDA or HIP graphs."""
    calls = matching(trace.events["category"], is_runtime_category)
    return bool((calls & matching(trace.events["name"], lambda name: "GraphLaunch" in name)).any())


@once_per_trace
def launchers(trace: Trace) -> Integers:
    """For every event the row of the call that launched it, -1 where unknown; read-only.

    One call may launch many events: the kernels of a CUDA graph all share the correlation of its launch.
    """
    events = trace.events
    device = np.flatnonzero(matching(events["category"], is_device_category))
    launcher = np.full(len(events), -1, dtype=np.int64)
    launcher[device] = calls_of(events, device)
    launcher.flags.writeable = False
    return launcher


def calls_of(events: pd.DataFrame, rows: NDArray[np.intp]) -> Integers:
    """For each of these rows the row of the first call with its correlation, or -1; events are in order of time."""
    called = np.flatnonzero(runtime_calls(events))
    if not len(called):
        return np.full(len(rows), -1, dtype=np.int64)
    correlations = events["correlation"].to_numpy()
    numbers, first = np.unique(correlations[called], return_index=True)
    place = np.minimum(np.searchsorted(numbers, correlations[rows]), len(numbers) - 1)
    return np.where(numbers[place] == correlations[rows], called[first[place]], -1)
