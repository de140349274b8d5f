"""Which host call launched which device event: the two share a correlation number."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events.run import Trace, once_per_trace
from overlaplab.vocabulary import DEVICE_COPY_CATEGORIES, DEVICE_KERNEL_CATEGORIES, RUNTIME_CATEGORIES


def runtime_calls(events: pd.DataFrame) -> pd.DataFrame:
    """The host's calls that launched something on a device, identified by `correlation`."""
    return events[events["category"].isin(RUNTIME_CATEGORIES) & (events["correlation"] >= 0)]


@once_per_trace
def launchers(trace: Trace) -> NDArray[np.int64]:
    """For every event the row of the call that launched it, -1 where unknown; read-only.

    One call may launch many events: the kernels of a CUDA graph all share the correlation of its launch.
    """
    events = trace.events
    called = np.flatnonzero((events["category"].isin(RUNTIME_CATEGORIES) & (events["correlation"] >= 0)).to_numpy())
    device = np.flatnonzero(events["category"].isin(DEVICE_KERNEL_CATEGORIES | DEVICE_COPY_CATEGORIES).to_numpy())
    launcher = np.full(len(events), -1, dtype=np.int64)
    if len(called):
        correlations = events["correlation"].to_numpy()
        numbers, first = np.unique(correlations[called], return_index=True)
        place = np.minimum(np.searchsorted(numbers, correlations[device]), len(numbers) - 1)
        known = numbers[place] == correlations[device]
        launcher[device[known]] = called[first[place[known]]]
    launcher.flags.writeable = False
    return launcher
