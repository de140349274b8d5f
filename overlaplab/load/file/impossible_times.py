"""Device events whose times cannot be true: before their launch, or long after all that the host did.

Profilers of devices now and then give an event no time at all (`"ts": 0`, pytorch/kineto#109), or that of another clock
(pytorch/pytorch#192021). One such event would stretch its step by years.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from overlaplab.events import calls_of, matching
from overlaplab.intervals import Integers
from overlaplab.vocabulary import is_device_category, is_host_category

MAX_CLOCK_OFFSET_NS = 1_000_000_000
"""A host's and its device's clock differ by less, beyond what they differ throughout the recording."""
MAX_BEHIND_NS = 60_000_000_000
"""The profiler waits for the device when it stops, so no device event lies a minute away from all that the host did."""
_NEVER = np.iinfo(np.int64).min


def impossible_times(events: pd.DataFrame, zero_ns: int) -> tuple[Integers, Integers]:
    """The rows of device events at impossible times, and when each was launched; if unknown, the host's first moment.

    `events` has the columns of `EVENT_COLUMNS` in order of `ts_ns`; `zero_ns` is what a time of 0 in the file became.
    """
    category = events["category"]
    device = np.flatnonzero(matching(category, is_device_category) | (events["stream"].to_numpy() >= 0))
    host = np.flatnonzero(matching(category, is_host_category))
    if not len(device) or not len(host):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    starts, durations = events["ts_ns"].to_numpy(), events["dur_ns"].to_numpy()
    begins, ends = starts[device], starts[device] + durations[device]
    calls = calls_of(events, device)  # of merged processes with the same numbers the first, so that none is late
    launched = np.where(calls >= 0, starts[calls], _NEVER)
    delay = begins - launched
    timed = (launched != _NEVER) & (begins != zero_ns)
    usual = int(np.median(delay[timed])) if timed.any() else 0
    early = (launched != _NEVER) & (delay < min(usual, 0) - MAX_CLOCK_OFFSET_NS)
    early |= (launched != _NEVER) & (delay < 0) & (begins == zero_ns) & (ends == zero_ns)
    first_ns, last_ns = int(starts[host].min()), int((starts[host] + durations[host]).max())
    far = begins < first_ns + min(usual, 0) - MAX_BEHIND_NS
    far |= ends > last_ns + max(usual, 0) + MAX_BEHIND_NS
    wrong = early | far
    return device[wrong], np.where(launched != _NEVER, launched, first_ns)[wrong]
