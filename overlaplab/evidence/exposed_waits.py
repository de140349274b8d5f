"""When the computation waited for communication that was exposed, where `stream_waits` tell whom streams waited for.

At an exposed moment communication is blocking if the next kernel that computes on the main stream has been launched
and, directly or through other streams, waits for a collective that is running; or if the host, which launches that
kernel later, is in a call that waits for it. Otherwise something else held up the computation, such as late launches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from overlaplab.events import Trace, WorkKind, activity, classify, main_stream, once_per_trace
from overlaplab.evidence.dependencies import Blocking, DeviceEvent, blocking_calls, device_events
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.stream_waits import stream_waits
from overlaplab.intervals import Intervals, subtract, union


class ExposedWaits(Struct, frozen=True):
    """Sets of exposed moments, in absolute ns; whether the other ones block is unknown."""

    blocking: Intervals
    not_blocking: Intervals


_WaitRange: TypeAlias = tuple[int, int, bool]
"""From when to when something waits, and whether for communication; else it is unknown for what."""


@once_per_trace
def exposed_waits(trace: Trace) -> ExposedWaits | None:
    """What is known of the trace's exposed moments; None where no wait of a stream is resolved."""
    if not stream_waits(trace).of_events:
        return None
    exposed = activity(trace).exposed_communication
    events, works, main = device_events(trace), classify(trace), main_stream(trace)
    computing = [event for event in events if event.stream == main and works[event.row] is WorkKind.COMPUTE]
    starts, calls = [event.start_ns for event in computing], blocking_calls(trace)
    spans: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # by `_WaitRange.communicates`
    first_call = 0
    for start_ns, end_ns in exposed.tolist():
        while first_call < len(calls) and calls[first_call].end_ns <= start_ns:
            first_call += 1
        following = bisect_left(starts, end_ns)
        resumes = computing[following] if following < len(computing) else None
        following_calls = (calls[place] for place in range(first_call, len(calls)))
        for from_ns, to_ns, communicates in _spans(events, resumes, following_calls, start_ns, end_ns):
            spans[communicates].append((max(from_ns, start_ns), min(to_ns, end_ns)))
    blocking, unresolved = (union(*np.array(each, dtype=np.int64).reshape(-1, 2).T) for each in spans.values())
    return ExposedWaits(blocking, subtract(subtract(exposed, unresolved), blocking))


def _spans(
    events: Sequence[DeviceEvent], resumes: DeviceEvent | None, calls: Iterable[Blocking], start_ns: int, end_ns: int
) -> Iterator[_WaitRange]:
    """When the kernel that resumes the computation, or the host before it launches that, waits for communication."""
    if resumes is None or resumes.called_ns == UNKNOWN_NS:
        yield start_ns, end_ns, False
        return
    for from_ns, to_ns, communicates in _awaited_ranges(events, resumes, start_ns):
        yield max(from_ns, resumes.called_ns), to_ns, communicates
    for call in calls:
        if call.start_ns >= min(end_ns, resumes.called_ns):
            return
        for from_ns, to_ns, communicates in _awaited_ranges(events, events[call.until], start_ns):
            yield max(from_ns, call.start_ns), min(to_ns, call.end_ns), communicates


def _awaited_ranges(events: Sequence[DeviceEvent], last: DeviceEvent, after_ns: int) -> Iterator[_WaitRange]:
    """Yield the ranges of what an event waits for, itself included: collectives', and until when it is unknown."""
    waiting, seen = [last], {last.row}
    while waiting:
        event = waiting.pop()
        if event.communicates:
            yield event.start_ns, event.end_ns, True
        if event.waits is None:
            yield after_ns, event.start_ns, False
        for place in (*(() if event.before is None else (event.before,)), *(event.waits or ())):
            if events[place].end_ns > after_ns and events[place].row not in seen:
                seen.add(events[place].row)
                waiting.append(events[place])
