"""Host calls and the device events that they launched: the two share a correlation number."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events.matching import matching
from overlaplab.events.run import Trace, once_per_trace
from overlaplab.intervals import Integers, Mask
from overlaplab.vocabulary import is_device_category, is_runtime_category


def runtime_calls(events: pd.DataFrame) -> pd.DataFrame:
    """The host's calls that launched something on a device, identified by `correlation`."""
    return events[_calls(events)]


def _calls(events: pd.DataFrame) -> Mask:
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
    called = np.flatnonzero(_calls(events))
    if not len(called):
        return np.full(len(rows), -1, dtype=np.int64)
    correlations = events["correlation"].to_numpy()
    numbers, first = np.unique(correlations[called], return_index=True)
    place = np.minimum(np.searchsorted(numbers, correlations[rows]), len(numbers) - 1)
    return np.where(numbers[place] == correlations[rows], called[first[place]], -1)
