"""Where a rank's steps begin and end (docs/design.md, "A step's window")."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from overlaplab.events.activity import activity, counting_as, damaged_rows, rule_of
from overlaplab.events.launching import launchers
from overlaplab.events.matching import matching
from overlaplab.events.rules import Work
from overlaplab.events.run import Trace, once_per_trace
from overlaplab.intervals import total, union
from overlaplab.vocabulary import ANNOTATION_CATEGORIES, Rule

__all__ = [
    "NEXT_STEP",
    "Window",
    "found_windows",
    "host_steps",
    "main_stream",
    "recording_start",
    "step_windows",
    "window_warnings",
    "windows",
]

NEXT_STEP = "overlaplab::next_step"
"""How `overlaplab slice` renames the first step that it leaves out: it only marks the end of the step before."""
_STEP = re.compile(rf"(?:ProfilerStep|{NEXT_STEP})#(\d{{1,18}})")  # 18 digits fit into 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
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
    return tuple(step for step, _ in _host_steps(trace.events))


@once_per_trace
def recording_start(trace: Trace) -> tuple[int, int] | None:
    """The first moment that was recorded, in absolute ns, and how many steps begin after it; None without events."""
    return (int(trace.events["ts_ns"].iloc[0]), len(host_steps(trace))) if len(trace.events) else None


def windows(trace: Trace) -> pd.DataFrame:
    """`step_windows` as a table, with the fields of `Window` as columns (`step` Int64, `damaged` bool, else int64)."""
    table = pd.DataFrame([asdict(window) for window in step_windows(trace)], columns=list(Window.__slots__))
    return table.astype({"step": "Int64"} | dict.fromkeys(Window.__slots__[1:], "int64") | {"damaged": "bool"})


def window_warnings(trace: Trace) -> tuple[str, ...]:
    """One line for each step without a window."""
    return found_windows(trace)[1]


@once_per_trace
def main_stream(trace: Trace) -> int:
    """The stream with the most compute-kernel time, or -1 if there are no compute kernels."""
    rows = np.flatnonzero(counting_as(trace, Work.COMPUTE))
    streams, starts = trace.events["stream"].to_numpy()[rows], trace.events["ts_ns"].to_numpy()[rows]
    ends = starts + trace.events["dur_ns"].to_numpy()[rows]
    busy = {int(s): total(union(starts[streams == s], ends[streams == s])) for s in np.unique(streams)}
    return max(busy, key=lambda stream: busy[stream], default=-1)


@once_per_trace
def found_windows(trace: Trace) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    """`step_windows` and `window_warnings`."""
    steps, warnings = _windows_and_warnings(trace)
    rows = damaged_rows(trace)
    calls, starts = launchers(trace)[rows], trace.events["ts_ns"].to_numpy()
    called, began = starts[calls[calls >= 0]], starts[rows[calls < 0]]

    def is_damaged(step: Window) -> bool:
        launched = (called >= step.host_start_ns) & (called < step.host_end_ns)
        return bool(launched.any() or ((began >= step.start_ns) & (began < step.end_ns)).any())

    if len(rows):
        steps = tuple(replace(step, damaged=is_damaged(step)) for step in steps)
    return steps, warnings


def _windows_and_warnings(trace: Trace) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    steps = _host_steps(trace.events)
    if not steps:
        start, end = activity(trace).extent
        always = np.iinfo(np.int64)
        whole = replace(_host_window(None, int(always.min), int(always.max)), start_ns=start, end_ns=end)
        return (whole,) if end > start else (), ()
    if rule_of(trace) is Rule.GPU:
        return _on_device(trace, steps)
    cut = [
        replace(step, end_ns=after.start_ns, host_end_ns=after.start_ns) for (step, _), (after, _) in pairwise(steps)
    ]
    return _numbered((*cut, steps[-1][0])), ()


def _host_steps(events: pd.DataFrame) -> list[tuple[Window, int]]:
    """The host's ProfilerStep ranges in time order, each with a number that identifies its process."""
    named = matching(events["name"], _STEP.fullmatch)
    rows = events[named & matching(events["category"], ANNOTATION_CATEGORIES.__contains__)]
    starts, ends = rows["ts_ns"].tolist(), (rows["ts_ns"] + rows["dur_ns"]).tolist()
    return [
        (_host_window(_number(str(name)), start, end), process)
        for name, start, end, process in zip(rows["name"], starts, ends, rows["pid"].cat.codes.tolist(), strict=True)
    ]


def _number(name: str) -> int | None:
    return None if name.startswith(NEXT_STEP) else int(name.rpartition("#")[2])


def _numbered(steps: Iterable[Window]) -> tuple[Window, ...]:
    """Without the one that only ends the step before it."""
    return tuple(window for window in steps if window.step is not None)


def _host_window(step: int | None, start_ns: int, end_ns: int) -> Window:
    return Window(step=step, start_ns=start_ns, end_ns=end_ns, host_start_ns=start_ns, host_end_ns=end_ns)


def _on_device(trace: Trace, steps: Sequence[tuple[Window, int]]) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    """Each window runs from its step's first compute kernel on the main stream to the next step's.

    The last window ends with its step's last event.
    """
    events, calls = trace.events, launchers(trace)
    rows = np.flatnonzero(~counting_as(trace, Work.NOTHING) & (calls >= 0))
    compute = counting_as(trace, Work.COMPUTE)
    main = (compute & (events["stream"] == main_stream(trace)).to_numpy())[rows]
    starts = events["ts_ns"].to_numpy()[rows]
    ends = starts + events["dur_ns"].to_numpy()[rows]
    called, caller = events["ts_ns"].to_numpy()[calls[rows]], events["pid"].cat.codes.to_numpy()[calls[rows]]
    started: list[Window] = []
    warnings: list[str] = []
    for step, process in steps:
        own = (caller == process) & (called >= step.host_start_ns) & (called < step.host_end_ns)
        if (own & main).any():
            started.append(replace(step, start_ns=int(starts[own & main].min()), end_ns=int(ends[own].max())))
        elif step.step is not None:
            warnings.append(f"step {step.step} launched no compute kernel on the main stream and was left out")
    started.sort(key=lambda window: window.start_ns)
    cut = [replace(window, end_ns=following.start_ns) for window, following in pairwise(started)]
    return _numbered((*cut, *started[-1:])), tuple(warnings)
