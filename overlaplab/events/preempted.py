"""How long computing threads waited for a core, where the recorder wrote the kernel's counts into the trace.

The counts (`engine::processor`, see `traces/README.md`) stand at the borders of passes, units, gradients and waits. How
long a thread waited between two of them is known, but not when. So each operator's time in between is shortened at its
end by the share of the time in which the thread waited.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from overlaplab.events.rows import host_ranges, thread_numbers
from overlaplab.events.run import Trace, empty_table, once_per_trace
from overlaplab.intervals import EMPTY, Integers, Intervals, union
from overlaplab.vocabulary import label_fields

COUNT_COLUMNS = {
    **dict.fromkeys(("thread", "start_ns", "end_ns", "ran_ns", "delayed_ns"), "int64"),
    **dict.fromkeys(("unit", "phase"), "object"),
}
"""The columns of `processor_counts`.

Between `start_ns` and `end_ns` (absolute), the `thread` (see `thread_numbers`) ran on a core for `ran_ns` and waited
for one for `delayed_ns`. The time belongs to the `phase` (`forward` or `backward`) of a `unit`; both are empty
elsewhere.
"""


@once_per_trace
def processor_counts(trace: Trace) -> pd.DataFrame:
    """The times between the kernel's counts, in order of thread and time: `COUNT_COLUMNS`. Empty without counts."""
    names = trace.events["name"]
    fields = {
        str(name): parsed[1]
        for name in names.cat.categories
        if str(name).startswith("engine::processor ") and (parsed := label_fields(str(name))) is not None
    }
    chosen = host_ranges(trace.events, fields.__contains__)
    if not chosen.any():
        return empty_table(COUNT_COLUMNS)
    events = trace.events[chosen]
    counts = [fields[str(name)] for name in events["name"]]
    table = pd.DataFrame(
        {
            "thread": thread_numbers(events),
            "end_ns": events["ts_ns"].to_numpy(np.int64),
            "ran_ns": np.array([int(count["ran_ns"]) for count in counts], dtype=np.int64),
            "delayed_ns": np.array([int(count["delayed_ns"]) for count in counts], dtype=np.int64),
            "unit": [count.get("unit", "") for count in counts],
            "phase": [count.get("phase", "") for count in counts],
        }
    ).sort_values(["thread", "end_ns"], kind="stable", ignore_index=True)
    before = table.groupby("thread")[["end_ns", "ran_ns", "delayed_ns"]].shift(fill_value=0)
    has_start = table.duplicated("thread").to_numpy()
    table["start_ns"] = before["end_ns"]
    for name in ("ran_ns", "delayed_ns"):
        table[name] = (table[name] - before[name]).clip(lower=0)
    return table.loc[has_start, list(COUNT_COLUMNS)].astype(COUNT_COLUMNS).reset_index(drop=True)


def core_waits(compute: Intervals, counts: pd.DataFrame) -> Intervals:
    """The parts of one thread's computation in which it waited for a core, by its own rows of `processor_counts`."""
    if not len(compute) or not len(counts):
        return EMPTY
    starts, ends = counts["start_ns"].to_numpy(), counts["end_ns"].to_numpy()
    share = np.minimum(counts["delayed_ns"].to_numpy() / np.maximum(ends - starts, 1), 1.0)
    borders = np.unique(np.concatenate((compute.ravel(), starts, ends)))
    begin, end = borders[:-1], borders[1:]
    here = _enclosing_intervals(compute[:, 0], compute[:, 1], begin)
    counted = _enclosing_intervals(starts, ends, begin)
    rows = np.flatnonzero((here >= 0) & (counted >= 0))
    lost = np.floor(share[counted[rows]] * (end - begin)[rows]).astype(np.int64)
    return union((end[rows] - lost)[lost > 0], end[rows][lost > 0])


def _enclosing_intervals(starts: Integers, ends: Integers, at: Integers) -> Integers:
    """For each moment the interval that contains it, or -1; the intervals are disjoint and in order."""
    row = np.searchsorted(starts, at, side="right") - 1
    return np.where((row >= 0) & (at < ends[row]), row, -1)
