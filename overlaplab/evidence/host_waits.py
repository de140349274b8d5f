"""When a rank's host was inside a blocking call: there it waits, and has not paused."""

from __future__ import annotations

import re

import numpy as np

from overlaplab.events import Trace, activity, event_times, matching, once_per_trace, rule_of, thread_numbers
from overlaplab.evidence.labels import engine_labels
from overlaplab.evidence.moments import GRAIN_NS, NEVER_NS
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives
from overlaplab.intervals import Integers, Intervals, lengths_within, union
from overlaplab.vocabulary import Rule, is_runtime_category

_WAIT_WORDS = ("wait", "gather_wait", "param_gather_wait")
_SYNCHRONISES = re.compile(r"synchroni[sz]e|hipMemcpyWithStream", re.I)
"""hipMemcpyWithStream is what `item` waits in (`memcpy_and_sync` in c10/cuda/CUDAFunctions.h)."""
_OF_THE_PROFILER = ("python_function", "cpu_instant_event")
"""Categories of what `with_stack` and `profile_memory` add: nothing that a host does instead of waiting."""


@once_per_trace
def host_waits(trace: Trace) -> Intervals:
    """The host's blocking calls, in absolute ns.

    On a GPU: calls that synchronise with the device. On a CPU: labelled waits; and from each launch to the end of its
    collective, if until then nothing computes and the launching thread begins nothing.
    """
    events = trace.events
    if rule_of(trace) is Rule.GPU:
        calls = matching(events["category"], is_runtime_category) & matching(events["name"], _SYNCHRONISES.search)
        return union(*event_times(events, calls))
    labels = [label for label in engine_labels(trace) if label.word in _WAIT_WORDS]
    table = recorded_collectives(trace)
    table = table[(table["launch_ns"] != UNKNOWN_NS) & (table["end_ns"] != UNKNOWN_NS)]
    names = ("launch_ns", "launch_end_ns", "end_ns", "thread")
    launched, returned, ends, thread = (table[name].to_numpy(np.int64) for name in names)
    acts = ~matching(events["category"], _OF_THE_PROFILER.__contains__)
    begun = events["ts_ns"].to_numpy(np.int64)[acts]
    blocked = _next_begun(begun, thread_numbers(events)[acts], thread, returned) >= ends - GRAIN_NS
    blocked &= lengths_within(activity(trace).compute, launched, ends) == 0
    spans = [(label.start_ns, label.end_ns) for label in labels]
    spans += zip(launched[blocked].tolist(), ends[blocked].tolist(), strict=True)
    return union(*np.array(spans, dtype=np.int64).reshape(-1, 2).T)


def _next_begun(starts: Integers, threads: Integers, asking: Integers, at_ns: Integers) -> Integers:
    """When each `asking` thread next begins something after its moment `at_ns`; `NEVER_NS` for never.

    `starts` and `threads` are those of all events.
    """
    following = np.full(len(at_ns), NEVER_NS)
    for number in np.unique(asking):
        begun, moments = np.append(np.sort(starts[threads == number]), NEVER_NS), asking == number
        following[moments] = begun[np.searchsorted(begun, at_ns[moments], side="right")]
    return following
