"""Where a rank's steps begin and end (DESIGN.md, "A step's window")."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from overlaplab.events.activity import Activity, Kind, activity, classify, matching, runtime_calls
from overlaplab.events.run import Trace, once_per_trace
from overlaplab.intervals import total, union
from overlaplab.vocabulary import ANNOTATION_CATEGORIES, Rule

__all__ = ["Window", "main_stream", "step_windows", "window_warnings", "windows"]

_STEP = re.compile(r"ProfilerStep#(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One step of one rank, in absolute ns."""

    step: int | None
    """The ProfilerStep's number, None for a trace without steps."""
    start_ns: int
    end_ns: int
    """Time is cut to [start_ns, end_ns)."""
    host_start_ns: int
    host_end_ns: int
    """When the host was in the step: what it launched then belongs to it. On CPU the same as the window."""


def step_windows(trace: Trace) -> tuple[Window, ...]:
    """The trace's steps in time order. One without steps is one window over all that counts; empty if nothing does."""
    return _windows(trace)[0]


def windows(trace: Trace) -> pd.DataFrame:
    """`step_windows` as a table, with the fields of `Window` as columns (`step` Int64, the others int64)."""
    table = pd.DataFrame([asdict(window) for window in step_windows(trace)], columns=list(Window.__slots__))
    return table.astype({"step": "Int64"} | dict.fromkeys(Window.__slots__[1:], "int64"))


def window_warnings(trace: Trace) -> tuple[str, ...]:
    """Which steps have no window, a line each."""
    return _windows(trace)[1]


def main_stream(kernels: pd.DataFrame) -> int:
    """The stream on which these compute kernels take most time, or -1 where there are none."""
    streams, starts = kernels["stream"].to_numpy(), kernels["ts_ns"].to_numpy()
    ends = starts + kernels["dur_ns"].to_numpy()
    busy = {int(s): total(union(starts[streams == s], ends[streams == s])) for s in np.unique(streams)}
    return max(busy, key=lambda stream: busy[stream], default=-1)


@once_per_trace
def _windows(trace: Trace) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    found = activity(trace)
    steps = _host_steps(trace.events)
    if not steps:
        start, end = found.extent
        always = np.iinfo(np.int64)
        whole = Window(
            step=None, start_ns=start, end_ns=end, host_start_ns=int(always.min), host_end_ns=int(always.max)
        )
        return (whole,) if end > start else (), ()
    if found.rule is Rule.GPU:
        return _on_device(trace, found, steps)
    cut = [
        replace(step, end_ns=following.start_ns, host_end_ns=following.start_ns) for step, following in pairwise(steps)
    ]
    return (*cut, steps[-1]), ()


def _host_steps(events: pd.DataFrame) -> list[Window]:
    """The host's ProfilerStep ranges in time order."""
    named = matching(events["name"], _STEP.fullmatch)
    rows = events[named & events["category"].isin(ANNOTATION_CATEGORIES).to_numpy()]
    ends = rows["ts_ns"] + rows["dur_ns"]
    return [
        Window(step=int(str(name).rpartition("#")[2]), start_ns=start, end_ns=end, host_start_ns=start, host_end_ns=end)
        for name, start, end in zip(rows["name"], rows["ts_ns"].tolist(), ends.tolist(), strict=True)
    ]


def _on_device(trace: Trace, found: Activity, steps: list[Window]) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    """From each step's first compute kernel on the main stream to the next step's; the last to its last own event."""
    kinds = classify(trace)
    counted = kinds != Kind.NOTHING
    device = trace.events[counted]
    compute = kinds[counted] == Kind.COMPUTE
    main = compute & (device["stream"] == main_stream(device[compute])).to_numpy()
    calls = runtime_calls(trace.events)
    begun: list[Window] = []
    warnings: list[str] = []
    for step in steps:
        inside = calls["ts_ns"].between(step.host_start_ns, step.host_end_ns, inclusive="left")
        own = device["correlation"].isin(calls.loc[inside, "correlation"]).to_numpy()
        if not (own & main).any():
            warnings.append(f"step {step.step} launched no compute kernel on the main stream and was left out")
            continue
        last = int((device["ts_ns"] + device["dur_ns"])[own].max())
        begun.append(replace(step, start_ns=int(device["ts_ns"][own & main].min()), end_ns=last))
    begun.sort(key=lambda window: window.start_ns)
    cut = [replace(window, end_ns=following.start_ns) for window, following in pairwise(begun)]
    return (*cut, *begun[-1:]), tuple(warnings)
