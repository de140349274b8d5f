"""Where a rank's steps begin and end (docs/design.md, "A step's window")."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.events.activity import activity, counting_as, damaged_rows, rule_of
from overlaplab.events.rows import event_times, host_ranges, launchers
from overlaplab.events.rules import WorkKind
from overlaplab.events.run import Trace, once_per_trace
from overlaplab.intervals import Integers, Mask, reduce_ranges, total, union
from overlaplab.vocabulary import Rule
from overlaplab.words import numbers_named

NEXT_STEP = "overlaplab::next_step"
"""How `overlaplab slice` renames the first step that it leaves out: it only marks the end of the step before."""
_STEP = re.compile(rf"(?:ProfilerStep|{NEXT_STEP})#(\d{{1,18}})")  # 18 digits fit into 64 bits
_INT64 = np.iinfo(np.int64)

_ONCE_PER_ITERATION = ("Optimizer.step#", "DistributedDataParallel.forward")
"""How torch's own ranges begin that an iteration usually has once."""


class Window(Struct, frozen=True, kw_only=True):
    """One step of one rank, in absolute ns."""

    step: int | None
    """The ProfilerStep's number, None for a trace without steps."""
    start_ns: int
    end_ns: int
    """The window is [start_ns, end_ns)."""
    host_start_ns: int
    host_end_ns: int
    """When the host was in the step: all that it launched then belongs to the step. On CPU the same as the window."""
    damaged: bool = False
    """Whether it has events at times that cannot be true, see `DAMAGED`: its figures are those without them."""


def step_windows(trace: Trace) -> tuple[Window, ...]:
    """The trace's steps in time order. Without steps: one window over all counted events, if there are any."""
    return found_windows(trace)[0]


@once_per_trace
def host_steps(trace: Trace) -> tuple[Window, ...]:
    """The host's ProfilerStep ranges in time order, whatever ran in them; the windows are those of the host."""
    return tuple(step for step, _ in _steps_with_process(trace))


def window_bounds(steps: Sequence[Window], *, of_host: bool = False) -> tuple[Integers, Integers]:
    """The windows' starts and ends, or when the host was in each step, as two arrays of absolute ns."""
    pairs = [(step.host_start_ns, step.host_end_ns) if of_host else (step.start_ns, step.end_ns) for step in steps]
    bounds = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return bounds[:, 0], bounds[:, 1]


def windows_at(steps: Sequence[Window], moments_ns: Integers, *, of_host: bool = False) -> Integers:
    """For each moment, in absolute ns, the place in `steps` of the window that contains it, or -1.

    `of_host`: by when the host was in each step. Should several contain the moment, it is the last of them.
    """
    starts, ends = window_bounds(steps, of_host=of_host)
    borders = np.unique(np.concatenate((starts, ends)))
    owner = np.full(len(borders) + 1, -1, dtype=np.int64)  # [i]: from border i to the next; the last: outside
    first, last = (np.searchsorted(borders, at) for at in (starts, ends))
    for place, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        owner[begin:end] = place
    return np.asarray(owner[np.searchsorted(borders, moments_ns, side="right") - 1])


@once_per_trace
def unmarked_iterations(trace: Trace) -> tuple[str, int] | None:
    """What the host repeats in a trace without steps, so that it holds several iterations, and how often.

    It is an optimizer's step or the forward pass of a `DistributedDataParallel`; None where nothing repeats, or the
    trace has steps.
    """
    if host_steps(trace):
        return None
    for prefix in _ONCE_PER_ITERATION:
        names = trace.events["name"][host_ranges(trace.events, re.compile(re.escape(prefix)).match)]
        counts = names.value_counts()
        if len(names) and counts.iloc[0] > 1:
            return str(counts.index[0]), int(counts.iloc[0])
    return None


@once_per_trace
def main_stream(trace: Trace) -> int:
    """The stream with the most compute-kernel time, or -1 if there are no compute kernels."""
    rows = np.flatnonzero(counting_as(trace, WorkKind.COMPUTE))
    streams, (starts, ends) = trace.events["stream"].to_numpy()[rows], event_times(trace.events, rows)
    busy = {int(s): total(union(starts[streams == s], ends[streams == s])) for s in np.unique(streams)}
    return max(busy, key=lambda stream: busy[stream], default=-1)


@once_per_trace
def found_windows(trace: Trace) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    """`step_windows`, and a line that names the steps without a window, if there are any."""
    steps, warnings = _windows_and_warnings(trace)
    rows = damaged_rows(trace)
    if not len(rows):
        return steps, warnings
    calls, starts = launchers(trace)[rows], trace.events["ts_ns"].to_numpy()
    damaged = _contain(steps, starts[calls[calls >= 0]], of_host=True) | _contain(steps, starts[rows[calls < 0]])
    return tuple(replace(step, damaged=is_it) for step, is_it in zip(steps, damaged.tolist(), strict=True)), warnings


def _contain(steps: Sequence[Window], moments_ns: Integers, *, of_host: bool = False) -> Mask:
    """Whether each window contains any of these moments."""
    starts, ends = window_bounds(steps, of_host=of_host)
    order = np.sort(moments_ns)
    return np.asarray(np.searchsorted(order, starts) < np.searchsorted(order, ends))


def _windows_and_warnings(trace: Trace) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    steps = host_steps(trace)
    if not steps:
        start, end = activity(trace).extent
        whole = replace(_host_window(None, int(_INT64.min), int(_INT64.max)), start_ns=start, end_ns=end)
        return (whole,) if end > start else (), ()
    if rule_of(trace) is Rule.GPU:
        return _device_steps(trace)
    cut = [replace(step, end_ns=after.start_ns, host_end_ns=after.start_ns) for step, after in pairwise(steps)]
    return _drop_end_marker((*cut, steps[-1])), ()


@once_per_trace
def _steps_with_process(trace: Trace) -> tuple[tuple[Window, int], ...]:
    """The host's ProfilerStep ranges in time order, each with a number that identifies its process."""
    rows = trace.events[host_ranges(trace.events, _STEP.fullmatch)]
    starts, ends = event_times(rows)
    numbers = [None if name.startswith(NEXT_STEP) else int(name.rpartition("#")[2]) for name in rows["name"]]
    times = zip(numbers, starts.tolist(), ends.tolist(), rows["pid"].cat.codes.tolist(), strict=True)
    return tuple((_host_window(number, start, end), process) for number, start, end, process in times)


def _drop_end_marker(steps: Iterable[Window]) -> tuple[Window, ...]:
    """Drop the window that only ends the step before it; its step is None."""
    return tuple(window for window in steps if window.step is not None)


def _host_window(step: int | None, start_ns: int, end_ns: int) -> Window:
    return Window(step=step, start_ns=start_ns, end_ns=end_ns, host_start_ns=start_ns, host_end_ns=end_ns)


def _device_steps(trace: Trace) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    """Each window runs from its step's first compute kernel on the main stream to the next step's.

    The last window ends with its step's last event.
    """
    events, calls = trace.events, launchers(trace)
    rows = np.flatnonzero(~counting_as(trace, WorkKind.NOTHING) & (calls >= 0))
    compute = counting_as(trace, WorkKind.COMPUTE)
    main = (compute & (events["stream"] == main_stream(trace)).to_numpy())[rows]
    starts, ends = event_times(events, rows)
    called, caller = events["ts_ns"].to_numpy()[calls[rows]], events["pid"].cat.codes.to_numpy()[calls[rows]]
    steps, processes = host_steps(trace), np.array([process for _, process in _steps_with_process(trace)])
    begins, until = np.full(len(steps), _INT64.max), np.full(len(steps), _INT64.min)
    host_starts, host_ends = window_bounds(steps, of_host=True)
    for process in np.unique(processes):
        places = np.flatnonzero(processes == process)
        launches = np.flatnonzero(caller == process)
        launches = launches[np.argsort(called[launches], kind="stable")]
        first, last = (np.searchsorted(called[launches], at[places]) for at in (host_starts, host_ends))
        computing = np.where(main[launches], starts[launches], _INT64.max)
        begins[places] = reduce_ranges(np.minimum, computing, first, last, empty=_INT64.max)
        until[places] = reduce_ranges(np.maximum, ends[launches], first, last, empty=_INT64.min)
    spans = [
        replace(step, start_ns=begin, end_ns=end)
        for step, begin, end in zip(steps, begins.tolist(), until.tolist(), strict=True)
    ]
    started = sorted((span for span in spans if span.start_ns < _INT64.max), key=lambda span: span.start_ns)
    left_out = [span.step for span in spans if span.start_ns == _INT64.max]
    cut = [replace(window, end_ns=following.start_ns) for window, following in pairwise(started)]
    return _drop_end_marker((*cut, *started[-1:])), _left_out_warning(left_out)


def _left_out_warning(numbers: Iterable[int | None]) -> tuple[str, ...]:
    steps = [step for step in numbers if step is not None]
    if not steps:
        return ()
    noun, verb = ("step", "was") if len(steps) == 1 else ("steps", "were")
    return (f"{noun} {numbers_named(steps)} launched no compute kernel on the main stream and {verb} left out",)
