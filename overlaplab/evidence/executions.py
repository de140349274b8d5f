"""From what the host launched to what ran: which communication a launch became, and when its work was reached.

On CPU the host's time is the truth. On a GPU the host runs ahead, so readiness is device time: the end of the last
event on the compute stream that had been launched by then (docs/design.md, "On a GPU, readiness is device time").
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd

from overlaplab.events import Kind, Trace, launchers, main_stream, matching, of_kind, once_per_trace, rule_of
from overlaplab.evidence.labels import Span
from overlaplab.evidence.launches import Launch, launches, spans_of
from overlaplab.vocabulary import Rule

__all__ = ["Executions", "bounds_of", "executions"]


class Executions(Protocol):
    """Answers for one trace, in absolute ns."""

    @property
    def launches(self) -> Sequence[Launch]:
        """All of the trace's collectives, in order of launch."""

    def inside(self, span: Span) -> Sequence[Launch]:
        """The collectives launched inside a host range."""

    def of_launch(self, span: Span) -> tuple[int, int] | None:
        """Start and end of the communication launched inside a host range; None where the trace does not tell."""

    def reached(self, host_ns: int) -> int:
        """When the work that the host had issued by then was done."""

    def begun(self, host_ns: int) -> int | None:
        """When the first work that the host issued from then on began; None where none followed."""

    def waited(self, blocked: Sequence[Span], end_ns: int | None) -> int | None:
        """How long this rank waited for communication that ended at `end_ns` (None: unknown).

        `blocked` are the host's ranges that wait for it, in order; on a GPU the last one makes the stream wait. On CPU:
        the time in them until the end. On a GPU: from when the host asked for the result and all computation
        issued before was done, to the end.
        """

    def backward(self, span: Span) -> tuple[int, int]:
        """When the backward pass within the range began, and when autograd's last operation ended, before waiting."""


@once_per_trace
def executions(trace: Trace) -> Executions:
    """For a trace."""
    if rule_of(trace) is Rule.GPU:
        return _OnDevice(trace)
    return _OnHost(trace)


def bounds_of(found: Sequence[Launch]) -> tuple[int, int] | None:
    """The first start and the last end of these collectives; None where no trace tells either."""
    ran = [launch.ran for launch in found if launch.ran]
    return (min(start for start, _ in ran), max(end for _, end in ran)) if ran else None


class _Launches:
    """The collectives by the thread that launched them, each thread's in order of time."""

    def __init__(self, found: Sequence[Launch], *, any_lane: bool) -> None:
        self._any_lane = any_lane
        self._found: dict[int, list[Launch]] = {}
        for launch in found:
            self._found.setdefault(self._lane(launch), []).append(launch)
        self._starts = {lane: [launch.start_ns for launch in own] for lane, own in self._found.items()}

    def inside(self, span: Span) -> Sequence[Launch]:
        lane = self._lane(span)
        starts = self._starts.get(lane, [])
        return self._found.get(lane, [])[bisect_left(starts, span.start_ns) : bisect_right(starts, span.end_ns)]

    def _lane(self, span: Span) -> int:
        return -1 if self._any_lane else span.lane


class _OnHost:
    def __init__(self, trace: Trace) -> None:
        self._autograd = _evaluated(trace)
        self.launches: Sequence[Launch] = launches(trace)
        self._by_lane = _Launches(self.launches, any_lane=False)

    def inside(self, span: Span) -> Sequence[Launch]:
        return self._by_lane.inside(span)

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
        compute = of_kind(trace, Kind.COMPUTE)
        on_main = compute & (events["stream"] == main_stream(trace)).to_numpy()
        rows = np.flatnonzero(on_main & (calls >= 0))
        starts = events["ts_ns"].to_numpy()[rows]
        ends = starts + events["dur_ns"].to_numpy()[rows]
        hosts = events["ts_ns"].to_numpy()[calls[rows]]
        order = np.argsort(hosts, kind="stable")
        self._autograd = _evaluated(trace)
        self._hosts = hosts[order]
        self._done = np.maximum.accumulate(ends[order])
        self._starts = starts[order]  # those of one launch, as of a graph, in order of start
        self.launches: Sequence[Launch] = launches(trace)
        self._all = _Launches(self.launches, any_lane=True)

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
    """Autograd's functions, on whatever threads."""
    named = matching(trace.events["name"], lambda text: text.startswith("autograd::engine::evaluate_function"))
    return spans_of(trace)[named]


def _last_end(autograd: pd.DataFrame, span: Span) -> int:
    """When the last of autograd's functions within the range ended; the range's end where none is recorded."""
    ends = autograd.loc[autograd["start_ns"].between(span.start_ns, span.end_ns), "end_ns"]
    return int(ends.max()) if len(ends) else span.end_ns
