"""What a training loop's host does between its passes, as far as ranges name it: data loading, saving, logging; and
when it does nothing that is recorded, and within which range.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter

import numpy as np
import pandas as pd

from overlaplab.events import (
    NEXT_STEP,
    Run,
    Trace,
    activity,
    event_times,
    host_ranges,
    launchers,
    matching,
    once_per_run,
    once_per_trace,
    rule_of,
    step_windows,
    window_bounds,
)
from overlaplab.evidence.host_waits import host_waits
from overlaplab.evidence.labels import Label, span_intervals
from overlaplab.evidence.launches import event_spans
from overlaplab.evidence.passes import pass_labels
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.intervals import EMPTY, Intervals, Mask, intersect, lengths_within, subtract, total, union
from overlaplab.vocabulary import DATA_LOADING, Rule, is_runtime_category

_STEP = "ProfilerStep#"
_NO_WORK = ("engine::", _STEP, NEXT_STEP, "PyTorch Profiler", "gloo:", "nccl:")
"""How names of ranges begin that are none of the loop's own work."""
_NO_HOST_WORK = (*_NO_WORK, "DistributedDataParallel.forward", "Optimizer.")
"""And of those that are passes and updates."""
_COMMUNICATES = ("c10d::", "c10d_functional::", "_c10d_functional::", "record_param_comms", "FSDP::")
_AUTOGRAD = re.compile(r"^(autograd::engine::evaluate_function: )?(torch::autograd::)?")
_WHOLE_STEP = 0.9
"""Ranges that last for more of the steps with pauses do not tell where in them the host pauses."""
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
        if start_ns >= until_ns and not meets_a_pass and not name.startswith(_NO_HOST_WORK):
            until_ns = end_ns
            fields = {"name": _range_name(name)}
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
    """When the host does nothing for long at a stretch, in absolute ns.

    On a CPU the rank computes nothing then, and neither communicates nor waits. Elsewhere no thread has an operator, a
    call to its device or `host_work`.
    """
    windows = step_windows(trace)
    if not windows:
        return EMPTY
    if rule_of(trace) is Rule.CPU:
        busy = [activity(trace).compute, activity(trace).communication, host_waits(trace)]
    else:
        categories, named = trace.events["category"], host_work(trace)
        works = matching(categories, is_runtime_category) | (categories == "cpu_op").to_numpy()
        busy = [np.column_stack(event_times(trace.events, works)), span_intervals(named)]
    begin, end = min(window.host_start_ns for window in windows), max(window.end_ns for window in windows)
    idle = subtract(union([begin], [end]), union(*np.concatenate(busy).T))
    least_ns = _MIN_PAUSE_SHARE * float(np.median([window.end_ns - window.start_ns for window in windows]))
    return idle[idle[:, 1] - idle[:, 0] > least_ns]


@once_per_run
def pauses_within(run: Run) -> str | None:
    """The name of the innermost range that has more than half of all hosts' pauses; None where none has."""
    paused_ns, steps_ns = 0, 0
    within_ns: Counter[str] = Counter()
    took_ns: Counter[str] = Counter()
    for trace in run.traces:
        pauses, names = host_pauses(trace), trace.events["name"]
        paused_ns += total(pauses)
        starts, ends = window_bounds(step_windows(trace), of_host=True)
        steps_ns += int((ends - starts)[lengths_within(pauses, starts, ends) > 0].sum())
        meets_a_pause = lengths_within(pauses, *event_times(trace.events)) > 0
        spans = event_spans(trace, host_ranges(trace.events) & meets_a_pause)
        spans["name"] = names.iloc[spans["event"]].astype(str).to_numpy()
        steps = spans["name"].str.startswith(_STEP)
        if steps.any():  # what other threads do, such as a loader's, does not hold up the step
            spans = spans[spans["thread"].isin(spans["thread"][steps])]
        spans = spans[~spans["name"].str.startswith((*_NO_WORK, *_COMMUNICATES))]
        for name, each in spans.groupby(spans["name"].map(_range_name)):
            ranges = union(each["start_ns"], each["end_ns"])
            within_ns[str(name)] += total(intersect(ranges, pauses))
            took_ns[str(name)] += total(ranges)
    most = [name for name, ns in within_ns.items() if 2 * ns > paused_ns and took_ns[name] < _WHOLE_STEP * steps_ns]
    return min(most, key=lambda name: took_ns[name], default=None)


def _range_name(name: str) -> str:
    """A name without autograd's words around it, up to its first `#`; an optimizer's class is kept."""
    name = _AUTOGRAD.sub("", name)
    return name if name.startswith("Optimizer.") else name.split("#")[0] or name
