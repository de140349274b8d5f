"""What the rules cannot tell of a trace: names that they do not know, collectives seen in part, kernels at once."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

from overlaplab.events.activity import counting_as
from overlaplab.events.rows import event_times, launchers, matching
from overlaplab.events.rules import WorkKind, reads_like_communication
from overlaplab.events.run import Trace, once_per_trace
from overlaplab.intervals import Integers, Mask
from overlaplab.vocabulary import DEVICE_KERNEL_CATEGORIES

_GRAIN_NS = 10_000
"""Rounded times, and programmatic dependent launch from Hopper on, let a kernel begin a few µs early."""

_LOW_LATENCY = re.compile(r"::internode_ll::(dispatch|combine)\b")
"""DeepEP, csrc/kernels/internode_ll.cu: with a receive hook, sending and receiving are two launches of one kernel, and
the network moves the data in between without a kernel."""


@once_per_trace
def unknown_communication(trace: Trace) -> dict[str, int]:
    """Kernels that count as compute and read like communication: the word in the name, and their time in ns."""
    codes, names = trace.events["name"].cat.codes.to_numpy(), trace.events["name"].cat.categories
    kernel = matching(trace.events["category"], DEVICE_KERNEL_CATEGORIES.__contains__)
    rows = np.flatnonzero(kernel & counting_as(trace, WorkKind.COMPUTE))
    spent = np.zeros(len(names), dtype=np.int64)
    np.add.at(spent, codes[rows], trace.events["dur_ns"].to_numpy()[rows])
    time_by_word: dict[str, int] = {}
    for code in np.unique(codes[rows]).tolist():
        if (word := reads_like_communication(names[code])) is not None:
            time_by_word[word] = time_by_word.get(word, 0) + int(spent[code])
    return time_by_word


@once_per_trace
def said_to_communicate(trace: Trace) -> int:
    """How many of the trace's events communicate by the user's own rule."""
    if trace.communication is None:
        return 0
    pattern = re.compile(trace.communication, re.I)
    return int((matching(trace.events["name"], pattern.search) & counting_as(trace, WorkKind.COMMUNICATION)).sum())


@once_per_trace
def only_ends_recorded(trace: Trace) -> bool:
    """Whether collectives run without a kernel between the one that sends and the one that receives.

    It is so where two dispatches, or two combines, of low-latency DeepEP follow each other.
    """
    if not matching(trace.events["name"], _LOW_LATENCY.search).any():
        return False
    rows = counting_as(trace, WorkKind.COMMUNICATION) & matching(trace.events["name"], _LOW_LATENCY.search)
    words = [_LOW_LATENCY.search(name) for name in trace.events["name"][rows]]
    kinds = [match[1] for match in words if match]
    return any(first == second for first, second in pairwise(kinds))


@once_per_trace
def early_kernels(trace: Trace) -> tuple[int, int]:
    """How many kernels begin well before one that began earlier on their stream has ended, and the longest overlap.

    In ns. The kernels of a CUDA graph, whose branches may run at once, are left out.
    """
    events = trace.events
    kernel = matching(events["category"], DEVICE_KERNEL_CATEGORIES.__contains__)
    rows = np.flatnonzero(kernel & (events["stream"].to_numpy() >= 0))
    rows = rows[~_are_of_graphs(trace, rows)]
    number, longest_ns = 0, 0
    for _, kernels in events.iloc[rows].groupby(["pid", "device", "stream"], observed=True):
        starts, ends = event_times(kernels)
        order = np.argsort(starts, kind="stable")
        before = np.maximum.accumulate(ends[order])[:-1]
        overlaps = np.minimum(before, ends[order][1:]) - starts[order][1:]
        number += int((overlaps > _GRAIN_NS).sum())
        longest_ns = max(longest_ns, int(overlaps.max(initial=0)))
    return number, longest_ns


def _are_of_graphs(trace: Trace, kernels: Integers) -> Mask:
    """Whether a graph launched each of these kernels: they share their correlation, or its call says so."""
    correlation = trace.events["correlation"].to_numpy()[kernels]
    _, place, counts = np.unique(correlation, return_inverse=True, return_counts=True)
    launcher = launchers(trace)[kernels]
    graph_call = matching(trace.events["name"], lambda name: "GraphLaunch" in name)[launcher]
    return np.asarray(((correlation >= 0) & (counts[place] > 1)) | ((launcher >= 0) & graph_call))
