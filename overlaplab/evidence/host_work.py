"""What a training loop's host does between its passes, as far as ranges name it: data loading, saving, logging; and
when it does nothing that is recorded.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pandas as pd

from overlaplab.events import Trace, event_times, host_ranges, launchers, matching, once_per_trace, step_windows
from overlaplab.evidence.labels import Label
from overlaplab.evidence.launches import event_spans
from overlaplab.evidence.passes import pass_labels
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.intervals import Intervals, Mask, subtract, union
from overlaplab.vocabulary import DATA_LOADING, is_runtime_category

_OTHERS = (
    "engine::",
    "ProfilerStep#",
    "PyTorch Profiler",
    "DistributedDataParallel.forward",
    "Optimizer.",
    "gloo:",
    "nccl:",
)
_MIN_PAUSE_SHARE = 0.01
"""Pauses shorter than 1 % of a step are what launching operators takes."""
_MIN_WORK_SHARE = 0.001
"""Work shorter than 0.1 % of a step is left out."""


@once_per_trace
def host_work(trace: Trace) -> tuple[Label, ...]:
    """Ranges with names on the thread of the passes, outside of these and of each other, in order of start.

    Called `host`, with the `name` up to its first `#`. Where no passes are known, see `pass_labels`, only data loading,
    and on a GPU ranges within which nothing is launched, which cannot be passes.
    """
    passes, windows = pass_labels(trace), step_windows(trace)
    if not windows:
        return ()
    least_ns = _MIN_WORK_SHARE * float(np.median([window.end_ns - window.start_ns for window in windows]))
    names, categories, took_ns = (trace.events[name] for name in ("name", "category", "dur_ns"))
    rows = event_spans(trace, ((categories == "user_annotation") & (took_ns >= least_ns)).to_numpy())
    loads = names.iloc[rows["event"]].str.startswith(DATA_LOADING).to_numpy()
    rows = rows[rows["thread"] == passes[0].thread] if passes else rows[loads | _launches_nothing(trace, rows)]
    rows = rows.sort_values("start_ns", kind="stable")
    begins = [label.start_ns for label in passes]
    ends = np.maximum.accumulate([label.end_ns for label in passes]).tolist()
    works: list[Label] = []
    until_ns = UNKNOWN_NS
    for start_ns, end_ns, thread, event in rows.to_numpy().tolist():
        before = bisect_left(begins, end_ns)
        meets_a_pass = before > 0 and ends[before - 1] > start_ns
        name = str(names.iloc[event])
        if start_ns >= until_ns and not meets_a_pass and not name.startswith(_OTHERS):
            until_ns = end_ns
            fields = {"name": name.split("#")[0] or name}
            works.append(Label(start_ns=start_ns, end_ns=end_ns, thread=thread, word="host", fields=fields))
    return tuple(works)


@once_per_trace
def has_loader_workers(trace: Trace) -> bool:
    """Whether its DataLoader has worker processes, as torch's range names the iterator."""
    name = f"{DATA_LOADING}#_MultiProcessingDataLoaderIter"
    return bool(host_ranges(trace.events, lambda each: each.startswith(name)).any())


def _launches_nothing(trace: Trace, rows: pd.DataFrame) -> Mask:
    """Whether no work of a GPU is launched within each span, by any thread; False throughout a CPU's trace."""
    calls = launchers(trace)
    launched = np.sort(trace.events["ts_ns"].to_numpy(np.int64)[calls[calls >= 0]])
    first, last = (np.searchsorted(launched, rows[name].to_numpy()) for name in ("start_ns", "end_ns"))
    return np.asarray((first == last) & (len(launched) > 0))


@once_per_trace
def host_pauses(trace: Trace) -> Intervals:
    """When no thread of the host has an operator, a call to its device or `host_work`, for long at a stretch, in
    absolute ns.
    """
    windows = step_windows(trace)
    if not windows:
        return union([], [])
    events, categories = trace.events, trace.events["category"]
    works = matching(categories, is_runtime_category) | (categories == "cpu_op").to_numpy()
    begin, end = min(window.host_start_ns for window in windows), max(window.end_ns for window in windows)
    named = host_work(trace)
    loading = union([label.start_ns for label in named], [label.end_ns for label in named])
    idle = subtract(subtract(union([begin], [end]), union(*event_times(events, works))), loading)
    least_ns = _MIN_PAUSE_SHARE * float(np.median([window.end_ns - window.start_ns for window in windows]))
    return idle[idle[:, 1] - idle[:, 0] > least_ns]
