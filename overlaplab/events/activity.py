"""What a rank did when: its time as compute, communication and memory (docs/design.md, "The arithmetic").

`rules` says what each event counts as. `classify` applies the rules to a trace, and all figures come from it.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.event_columns import DAMAGED
from overlaplab.events.preempted import core_waits, processor_counts
from overlaplab.events.rows import event_times, host_ranges, launchers, matching, thread_numbers
from overlaplab.events.rules import Part, WorkKind, device_work, host_rule
from overlaplab.events.run import Run, Trace, once_per_trace
from overlaplab.intervals import EMPTY, Integers, Intervals, Mask, subtract, union
from overlaplab.vocabulary import CPU_BACKENDS, OPERATOR_CATEGORIES, Rule, is_device_category, is_runtime_category

_WORKS = tuple(WorkKind)
_MOST_NAMES = 8


class Activity(Struct, frozen=True, kw_only=True):
    """When a rank computed, communicated and copied, as sets of intervals in absolute ns; the sets may overlap."""

    rule: Rule
    compute: Intervals
    communication: Intervals
    memory: Intervals
    preempted: Intervals | None = None
    """When operators were under way, and waited for a core; not part of `compute`. None where the trace does not tell:
    then such times are in `compute`."""

    @property
    def exposed_communication(self) -> Intervals:
        """When it communicated and computed nothing."""
        return subtract(self.communication, self.compute)

    @property
    def extent(self) -> tuple[int, int]:
        """From the first counted moment to the last, or (0, 0) where nothing counts."""
        bounds = [s for s in (self.compute, self.communication, self.memory) if len(s)]
        if not bounds:
            return 0, 0
        return int(min(s[0, 0] for s in bounds)), int(max(s[-1, 1] for s in bounds))


@once_per_trace
def rule_of(trace: Trace) -> Rule:
    """Choose the rule that applies to the trace, by the events that it holds.

    Without device events, the host's operators count as compute only if nothing names a device, see `device_sign`.
    """
    category = trace.events["category"]  # ask the rows: a slice of a table keeps all categories of the whole
    if matching(category, is_device_category).any():
        return Rule.GPU
    return Rule.CPU if device_sign(trace) is None else Rule.UNRECORDED


def is_on_gpus(run: Run) -> bool:
    """Whether any of the run's traces holds device events."""
    return any(rule_of(trace) is Rule.GPU for trace in run.traces)


class Sign(StrEnum):
    """By what a trace without device events names a device, from the surest on."""

    CALLS = "calls"
    """The host's calls to the device's runtime or driver, in these categories."""
    UNKNOWN = "unknown device"
    """Events, processes or arrows of a device that no rule knows."""
    MANIFEST = "run.json"
    BACKEND = "backend"
    PROPERTIES = "deviceProperties"
    """The process could see this device; whether it used it is not known."""


@once_per_trace
def device_sign(trace: Trace) -> tuple[Sign, tuple[str, ...]] | None:
    """What names a device in a trace without device events, and which; None if nothing does.

    Where run.json says `cpu`, only what is surer than it names another.
    """
    events = trace.events
    categories = events["category"].cat.categories
    calls = np.unique(events["category"].cat.codes[matching(events["category"], is_runtime_category)])
    if len(calls):
        return Sign.CALLS, tuple(map(str, categories[calls]))
    if trace.unknown_device:
        return Sign.UNKNOWN, trace.unknown_device
    if trace.device is not None and trace.device.partition(":")[0].isidentifier():
        return None if trace.device == "cpu" else (Sign.MANIFEST, (trace.device,))
    placed = np.unique(events["category"].cat.codes[(events["stream"] >= 0).to_numpy()])
    if len(placed):
        return Sign.UNKNOWN, tuple(f"category '{categories[code]}'" for code in placed)
    backends = [backend.rpartition(":")[2] for backend in (trace.backend or "").split(",")]
    if not CPU_BACKENDS.issuperset(backends):
        return Sign.BACKEND, (str(trace.backend),)
    return (Sign.PROPERTIES, trace.devices) if trace.devices else None


@once_per_trace
def classify(trace: Trace) -> NDArray[np.object_]:
    """The `WorkKind` of every event of the trace, in the table's order; read-only."""
    works = np.array(_WORKS, dtype=object)[_codes(trace)]
    works.flags.writeable = False
    return works


def counting_as(trace: Trace, work: WorkKind) -> Mask:
    """Mark the events that count as this, in the table's order."""
    return np.asarray(_codes(trace) == _WORKS.index(work))


def outermost(trace: Trace, work: WorkKind) -> pd.DataFrame:
    """Events that count as this, except inside others of their thread that do: `event` (row), `thread`, times."""
    rows = np.flatnonzero(counting_as(trace, work))
    starts, ends = event_times(trace.events, rows)
    threads = thread_numbers(trace.events, rows)
    candidates = pd.DataFrame({"event": rows, "thread": threads, "start_ns": starts, "end_ns": ends})
    latest = candidates.groupby("thread")["end_ns"].cummax()
    before = latest.groupby(candidates["thread"]).shift(fill_value=np.iinfo(np.int64).min)
    return candidates[candidates["end_ns"] > before]


@once_per_trace
def damaged_rows(trace: Trace) -> Integers:
    """The rows of events that would count as something if their times were known."""
    counts = _codes_by_rule(trace) != _WORKS.index(WorkKind.NOTHING)
    return np.flatnonzero(counts & (trace.events["phase"] == DAMAGED).to_numpy())


def damaged_as(trace: Trace, work: WorkKind) -> Integers:
    """The rows of events that would count as this if their times were known."""
    rows = damaged_rows(trace)
    return np.asarray(rows[_codes_by_rule(trace)[rows] == _WORKS.index(work)])


@once_per_trace
def activity(trace: Trace) -> Activity:
    """When the rank computed, communicated and copied. All sets are empty where device activity was not recorded."""
    rule = rule_of(trace)
    if rule is Rule.UNRECORDED:
        return Activity(rule=rule, compute=EMPTY, communication=EMPTY, memory=EMPTY)
    counted_kinds = [kind for kind in WorkKind if kind is not WorkKind.NOTHING]
    sets = {kind: union(*event_times(trace.events, counting_as(trace, kind))) for kind in counted_kinds}
    preempted = None
    if rule is Rule.CPU:
        sets[WorkKind.COMPUTE], preempted = _cpu_compute(trace)
    else:
        sets[WorkKind.COMMUNICATION] = union(*np.concatenate((sets[WorkKind.COMMUNICATION], _link_busy(trace))).T)
    return Activity(
        rule=rule,
        compute=sets[WorkKind.COMPUTE],
        communication=sets[WorkKind.COMMUNICATION],
        memory=sets[WorkKind.MEMORY],
        preempted=preempted,
    )


@once_per_trace
def longest_names(trace: Trace) -> tuple[str, ...]:
    """Where nothing counts as communication, the names of counted events that took most time, the longest first."""
    if len(activity(trace).communication):
        return ()
    counted = trace.events[~counting_as(trace, WorkKind.NOTHING)]
    longest = counted.groupby("name", observed=True)["dur_ns"].sum().nlargest(_MOST_NAMES)
    return tuple(map(str, longest.index))


@once_per_trace
def _codes(trace: Trace) -> NDArray[np.int8]:
    """For every event the index in `_WORKS` of what it counts as; read-only."""
    codes, damaged = _codes_by_rule(trace), damaged_rows(trace)
    if not len(damaged):
        return codes
    codes = codes.copy()
    codes[damaged] = _WORKS.index(WorkKind.NOTHING)
    codes.flags.writeable = False
    return codes


@once_per_trace
def _codes_by_rule(trace: Trace) -> NDArray[np.int8]:
    """`_codes` before damaged events are taken out; read-only."""
    rule = rule_of(trace)
    if rule is Rule.UNRECORDED:
        codes = np.full(len(trace.events), _WORKS.index(WorkKind.NOTHING), dtype=np.int8)
    else:
        codes = _gpu_codes(trace) if rule is Rule.GPU else _cpu_codes(trace.events)
    codes.flags.writeable = False
    return codes


def _gpu_codes(trace: Trace) -> NDArray[np.int8]:
    events = trace.events
    codes = np.full(len(events), _WORKS.index(WorkKind.NOTHING), dtype=np.int8)
    category, name = events["category"], events["name"]
    device = np.flatnonzero(matching(category, is_device_category))
    names = len(name.cat.categories)
    pairs = category.cat.codes.to_numpy()[device].astype(np.int64) * names + name.cat.codes.to_numpy()[device]
    of_pair = np.full(len(category.cat.categories) * names, _WORKS.index(WorkKind.NOTHING), dtype=np.int8)
    for pair in np.flatnonzero(np.bincount(pairs)).tolist():  # the rules are tried once per pair of category and name
        texts = category.cat.categories[pair // names], name.cat.categories[pair % names]
        of_pair[pair] = _WORKS.index(device_work(*texts, trace.communication))
    device_codes = of_pair[pairs]
    ranges = _comm_ranges(trace.events)
    inside = enclosing_ranges(trace, device, union(ranges[:, 0], ranges[:, 1])) >= 0
    device_codes[inside & (device_codes != _WORKS.index(WorkKind.NOTHING))] = _WORKS.index(WorkKind.COMMUNICATION)
    codes[device] = device_codes
    return codes


def _comm_ranges(events: pd.DataFrame, key: str = "") -> Intervals:
    """The host's `engine::comm` ranges whose label has the key, in order of start."""
    chosen = host_ranges(events, lambda text: text.startswith("engine::comm") and f" {key}" in f"{text} ")
    return np.column_stack(event_times(events, chosen))


def enclosing_ranges(trace: Trace, rows: Integers, ranges: Intervals) -> Integers:
    """For each of these events the range, on any thread, that contains the call which launched it, or -1."""
    if not len(ranges):
        return np.full(len(rows), -1, dtype=np.int64)
    calls = launchers(trace)[rows]
    at = trace.events["ts_ns"].to_numpy()[calls]
    row = np.searchsorted(ranges[:, 0], at, side="right") - 1
    return np.where((calls >= 0) & (row >= 0) & (at < ranges[row, 1]), row, -1)


def _link_busy(trace: Trace) -> Intervals:
    """When an emulated link on a device was busy: from the first to the last event of each collective on it."""
    communicating = np.flatnonzero(counting_as(trace, WorkKind.COMMUNICATION))
    range_of = enclosing_ranges(trace, communicating, _comm_ranges(trace.events, "link="))
    rows = communicating[range_of >= 0]
    starts, ends = event_times(trace.events, rows)
    order = np.argsort(range_of[range_of >= 0], kind="stable")
    opens = np.flatnonzero(np.diff(range_of[range_of >= 0][order], prepend=-1))
    if not len(opens):
        return EMPTY
    return union(np.minimum.reduceat(starts[order], opens), np.maximum.reduceat(ends[order], opens))


def _cpu_codes(events: pd.DataFrame) -> NDArray[np.int8]:
    rules = {name: host_rule(name) for name in events["name"].cat.categories}
    names, thread = events["name"], thread_numbers(events)

    def follows(work: WorkKind, *parts: Part) -> Mask:
        return matching(names, lambda name: (rule := rules[name]) and rule.counts_as is work and rule.part in parts)

    annotated = host_ranges(events)
    communication, memory = (annotated & follows(work, *Part) for work in (WorkKind.COMMUNICATION, WorkKind.MEMORY))
    owning = annotated & matching(names, lambda name: (rule := rules[name]) and rule.owns_thread)
    annotating = annotated & matching(names, lambda name: (rule := rules[name]) and rule.annotates)
    operator = matching(events["category"], OPERATOR_CATEGORIES.__contains__) | annotating
    operator &= ~np.isin(thread, np.unique(thread[owning]))
    counted = operator & follows(WorkKind.COMPUTE, *Part)
    whole = operator & follows(WorkKind.COMPUTE, Part.WHOLE)
    codes = np.full(len(events), _WORKS.index(WorkKind.NOTHING), dtype=np.int8)
    codes[whole | (counted & _leaves(events, thread, counted))] = _WORKS.index(WorkKind.COMPUTE)
    codes[communication] = _WORKS.index(WorkKind.COMMUNICATION)
    codes[memory] = _WORKS.index(WorkKind.MEMORY)
    return codes


def _leaves(events: pd.DataFrame, thread: Integers, among: Mask) -> Mask:
    """Mark the chosen events that contain no other chosen event of their thread."""
    rows = np.flatnonzero(among)
    starts, ends = event_times(events, rows)
    order = np.lexsort((-ends, starts, thread[rows]))  # a parent directly precedes its first child
    rows, starts, ends = rows[order], starts[order], ends[order]
    has_child = np.zeros(len(rows), dtype=bool)
    has_child[:-1] = (thread[rows][1:] == thread[rows][:-1]) & (starts[1:] < ends[:-1])
    leaf = np.zeros(len(events), dtype=bool)
    leaf[rows[~has_child]] = True
    return leaf


def _cpu_compute(trace: Trace) -> tuple[Intervals, Intervals | None]:
    """The operators' time, per thread, without the time in which they wait for or launch communication.

    And the time in which they waited for a core, which is not in it; None where the trace does not tell.
    """
    events = trace.events
    cut = matching(events["name"], lambda name: (rule := host_rule(name)) and rule.part is Part.CUT)
    (starts, ends), threads = event_times(events), thread_numbers(events)
    compute = _codes(trace) == _WORKS.index(WorkKind.COMPUTE)
    counts = processor_counts(trace)
    busy, lost = [EMPTY], [EMPTY]
    for thread in np.unique(threads[compute]):
        on, off = compute & (threads == thread), cut & (threads == thread)
        computing = subtract(union(starts[on], ends[on]), union(starts[off], ends[off]))
        lost.append(core_waits(computing, counts[counts["thread"] == thread]))
        busy.append(subtract(computing, lost[-1]))
    all_busy = union(*np.concatenate(busy).T)
    return all_busy, subtract(union(*np.concatenate(lost).T), all_busy) if len(counts) else None
