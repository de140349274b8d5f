"""What a rank did when: its time as compute, communication and memory (DESIGN.md, "The arithmetic").

One table, `classify`, decides for every event; all figures come from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events.run import Trace, once_per_trace
from overlaplab.intervals import EMPTY, Intervals, subtract, union
from overlaplab.vocabulary import (
    ANNOTATION_CATEGORIES,
    COLLECTIVE_OPERATORS,
    COMMUNICATION_KERNELS,
    DEVICE_COPY_CATEGORIES,
    DEVICE_KERNEL_CATEGORIES,
    DEVICE_NOTHING,
    OPERATOR_CATEGORIES,
    OPERATOR_NOT_COMPUTE,
    PEER_COPY,
    RUNTIME_CATEGORIES,
    WAIT_LABELS,
    Rule,
)

__all__ = ["Activity", "Kind", "activity", "classify", "lanes", "matching", "rule_of", "runtime_calls"]


class Kind(StrEnum):
    """What an event counts as."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """When a rank computed, communicated and copied, as sets of intervals in absolute ns; the sets may overlap."""

    rule: Rule
    compute: Intervals
    communication: Intervals
    memory: Intervals

    @property
    def extent(self) -> tuple[int, int]:
        """From the first counted moment to the last, or (0, 0) where nothing counts."""
        bounds = [s for s in (self.compute, self.communication, self.memory) if len(s)]
        if not bounds:
            return 0, 0
        return int(min(s[0, 0] for s in bounds)), int(max(s[-1, 1] for s in bounds))


def rule_of(trace: Trace) -> Rule:
    """Which rule the trace's evidence allows."""
    categories = set(trace.events["category"].cat.categories)
    if categories & (DEVICE_KERNEL_CATEGORIES | DEVICE_COPY_CATEGORIES):
        return Rule.GPU
    if categories & RUNTIME_CATEGORIES or "nccl" in (trace.backend or ""):
        return Rule.UNRECORDED
    return Rule.CPU


@once_per_trace
def classify(trace: Trace) -> NDArray[np.object_]:
    """The `Kind` of every event of the trace, in the table's order; read-only."""
    kinds = _gpu_kinds(trace) if rule_of(trace) is Rule.GPU else _cpu_kinds(trace)
    kinds.flags.writeable = False
    return kinds


@once_per_trace
def activity(trace: Trace) -> Activity:
    """When the rank computed, communicated and copied. All sets are empty where device activity was not recorded."""
    rule = rule_of(trace)
    if rule is Rule.UNRECORDED:
        return Activity(rule=rule, compute=EMPTY, communication=EMPTY, memory=EMPTY)
    kinds = classify(trace)
    events = trace.events
    starts = events["ts_ns"].to_numpy()
    ends = starts + events["dur_ns"].to_numpy()
    sets = {kind: union(starts[kinds == kind], ends[kinds == kind]) for kind in Kind}
    if rule is Rule.CPU:
        sets[Kind.COMPUTE] = _cpu_compute(events, kinds)
    return Activity(
        rule=rule,
        compute=sets[Kind.COMPUTE],
        communication=sets[Kind.COMMUNICATION],
        memory=sets[Kind.MEMORY],
    )


def matching(column: pd.Series, predicate: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which rows of a categorical column hold a text that the predicate accepts; each text is asked once."""
    accepted = np.array([bool(predicate(text)) for text in column.cat.categories], dtype=bool)
    codes = column.cat.codes.to_numpy()
    return np.append(accepted, False)[codes]


def lanes(events: pd.DataFrame) -> NDArray[np.int64]:
    """A number per event that tells its (process, thread)."""
    threads = max(len(events["tid"].cat.categories), 1)
    process = np.asarray(events["pid"].cat.codes, dtype=np.int64)
    thread = np.asarray(events["tid"].cat.codes, dtype=np.int64)
    return process * threads + thread


def runtime_calls(events: pd.DataFrame) -> pd.DataFrame:
    """The host's calls that launched something on a device, to be told by `correlation`."""
    return events[events["category"].isin(RUNTIME_CATEGORIES) & (events["correlation"] >= 0)]


def _gpu_kinds(trace: Trace) -> NDArray[np.object_]:
    events = trace.events
    names = events["name"]
    kernel = events["category"].isin(DEVICE_KERNEL_CATEGORIES).to_numpy()
    copy = events["category"].isin(DEVICE_COPY_CATEGORIES).to_numpy()
    device = kernel | copy
    idle = device & matching(names, DEVICE_NOTHING.search)
    communication = (kernel & matching(names, COMMUNICATION_KERNELS.search)) | (
        copy & matching(names, PEER_COPY.search)
    )
    communication |= device & events["correlation"].isin(_launched_inside_comm(events)).to_numpy()
    kinds = np.full(len(events), Kind.NOTHING, dtype=object)
    kinds[kernel] = Kind.COMPUTE
    kinds[copy] = Kind.MEMORY
    kinds[communication] = Kind.COMMUNICATION
    kinds[idle] = Kind.NOTHING
    return kinds


def _launched_inside_comm(events: pd.DataFrame) -> NDArray[np.int64]:
    """Correlations of the runtime calls made inside an `engine::comm` range, on the range's own thread or another."""
    ranges = events[_host_ranges(events, "engine::comm")]
    calls = runtime_calls(events)
    if ranges.empty or calls.empty:
        return np.empty(0, dtype=np.int64)
    inside = union(ranges["ts_ns"], ranges["ts_ns"] + ranges["dur_ns"])
    at = calls["ts_ns"].to_numpy()
    row = np.searchsorted(inside[:, 0], at, side="right") - 1
    launched: NDArray[np.int64] = calls["correlation"].to_numpy()[(row >= 0) & (at < inside[row, 1])]
    return launched


def _host_ranges(events: pd.DataFrame, *prefixes: str) -> NDArray[np.bool_]:
    host = events["category"].isin(ANNOTATION_CATEGORIES).to_numpy()
    return host & matching(events["name"], lambda text: text.startswith(prefixes))


def _cpu_kinds(trace: Trace) -> NDArray[np.object_]:
    events = trace.events
    names = events["name"]
    communication = _host_ranges(events, "engine::comm", "gloo:")
    lane = lanes(events)
    elsewhere = ~np.isin(lane, np.unique(lane[communication]))
    operator = events["category"].isin(OPERATOR_CATEGORIES).to_numpy() & elsewhere
    aten = operator & matching(names, lambda text: text.startswith("aten::"))
    counted = operator & matching(names, lambda text: "::" in text and not text.startswith(OPERATOR_NOT_COMPUTE))
    kinds = np.full(len(events), Kind.NOTHING, dtype=object)
    kinds[aten | (counted & _leaves(events, lane, counted))] = Kind.COMPUTE
    kinds[communication] = Kind.COMMUNICATION
    return kinds


def _leaves(events: pd.DataFrame, lane: NDArray[np.int64], among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of the chosen events hold no other chosen event of their thread."""
    rows = np.flatnonzero(among)
    starts = events["ts_ns"].to_numpy()[rows]
    ends = starts + events["dur_ns"].to_numpy()[rows]
    order = np.lexsort((-ends, starts, lane[rows]))  # a parent stands right before its first child
    rows, starts, ends = rows[order], starts[order], ends[order]
    holds = np.zeros(len(rows), dtype=bool)
    holds[:-1] = (lane[rows][1:] == lane[rows][:-1]) & (starts[1:] < ends[:-1])
    leaf = np.zeros(len(events), dtype=bool)
    leaf[rows[~holds]] = True
    return leaf


def _cpu_compute(events: pd.DataFrame, kinds: NDArray[np.object_]) -> Intervals:
    """Operators' time, thread by thread, less what waits or launches communication inside them."""
    not_compute = matching(events["name"], lambda text: text.startswith((*COLLECTIVE_OPERATORS, *WAIT_LABELS)))
    starts = events["ts_ns"].to_numpy()
    ends = starts + events["dur_ns"].to_numpy()
    lane = lanes(events)
    compute = kinds == Kind.COMPUTE
    busy = []
    for thread in np.unique(lane[compute]):
        on, off = compute & (lane == thread), not_compute & (lane == thread)
        busy.append(subtract(union(starts[on], ends[on]), union(starts[off], ends[off])))
    stacked = np.concatenate(busy) if busy else EMPTY
    return union(stacked[:, 0], stacked[:, 1])
