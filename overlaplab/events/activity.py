"""What a rank did when: its time as compute, communication and memory (docs/design.md, "The arithmetic").

`rules` tells what each event counts as; all figures come from `classify`, which applies it to a trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events.launching import launchers
from overlaplab.events.rules import Kind, Part, device_kind, host_rule
from overlaplab.events.run import Trace, once_per_trace
from overlaplab.intervals import EMPTY, Intervals, subtract, union
from overlaplab.vocabulary import (
    ANNOTATION_CATEGORIES,
    DEVICE_COPY_CATEGORIES,
    DEVICE_KERNEL_CATEGORIES,
    OPERATOR_CATEGORIES,
    RUNTIME_CATEGORIES,
    Rule,
)

__all__ = ["Activity", "activity", "classify", "lanes", "matching", "of_kind", "rule_of"]

_DEVICE_CATEGORIES = DEVICE_KERNEL_CATEGORIES | DEVICE_COPY_CATEGORIES
_KINDS = tuple(Kind)


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


@once_per_trace
def rule_of(trace: Trace) -> Rule:
    """Which rule the trace's evidence allows.

    Without device events, the operators on the host are the computation only if nothing says that a device computed.
    """
    category = trace.events["category"]  # a part of a table keeps the categories of the whole, so rows are asked
    if matching(category, _DEVICE_CATEGORIES.__contains__).any():
        return Rule.GPU
    calls_a_device = matching(category, RUNTIME_CATEGORIES.__contains__).any()
    if calls_a_device or "nccl" in (trace.backend or "") or trace.device == "cuda":
        return Rule.UNRECORDED
    return Rule.CPU


@once_per_trace
def classify(trace: Trace) -> NDArray[np.object_]:
    """The `Kind` of every event of the trace, in the table's order; read-only."""
    kinds = np.array(_KINDS, dtype=object)[_codes(trace)]
    kinds.flags.writeable = False
    return kinds


def of_kind(trace: Trace, kind: Kind) -> NDArray[np.bool_]:
    """Which events count as this, in the table's order."""
    return np.asarray(_codes(trace) == _KINDS.index(kind))


@once_per_trace
def activity(trace: Trace) -> Activity:
    """When the rank computed, communicated and copied. All sets are empty where device activity was not recorded."""
    rule = rule_of(trace)
    if rule is Rule.UNRECORDED:
        return Activity(rule=rule, compute=EMPTY, communication=EMPTY, memory=EMPTY)
    sets = {kind: _during(trace, kind) for kind in Kind if kind is not Kind.NOTHING}
    if rule is Rule.CPU:
        sets[Kind.COMPUTE] = _cpu_compute(trace)
    else:
        stacked = np.concatenate((sets[Kind.COMMUNICATION], _carried(trace)))
        sets[Kind.COMMUNICATION] = union(stacked[:, 0], stacked[:, 1])
    return Activity(
        rule=rule,
        compute=sets[Kind.COMPUTE],
        communication=sets[Kind.COMMUNICATION],
        memory=sets[Kind.MEMORY],
    )


def matching(column: pd.Series, predicate: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which rows of a categorical column hold a text that the predicate accepts; each text is asked once."""
    accepted = np.array([bool(predicate(text)) for text in column.cat.categories], dtype=bool)
    if not accepted.any():
        return np.zeros(len(column), dtype=bool)
    return np.append(accepted, False).take(column.cat.codes.to_numpy(), mode="wrap")  # -1 is the last


def lanes(events: pd.DataFrame) -> NDArray[np.int64]:
    """A number per event that tells its (process, thread)."""
    threads = max(len(events["tid"].cat.categories), 1)
    process = np.asarray(events["pid"].cat.codes, dtype=np.int64)
    thread = np.asarray(events["tid"].cat.codes, dtype=np.int64)
    return process * threads + thread


@once_per_trace
def _codes(trace: Trace) -> NDArray[np.int8]:
    """The place in `_KINDS` of every event's kind; read-only."""
    rule = rule_of(trace)
    if rule is Rule.UNRECORDED:
        codes = np.full(len(trace.events), _KINDS.index(Kind.NOTHING), dtype=np.int8)
    else:
        codes = _gpu_codes(trace) if rule is Rule.GPU else _cpu_codes(trace.events)
    codes.flags.writeable = False
    return codes


def _during(trace: Trace, kind: Kind) -> Intervals:
    rows = np.flatnonzero(of_kind(trace, kind))
    starts = trace.events["ts_ns"].to_numpy()[rows]
    return union(starts, starts + trace.events["dur_ns"].to_numpy()[rows])


def _gpu_codes(trace: Trace) -> NDArray[np.int8]:
    events = trace.events
    codes = np.full(len(events), _KINDS.index(Kind.NOTHING), dtype=np.int8)
    category, name = events["category"], events["name"]
    device = np.flatnonzero(matching(category, _DEVICE_CATEGORIES.__contains__))
    names = len(name.cat.categories)
    pairs = category.cat.codes.to_numpy()[device].astype(np.int64) * names + name.cat.codes.to_numpy()[device]
    of_pair = np.full(len(category.cat.categories) * names, _KINDS.index(Kind.NOTHING), dtype=np.int8)
    for pair in np.flatnonzero(np.bincount(pairs)).tolist():  # each pair of category and name is asked once
        texts = category.cat.categories[pair // names], name.cat.categories[pair % names]
        of_pair[pair] = _KINDS.index(device_kind(*texts))
    found = of_pair[pairs]
    ranges = _comm_ranges(trace.events)
    inside = _range_of(trace, union(ranges[:, 0], ranges[:, 1]))[device] >= 0
    found[inside & (found != _KINDS.index(Kind.NOTHING))] = _KINDS.index(Kind.COMMUNICATION)
    codes[device] = found
    return codes


def _comm_ranges(events: pd.DataFrame, key: str = "") -> Intervals:
    """The host's `engine::comm` ranges that have the key, in order of start."""
    chosen = matching(events["name"], lambda text: text.startswith("engine::comm") and f" {key}" in f"{text} ")
    ranges = events[_annotated(events) & chosen]
    starts = ranges["ts_ns"].to_numpy(np.int64)
    return np.column_stack((starts, starts + ranges["dur_ns"].to_numpy(np.int64)))


def _range_of(trace: Trace, ranges: Intervals) -> NDArray[np.int64]:
    """For every event the range, on whatever thread, in which the call lies that launched it; or -1."""
    events = trace.events
    if not len(ranges):
        return np.full(len(events), -1, dtype=np.int64)
    calls = launchers(trace)
    at = events["ts_ns"].to_numpy()[calls]
    row = np.searchsorted(ranges[:, 0], at, side="right") - 1
    return np.where((calls >= 0) & (row >= 0) & (at < ranges[row, 1]), row, -1)


def _carried(trace: Trace) -> Intervals:
    """When an emulated link on a device was taken: from the first to the last of the events that carry a collective."""
    communicating = np.flatnonzero(of_kind(trace, Kind.COMMUNICATION))
    of = _range_of(trace, _comm_ranges(trace.events, "link="))[communicating]
    rows = communicating[of >= 0]
    starts = trace.events["ts_ns"].to_numpy()[rows]
    spans = pd.DataFrame({"of": of[of >= 0], "start": starts, "end": starts + trace.events["dur_ns"].to_numpy()[rows]})
    hulls = spans.groupby("of").agg({"start": "min", "end": "max"})
    return union(hulls["start"], hulls["end"])


def _annotated(events: pd.DataFrame) -> NDArray[np.bool_]:
    """Which events are the host's ranges, not their mirror images on a device."""
    return matching(events["category"], ANNOTATION_CATEGORIES.__contains__)


def _cpu_codes(events: pd.DataFrame) -> NDArray[np.int8]:
    rules = {name: host_rule(name) for name in events["name"].cat.categories}
    names, lane = events["name"], lanes(events)

    def following(kind: Kind, *parts: Part) -> NDArray[np.bool_]:
        return matching(names, lambda name: (rule := rules[name]) and rule.kind is kind and rule.part in parts)

    communication = _annotated(events) & following(Kind.COMMUNICATION, *Part)
    owning = communication & matching(names, lambda name: (rule := rules[name]) and rule.owns_thread)
    operator = events["category"].isin(OPERATOR_CATEGORIES).to_numpy() & ~np.isin(lane, np.unique(lane[owning]))
    counted = operator & following(Kind.COMPUTE, *Part)
    whole = operator & following(Kind.COMPUTE, Part.WHOLE)
    codes = np.full(len(events), _KINDS.index(Kind.NOTHING), dtype=np.int8)
    codes[whole | (counted & _leaves(events, lane, counted))] = _KINDS.index(Kind.COMPUTE)
    codes[communication] = _KINDS.index(Kind.COMMUNICATION)
    return codes


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


def _cpu_compute(trace: Trace) -> Intervals:
    """Operators' time, thread by thread, less what waits or launches communication inside them."""
    events = trace.events
    cut = matching(events["name"], lambda name: (rule := host_rule(name)) and rule.part is Part.CUT)
    starts = events["ts_ns"].to_numpy()
    ends = starts + events["dur_ns"].to_numpy()
    lane = lanes(events)
    compute = _codes(trace) == _KINDS.index(Kind.COMPUTE)
    busy = []
    for thread in np.unique(lane[compute]):
        on, off = compute & (lane == thread), cut & (lane == thread)
        busy.append(subtract(union(starts[on], ends[on]), union(starts[off], ends[off])))
    stacked = np.concatenate(busy) if busy else EMPTY
    return union(stacked[:, 0], stacked[:, 1])
