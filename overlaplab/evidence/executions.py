"""From launches on the host to execution: when a launched collective ran, and when the device reached a host moment.

On CPU the host's time counts. On a GPU the host runs ahead, so readiness is device time: the end of the last event on
the compute stream that had been launched by then (docs/design.md, "On a GPU, readiness is device time").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from overlaplab.events import (
    Trace,
    WorkKind,
    activity,
    counting_as,
    event_times,
    launchers,
    main_stream,
    matching,
    once_per_trace,
    rule_of,
)
from overlaplab.evidence.labels import Label, Ordered, Span, engine_labels
from overlaplab.evidence.launches import LaunchSpan, event_spans, launches
from overlaplab.vocabulary import Rule


class Executions:
    """How one trace's launches were executed; times in absolute ns. On a CPU: as the host issued them."""

    _on_any_thread = False
    """Whether a range also launched what other threads launched during it."""

    def __init__(self, trace: Trace) -> None:
        self.launches: Sequence[LaunchSpan] = launches(trace)
        """All of the trace's collectives, in order of launch."""
        self._by_thread = Ordered(self.launches, self._thread)
        self._group_sizes = {group.name: len(group.ranks) or group.size for group in trace.groups}
        self.host_compute = activity(trace).compute
        """When the host computed; on a GPU the moments at which it launched what its device computes."""
        hops = [label for label in engine_labels(trace) if label.word == "hop"]
        self._hops = Ordered(hops, lambda label: label.fields["bucket"])
        named = matching(trace.events["name"], lambda text: text.startswith("autograd::engine::evaluate_function"))
        autograd = event_spans(trace, named)
        self._autograd = autograd["start_ns"].to_numpy(np.int64), autograd["end_ns"].to_numpy(np.int64)

    def launches_inside(self, span: Span) -> Sequence[LaunchSpan]:
        """The collectives launched inside a host range."""
        return self._by_thread.starting_in(self._thread(span), span.start_ns, span.end_ns)

    def gathering_ranks(self, span: Span) -> int | None:
        """Among how many ranks the all-gathers launched inside a host range ran, where all among as many.

        As recorded, else by the group's name.
        """
        collectives = self.launches_inside(span)
        sizes = {launch.group_size or self._group_sizes.get(launch.group or "") for launch in collectives}
        return sizes.pop() if len(sizes) == 1 else None

    def communication_span(self, span: Span) -> tuple[int, int] | None:
        """Start and end of the communication launched inside a host range; None where unknown.

        Of a bucket whose collective is made by hand: of its hops, on whichever thread.
        """
        if hops := self.hops(span):
            return hops[0].start_ns, max(hop.end_ns for hop in hops)
        return communication_bounds(self.launches_inside(span))

    def hops(self, span: Span) -> Sequence[Label]:
        """The hops of the bucket whose `bucket_launch` label this is, in order; empty for any other range."""
        if not isinstance(span, Label) or span.word != "bucket_launch":
            return ()
        hops = list[Label]()
        for hop in self._hops.starting_from(span.fields["bucket"], span.start_ns):
            if hops and int(hop.fields["hop"]) <= int(hops[-1].fields["hop"]):  # the bucket's next all-reduce
                break
            hops.append(hop)
        return hops

    def done_ns(self, host_ns: int) -> int:
        """When all work that the host had issued by then was done."""
        return host_ns

    def first_begin_ns(self, host_ns: int) -> int | None:
        """When the first work that the host issued from then on began; None if there was none."""
        return host_ns

    def waited_ns(self, blocked: Sequence[Span], end_ns: int | None) -> int | None:
        """How long this rank waited for communication that ended at `end_ns` (None: unknown).

        `blocked` are the host's ranges that wait for it, in order. On CPU the wait is the time in them, until the end.
        On a GPU the last range makes the stream wait. The wait there lasts from when the host asked for the result and
        all computation issued before was done, until the end.
        """
        ends = [span.end_ns if end_ns is None else min(span.end_ns, end_ns) for span in blocked]
        return sum(max(0, end - span.start_ns) for end, span in zip(ends, blocked, strict=True)) if blocked else None

    def backward(self, span: Span) -> tuple[int, int]:
        """Start and end of the backward pass in the range.

        It ends with autograd's last function, on any thread, before any wait; without such functions with the range.
        """
        starts, ends = self._autograd
        first, last = np.searchsorted(starts, span.start_ns), np.searchsorted(starts, span.end_ns, side="right")
        return self.done_ns(span.start_ns), self.done_ns(int(ends[first:last].max()) if first < last else span.end_ns)

    def _thread(self, span: Span) -> int:
        return -1 if self._on_any_thread else span.thread


class _OnDevice(Executions):
    """On a GPU: as the compute stream reached what the host issued."""

    _on_any_thread = True

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        events, calls = trace.events, launchers(trace)
        compute = counting_as(trace, WorkKind.COMPUTE)
        on_main = compute & (events["stream"] == main_stream(trace)).to_numpy()
        rows = np.flatnonzero(on_main & (calls >= 0))
        starts, ends = event_times(events, rows)
        hosts = events["ts_ns"].to_numpy()[calls[rows]]
        order = np.argsort(hosts, kind="stable")
        self._hosts = hosts[order]
        self.host_compute = np.column_stack([self._hosts, self._hosts])
        self._done = np.maximum.accumulate(ends[order])
        self._starts = starts[order]  # kernels of one launch, such as a graph's, in order of start

    def done_ns(self, host_ns: int) -> int:
        before = int(np.searchsorted(self._hosts, host_ns)) - 1
        return int(self._done[before]) if before >= 0 else host_ns

    def first_begin_ns(self, host_ns: int) -> int | None:
        after = int(np.searchsorted(self._hosts, host_ns))
        return int(self._starts[after]) if after < len(self._starts) else None

    def waited_ns(self, blocked: Sequence[Span], end_ns: int | None) -> int | None:
        if not blocked or end_ns is None:
            return None
        asked_ns = blocked[-1].start_ns
        return max(0, end_ns - max(asked_ns, self.done_ns(asked_ns)))


@once_per_trace
def executions(trace: Trace) -> Executions:
    return (_OnDevice if rule_of(trace) is Rule.GPU else Executions)(trace)


def map_moment(host_ns: int | None, convert: Callable[[int], int | None]) -> int | None:
    return None if host_ns is None else convert(host_ns)


def communication_bounds(collectives: Sequence[LaunchSpan]) -> tuple[int, int] | None:
    """The first start and the last end of these collectives; None where unknown."""
    ran = [launch.ran for launch in collectives if launch.ran]
    return (min(start for start, _ in ran), max(end for _, end in ran)) if ran else None
