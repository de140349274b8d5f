"""What a training loop's host does between its passes, as far as ranges name it: data loading, saving, logging."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from overlaplab.events import Trace, once_per_trace, step_windows
from overlaplab.evidence.labels import Label
from overlaplab.evidence.launches import spans_of
from overlaplab.evidence.passes import passes_of
from overlaplab.evidence.recorded import UNKNOWN_NS

__all__ = ["DATA_LOADING", "host_work"]

DATA_LOADING = "enumerate(DataLoader)"
"""What torch calls the range in which a loop waits for its next batch."""
_OTHERS = (
    "engine::",
    "ProfilerStep#",
    "PyTorch Profiler",
    "DistributedDataParallel.forward",
    "Optimizer.",
    "gloo:",
    "nccl:",
)
_SHORT = 0.001
"""Of a step: what takes less is left out."""


@once_per_trace
def host_work(trace: Trace) -> tuple[Label, ...]:
    """Ranges with names on the thread of the passes, outside of these and of each other, in order of start.

    Called `host`, with the `name` up to its first `#`. Empty where no passes are known, see `passes_of`.
    """
    passes, windows = passes_of(trace), step_windows(trace)
    if not passes or not windows:
        return ()
    least_ns = _SHORT * float(np.median([window.end_ns - window.start_ns for window in windows]))
    names, categories, took_ns = (trace.events[name] for name in ("name", "category", "dur_ns"))
    rows = spans_of(trace, ((categories == "user_annotation") & (took_ns >= least_ns)).to_numpy())
    rows = rows[rows["thread"] == passes[0].thread].sort_values("start_ns", kind="stable")
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
