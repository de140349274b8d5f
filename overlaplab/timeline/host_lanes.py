"""The lanes of a rank's host beside a GPU: what its threads ran, and which device events their calls launched."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, launchers, matching, rule_of, thread_numbers
from overlaplab.evidence.arrays import take_values
from overlaplab.evidence.clocks import run_zero_ns
from overlaplab.timeline.rank_lanes import is_backward, threads_with, used_names
from overlaplab.vocabulary import OPERATOR_CATEGORIES, Rule, is_host_category, is_runtime_category

_LEFT_OUT = frozenset({"python_function", "Trace"})
"""Categories without lanes: Python's stack is too deep for one, and the profiler's own span is as long as the trace."""


class HostKind(StrEnum):
    """What a mark of a host's lane stands for. On ties within a pixel the later one here wins."""

    RANGE = "range"
    """A range of torch's or of the user's, or the profiler's own work."""
    OPERATOR = "operator"
    CALL = "runtime call"
    LAUNCH = "launch"
    """A runtime call that launched something on the device."""


_ORDER = tuple(HostKind)


class HostLanes(Struct, frozen=True, kw_only=True):
    """The threads of one trace's host; times in ns from the run's zero, by the first rank's clock."""

    labels: tuple[str, ...]
    """The lanes' names, from top to bottom."""
    events: pd.DataFrame
    """By lane and start, the longest first where starts are equal: `lane`, `part` (int8, an index in `HostKind`),
    `start_ns`, `end_ns` (int64), `name` (category), `event` (the row of the trace's events)."""
    calls: NDArray[np.int64]
    """The places in `events` of calls that launched something, in order, once for each device event."""
    launched: NDArray[np.int64]
    """The rows of those device events in the trace."""


def has_host_lanes(trace: Trace) -> bool:
    """Whether the trace has events of a host beside those of a device; on the CPU its threads have lanes anyway."""
    return rule_of(trace) is Rule.GPU and bool(_host_events(trace).any())


def host_lanes(run: Run, place: int) -> HostLanes:
    """The lanes of the host of `run.traces[place]`: the thread with the steps first, then by how much they ran."""
    trace = run.traces[place]
    zero = run_zero_ns(run, trace)
    rows = np.flatnonzero(_host_events(trace) & ~matching(trace.events["name"], _is_step))
    thread = thread_numbers(trace.events, rows)
    starts, lasted = (trace.events[name].to_numpy(np.int64)[rows] for name in ("ts_ns", "dur_ns"))
    threads, labels = _order_threads(trace, thread)
    lane_of_thread = np.zeros(int(threads.max(initial=-1)) + 1, dtype=np.int64)
    lane_of_thread[threads] = np.arange(len(threads))
    lane = lane_of_thread[thread]
    order = np.lexsort((-lasted, starts, lane))
    rows, lane, starts, lasted = rows[order], lane[order], starts[order], lasted[order]
    launcher = launchers(trace)
    device = np.flatnonzero(launcher >= 0)
    place_of_row = np.full(len(trace.events), -1, dtype=np.int64)
    place_of_row[rows] = np.arange(len(rows))
    calls = place_of_row[launcher[device]]
    device, calls = device[calls >= 0], calls[calls >= 0]
    in_order = np.argsort(calls, kind="stable")
    columns = {
        "lane": lane,
        "part": _kinds(trace, rows, np.unique(calls)),
        "start_ns": starts - zero,
        "end_ns": starts - zero + lasted,
        "name": used_names(trace.events["name"], rows),
        "event": rows.astype(np.int64),
    }
    return HostLanes(
        labels=labels,
        events=pd.DataFrame(columns, copy=False),
        calls=calls[in_order],
        launched=device[in_order].astype(np.int64),
    )


def _host_events(trace: Trace) -> NDArray[np.bool_]:
    return matching(trace.events["category"], lambda text: is_host_category(text) and text not in _LEFT_OUT)


def _is_step(name: str) -> bool:
    """Steps have a lane of their own."""
    return name.startswith("ProfilerStep")


def _kinds(trace: Trace, rows: NDArray[np.intp], calls: NDArray[np.int64]) -> NDArray[np.int8]:
    category = trace.events["category"].iloc[rows]
    kinds = np.full(len(rows), _ORDER.index(HostKind.RANGE), dtype=np.int8)
    kinds[matching(category, OPERATOR_CATEGORIES.__contains__)] = _ORDER.index(HostKind.OPERATOR)
    kinds[matching(category, is_runtime_category)] = _ORDER.index(HostKind.CALL)
    kinds[calls] = _ORDER.index(HostKind.LAUNCH)
    return kinds


def _order_threads(trace: Trace, thread: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The threads from top to bottom, and what each is called; `thread` is that of each event."""
    threads, events = np.unique(thread, return_counts=True)
    names, of_event = trace.events["name"], thread_numbers(trace.events)
    stepping = threads_with(of_event, names, _is_step)
    backward = threads_with(of_event, names, is_backward) - stepping
    priority = np.array([0 if number in stepping else 1 if number in backward else 2 for number in threads.tolist()])
    threads = threads[np.lexsort((-events, priority))]
    labels: list[str] = []
    for number in threads.tolist():
        word = "main" if number in stepping else "autograd" if number in backward else "thread"
        same = sum(label.split(" ")[0] == word for label in labels)
        labels.append(f"{word} {same + 1}" if same else word)
    return threads, tuple(labels)


def device_marks(events: pd.DataFrame, place: int, host: HostLanes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of a host's calls in `host.events`, and of what they launched in `events`, those of the timeline."""
    of_trace = np.flatnonzero(events["trace"].to_numpy() == place)
    rows = events["event"].to_numpy()[of_trace]
    of_trace, rows = of_trace[rows >= 0], rows[rows >= 0]
    place_of_row = np.full(max(int(rows.max(initial=-1)), int(host.launched.max(initial=-1))) + 1, -1, dtype=np.int64)
    place_of_row[rows] = of_trace  # an event may be in other lanes, too; those of streams come last, and count
    marks = take_values(place_of_row, host.launched, -1)
    return host.calls[marks >= 0], marks[marks >= 0]
