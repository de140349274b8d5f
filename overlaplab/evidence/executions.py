"""From launches on the host to execution: when a launched collective ran, and when the device reached a host moment.

On CPU the host's time counts. On a GPU the host runs ahead, so readiness is device time: the end of the last event on
the compute stream that had been launched by then (docs/design.md, "On a GPU, readiness is device time").
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd

from overlaplab.events import Trace, Work, counting_as, launchers, main_stream, matching, once_per_trace, rule_of
from overlaplab.evidence.labels import Span
from overlaplab.evidence.launches import Launch, launches, spans_of
from overlaplab.vocabulary import Rule

__all__ = ["Executions", "bounds_of", "executions"]


class Executions(Protocol):
    """How one trace's launches were executed; times in absolute ns."""

    @property
    def launches(self) -> Sequence[Launch]:
        """All of the trace's collectives, in order of launch."""

    def inside(self, span: Span) -> Sequence[Launch]:
        """The collectives launched inside a host range."""

    def of_launch(self, span: Span) -> tuple[int, int] | None:
        """Start and end of the communication launched inside a host range; None where unknown."""

    def reached(self, host_ns: int) -> int:
        """When all work that the host had issued by then was done."""

    def begun(self, host_ns: int) -> int | None:
        """When the first work that the host issued from then on began; None if there was none."""

    def waited(self, blocked: Sequence[Span], end_ns: int | None) -> int | None:
        """How long this rank waited for communication that ended at `end_ns` (None: unknown).

        `blocked` are the host's ranges that wait for it, in order. On CPU the wait is the time in them, until the end.
        On a GPU the last range makes the stream wait. The wait there lasts from when the host asked for the result and
        all computation issued before was done, until the end.
        """

    def backward(self, span: Span) -> tuple[int, int]:
        """Start and end of the backward pass in the range; it ends with autograd's last function, before any wait."""


@once_per_trace
def executions(trace: Trace) -> Executions:
    """The executions of a trace."""
    if rule_of(trace) is Rule.GPU:
        return _OnDevice(trace)
    return _OnHost(trace)


def bounds_of(collectives: Sequence[Launch]) -> tuple[int, int] | None:
    """The first start and the last end of these collectives; None where unknown."""
    ran = [launch.ran for launch in collectives if launch.ran]
    return (min(start for start, _ in ran), max(end for _, end in ran)) if ran else None


class _Launches:
    """The collectives by the thread that launched them, in order of time per thread."""

    def __init__(self, collectives: Sequence[Launch], *, any_thread: bool) -> None:
        self._any_thread = any_thread
        self._launches: dict[int, list[Launch]] = {}
        for launch in collectives:
            self._launches.setdefault(self._thread(launch), []).append(launch)
        self._starts = {thread: [launch.start_ns for launch in own] for thread, own in self._launches.items()}

    def inside(self, span: Span) -> Sequence[Launch]:
        thread = self._thread(span)
        starts = self._starts.get(thread, [])
        return self._launches.get(thread, [])[bisect_left(starts, span.start_ns) : bisect_right(starts, span.end_ns)]

    def _thread(self, span: Span) -> int:
        return -1 if self._any_thread else span.thread


class _OnHost:
    def __init__(self, trace: Trace) -> None:
        self._autograd = _evaluated(trace)
        self.launches: Sequence[Launch] = launches(trace)
        self._by_thread = _Launches(self.launches, any_thread=False)

    def inside(self, span: Span) -> Sequence[Launch]:
        return self._by_thread.inside(span)

    def of_launch(self, span: Span) -> tuple[int, int] | None:
        return bounds_of(self.inside(span))

    def reached(self, host_ns: int) -> int:
        return host_ns

    def begun(self, host_ns: int) -> int | None:
        return host_ns

    def waited(self, blocked: Sequence[Span], end_ns: int | None) -> int | None:
        if not blocked:
            return None
        return sum(
            max(0, (span.end_ns if end_ns is None else min(span.end_ns, end_ns)) - span.start_ns) for span in blocked
        )

    def backward(self, span: Span) -> tuple[int, int]:
        return span.start_ns, _last_end(self._autograd, span)


class _OnDevice:
    def __init__(self, trace: Trace) -> None:
        events, calls = trace.events, launchers(trace)
        compute = counting_as(trace, Work.COMPUTE)
        on_main = compute & (events["stream"] == main_stream(trace)).to_numpy()
        rows = np.flatnonzero(on_main & (calls >= 0))
        starts = events["ts_ns"].to_numpy()[rows]
        ends = starts + events["dur_ns"].to_numpy()[rows]
        hosts = events["ts_ns"].to_numpy()[calls[rows]]
        order = np.argsort(hosts, kind="stable")
        self._autograd = _evaluated(trace)
        self._hosts = hosts[order]
        self._done = np.maximum.accumulate(ends[order])
        self._starts = starts[order]  # kernels of one launch, such as a graph's, in order of start
        self.launches: Sequence[Launch] = launches(trace)
        self._all = _Launches(self.launches, any_thread=True)

    def inside(self, span: Span) -> Sequence[Launch]:
        return self._all.inside(span)

    def of_launch(self, span: Span) -> tuple[int, int] | None:
        return bounds_of(self.inside(span))

    def reached(self, host_ns: int) -> int:
        before = int(np.searchsorted(self._hosts, host_ns)) - 1
        return int(self._done[before]) if before >= 0 else host_ns

    def begun(self, host_ns: int) -> int | None:
        after = int(np.searchsorted(self._hosts, host_ns))
        return int(self._starts[after]) if after < len(self._starts) else None

    def waited(self, blocked: Sequence[Span], end_ns: int | None) -> int | None:
        if not blocked or end_ns is None:
            return None
        asked = blocked[-1].start_ns
        return max(0, end_ns - max(asked, self.reached(asked)))

    def backward(self, span: Span) -> tuple[int, int]:
        return self.reached(span.start_ns), self.reached(_last_end(self._autograd, span))


def _evaluated(trace: Trace) -> pd.DataFrame:
    """Autograd's functions, on any thread."""
    named = matching(trace.events["name"], lambda text: text.startswith("autograd::engine::evaluate_function"))
    return spans_of(trace)[named]


def _last_end(autograd: pd.DataFrame, span: Span) -> int:
    """When the last of autograd's functions within the range ended; the range's end where none is recorded."""
    ends = autograd.loc[autograd["start_ns"].between(span.start_ns, span.end_ns), "end_ns"]
    return int(ends.max()) if len(ends) else span.end_ns
