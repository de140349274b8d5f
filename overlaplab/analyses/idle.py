"""Idle time: why nothing ran, in the classes of HTA's idle-time breakdown.

HTA (`hta/analyzers/breakdown_analysis.py`, `_analyze_idle_time_for_stream`, release 0.5.0) classifies each gap between
two events of one stream. It is *host wait* if the call that launched the second event began after the first had ended;
else *kernel wait* if the gap is shorter than 30 ns; else *other*, such as waiting for another stream. Here a gap is one
of the whole device: it lasts until the next event on any stream. If several events end it, the one launched first
decides. So the three classes add up to the idle time of `summary`. With a single stream the result equals HTA's.

Where no device was recorded, the host itself computes. Then all idle time is host wait, but for what `summary` calls
preempted: an operator was under way and waited for a core.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from msgspec.structs import replace

from overlaplab.events import (
    Run,
    Trace,
    WorkKind,
    activity,
    counting_as,
    empty_table,
    launchers,
    launches_graphs,
    once_per_trace,
    rule_of,
    window_bounds,
    with_known,
)
from overlaplab.evidence.clocks import run_zero_ns
from overlaplab.evidence.host_waits import host_waits
from overlaplab.evidence.host_work import has_loader_workers
from overlaplab.evidence.moments import GRAIN_NS
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.selection import measured_traces, selected_windows
from overlaplab.intervals import Integers, Intervals, Mask, lengths_within, subtract, union
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule

HostRole: TypeAlias = Literal["computes", "launches", "launches graphs"]
"""What a host does for a step: on a CPU it computes; for a device it launches kernels, perhaps as CUDA graphs."""

KERNEL_DELAY_NS = 30
"""HTA's `consecutive_kernel_delay`: the usual gap between two consecutive kernels."""

COLUMNS = {
    **dict.fromkeys(("rank", "step"), "Int64"),
    **dict.fromkeys(("start_ns", "span_ns", "idle_ns", "host_wait_ns", "kernel_wait_ns", "preempted_ns"), "int64"),
    "other_ns": "int64",
}
"""The columns of `idle` and their dtypes."""


def idle(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank and step, in ns.

    Columns: `rank`, `step` (Int64), `start_ns` (from the run's start, by the first rank's clock), `span_ns`, `idle_ns`
    (both as in `summary`), `host_wait_ns` (the host had not yet launched the next event), `kernel_wait_ns` (shorter
    than 30 ns: the device switches kernels), `preempted_ns` (an operator waited for a core; 0 where the trace does not
    tell), `other_ns` (launched, but waiting for something else, or unknown). The last four add up to `idle_ns`. A rank
    whose device activity was not recorded has no rows. Raises `OverlaplabError` for an unknown rank or step.
    """
    tables = []
    for trace in measured_traces(run, selection):
        host_gaps, kernel_gaps = idle_gaps(trace)
        busy, windows = activity(trace), selected_windows(trace, selection)
        starts, ends = window_bounds(windows)
        idle_ns = ends - starts - lengths_within(_busy_time(trace), starts, ends)
        host_ns, kernel_ns = (lengths_within(gaps, starts, ends) for gaps in (host_gaps, kernel_gaps))
        preempted = np.zeros_like(starts)
        if busy.rule is Rule.CPU:
            if busy.preempted is not None:
                preempted = lengths_within(subtract(busy.preempted, _busy_time(trace)), starts, ends)
            host_ns, kernel_ns = idle_ns - preempted, np.zeros_like(starts)
        tables.append(
            pd.DataFrame(
                {
                    "rank": trace.rank,
                    "step": pd.array([window.step for window in windows], dtype="Int64"),
                    "start_ns": starts - run_zero_ns(run, trace),
                    "span_ns": ends - starts,
                    "idle_ns": idle_ns,
                    "host_wait_ns": host_ns,
                    "kernel_wait_ns": kernel_ns,
                    "preempted_ns": preempted,
                    "other_ns": idle_ns - host_ns - kernel_ns - preempted,
                }
            ).astype(COLUMNS)
        )
    return pd.concat(tables, ignore_index=True) if tables else empty_table(COLUMNS)


def host_role(run: Run) -> HostRole:
    """What the ranks' hosts do for a step, which decides what idle time can mean."""
    if any(rule_of(trace) is Rule.CPU for trace in run.traces):
        return "computes"
    return "launches graphs" if any(map(launches_graphs, run.traces)) else "launches"


def loads_in_workers(run: Run) -> bool:
    """Whether a rank's DataLoader has worker processes."""
    return any(map(has_loader_workers, run.traces))


@once_per_trace
def _busy_time(trace: Trace) -> Intervals:
    """When any counted event ran."""
    busy = activity(trace)
    return union(*np.concatenate((busy.compute, busy.communication, busy.memory)).T)


@once_per_trace
def idle_gaps(trace: Trace) -> tuple[Intervals, Intervals]:
    """The gaps that are host wait, and those that are kernel wait, in absolute ns."""
    busy = _busy_time(trace)
    gaps = np.column_stack((busy[:-1, 1], busy[1:, 0]))
    launched = _first_launch(trace, gaps[:, 1], ~counting_as(trace, WorkKind.NOTHING))
    host = launched > gaps[:, 0]
    kernel = ~host & (gaps[:, 1] - gaps[:, 0] < KERNEL_DELAY_NS)
    return gaps[host], gaps[kernel]


def assume_prompt_launches(run: Run) -> Run:
    """The run as if each device computed on wherever it had nothing to compute because its host had not launched it.

    It does not where its host was in a call that waited for the device. Ranks whose hosts compute are as they were
    recorded.
    """
    return replace(run, traces=tuple(map(_assume_prompt_launches, run.traces)))


def _assume_prompt_launches(trace: Trace) -> Trace:
    if rule_of(trace) is not Rule.GPU:
        return trace
    computes = activity(trace).compute
    gaps = np.column_stack((computes[:-1, 1], computes[1:, 0]))
    launched = _first_launch(trace, gaps[:, 1], counting_as(trace, WorkKind.COMPUTE))
    late = launched > gaps[:, 0]
    ends = np.where(gaps[:, 1] - launched <= GRAIN_NS, gaps[:, 1], launched)  # a launch takes a little, too
    starved = subtract(union(gaps[late, 0], ends[late]), host_waits(trace))
    whole = union(*np.concatenate((computes, starved)).T)
    return with_known(trace, activity, replace(activity(trace), compute=whole))


def _first_launch(trace: Trace, at_ns: Integers, counts: Mask) -> Integers:
    """When the host launched what began at these moments, of the events that count: the earliest of several;
    `UNKNOWN_NS` where that was not recorded.
    """
    rows = np.flatnonzero(counts)
    calls = launchers(trace)[rows]
    times = trace.events["ts_ns"].to_numpy(np.int64)
    called = np.where(calls >= 0, times[calls], UNKNOWN_NS)
    order = np.lexsort((called, times[rows]))
    place = np.searchsorted(times[rows][order], at_ns, side="left")
    return np.asarray(np.append(called[order], UNKNOWN_NS)[place], dtype=np.int64)
