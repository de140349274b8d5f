"""What kept a GPU's work, and the host that launches it: what each device event and each blocking call waited for.

There are four dependencies (Lumos, MLSys 2025): a device event follows the call that launched it, the event before it
on its stream, and what its stream was told to wait for; a call of the host may wait for the device. The first two are
in every trace. Where a trace has `stream_waits`, they say what a stream or a call waited for. Most traces have none:
there it is inferred from times, so a wait for what was over long before is not seen.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.events import (
    Run,
    Trace,
    WorkKind,
    classify,
    event_times,
    launchers,
    matching,
    once_per_trace,
    thread_numbers,
)
from overlaplab.evidence.call_metadata import enclosing_rows
from overlaplab.evidence.launches import event_spans
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.stream_waits import stream_waits
from overlaplab.intervals import Integers
from overlaplab.vocabulary import is_runtime_category

_EMULATED = ("emulated_link_begin", "emulated_link_wait")
"""The kernels at the beginning and the end of a collective (engine/overlaplab_engine/network/device_clock.py)."""
_BLOCKS = re.compile(r"synchroni[sz]e|memcpy", re.I)
"""Calls that may wait for the device; a copy from or to pageable memory does."""
_MAX_WAKE_NS = 20_000
"""Longest delay from the end of what its stream waited for to an event's start."""
_MAX_RETURN_NS = 100_000
"""Longest delay from the end of what a call waited for to the call's return."""
_GRAIN_NS = 2_000
"""Clocks of host and device agree to within this; a shorter wait is none."""
_FULL_QUEUE = 1_000
"""Launches that a stream has not begun, from which on the next one may have to wait. CUDA holds some 1,024 of each
stream; an H100 with CUDA 13.0 held 1,022 to 1,026.
"""
_MAX_CANDIDATES = 8
"""At most so many of the events that ended last are looked at."""


class DeviceEvent(Struct, frozen=True, kw_only=True):
    """A kernel or copy, in absolute ns."""

    row: int
    """Its row in the trace's events."""
    stream: int
    called_ns: int
    """When the host's call that launched it began; `UNKNOWN_NS` where that is not recorded."""
    start_ns: int
    end_ns: int
    communicates: bool
    before: int | None
    """The place of the event before it on its stream."""
    after: int | None
    """The place of the event on another stream for which its stream waited, of several the last to end.

    None where there is none, or, if the trace does not have the waits, where none made a difference.
    """
    waits: tuple[int, ...] | None
    """The places of all events for which its stream was told to wait; None where the trace does not have that."""


class Blocking(Struct, frozen=True, kw_only=True):
    """A call in which the host waited for a device event, in absolute ns."""

    row: int
    """Its row in the trace's events."""
    start_ns: int
    end_ns: int
    until: int
    """The event's place."""


@once_per_trace
def device_events(trace: Trace) -> tuple[DeviceEvent, ...]:
    """The device's work in order of start; places count from 0.

    A collective behind the engine's emulated link is one event, with the copies that it makes meanwhile.
    """
    events, calls, works = trace.events, launchers(trace), classify(trace)
    rows, starts, ends, _ = _device_rows(trace)
    recorded, places = stream_waits(trace).of_events, _places(trace)
    called = np.where(calls[rows] >= 0, starts[calls[rows]], UNKNOWN_NS).tolist()
    streams = events["stream"].to_numpy()[rows].tolist()
    by_end = np.argsort(ends[rows], kind="stable").tolist()
    sorted_ends = np.sort(ends[rows]).tolist()
    last_of_stream: dict[int, int] = {}
    device: list[DeviceEvent] = []
    for place, row in enumerate(rows.tolist()):
        start, before = int(starts[row]), last_of_stream.get(streams[place])
        free_ns = max(called[place], UNKNOWN_NS if before is None else device[before].end_ns)
        stop = bisect_right(sorted_ends, start + _GRAIN_NS)
        guessed = next(
            (
                other
                for other in reversed(by_end[max(stop - _MAX_CANDIDATES, 0) : stop])
                if streams[other] != streams[place]
                and free_ns + _GRAIN_NS < ends[rows[other]]
                and start - _MAX_WAKE_NS <= ends[rows[other]]
                and called[other] <= called[place]
            ),
            None,
        )
        waits = _ended_places(places, recorded[row], ends, start) if row in recorded else None
        others = [other for other in waits or () if streams[other] != streams[place]]
        after = max(others, key=lambda other: ends[rows[other]], default=None)
        last_of_stream[streams[place]] = place
        device.append(
            DeviceEvent(
                row=row,
                stream=streams[place],
                called_ns=called[place],
                start_ns=start,
                end_ns=int(ends[row]),
                communicates=works[row] is WorkKind.COMMUNICATION,
                before=before,
                after=guessed if waits is None else after,
                waits=waits,
            )
        )
    return tuple(device)


def _device_rows(trace: Trace) -> tuple[NDArray[np.intp], Integers, Integers, dict[int, int]]:
    """The rows of `device_events`; the start and end of every event; and for each left-out part of an emulated
    collective the row of its whole.
    """
    events = trace.events
    rows = np.flatnonzero((events["stream"] >= 0).to_numpy() & (classify(trace) != WorkKind.NOTHING))
    starts, ends = event_times(events)
    rows = rows[np.lexsort((ends[rows], starts[rows]))]
    whole_of_part: dict[int, int] = {}
    for whole in _emulated_collectives(events, rows):
        ends[whole[0]] = ends[whole[-1]]
        whole_of_part |= dict.fromkeys(whole[1:], whole[0])
    return rows[~np.isin(rows, list(whole_of_part))], starts, ends, whole_of_part


@once_per_trace
def _places(trace: Trace) -> dict[int, int]:
    """The place of each row of a device event, and of what is part of one; empty where `stream_waits` is."""
    if not stream_waits(trace).of_events:
        return {}
    rows, _, _, whole_of_part = _device_rows(trace)
    places = {row: place for place, row in enumerate(rows.tolist())}
    return places | {part: places[whole] for part, whole in whole_of_part.items()}


def _ended_places(places: Mapping[int, int], rows: Iterable[int], ends: Integers, at_ns: int) -> tuple[int, ...]:
    """The places of these rows, each once, without rows of no device event and of events that end after `at_ns`."""
    return tuple(dict.fromkeys(places[row] for row in rows if row in places and ends[row] <= at_ns + _GRAIN_NS))


def _emulated_collectives(events: pd.DataFrame, rows: NDArray[np.intp]) -> Iterator[list[int]]:
    """The rows of each collective behind an emulated link, which are in order of start."""
    if not matching(events["name"], _EMULATED[0].__eq__).any():
        return
    columns = (events[name].to_numpy()[rows].tolist() for name in ("name", "stream"))
    begun: dict[int, list[int]] = {}
    for row, name, stream in zip(rows.tolist(), *columns, strict=True):
        if name == _EMULATED[0]:
            begun[stream] = [row]
        elif stream in begun:
            begun[stream].append(row)
            if name == _EMULATED[1]:
                yield begun.pop(stream)


@once_per_trace
def blocking_calls(trace: Trace) -> tuple[Blocking, ...]:
    """The calls in which the host waited for the device, in order of start."""
    events, device = trace.events, device_events(trace)
    waits = matching(events["name"], _BLOCKS.search) & matching(events["category"], is_runtime_category)
    by_end = sorted(range(len(device)), key=lambda place: device[place].end_ns)
    device_ends = [device[place].end_ns for place in by_end]
    recorded, places = stream_waits(trace).of_calls, _places(trace)
    starts, ends = event_times(events)
    blocking: list[Blocking | None] = []
    for row in np.flatnonzero(waits).tolist():
        start, end = int(starts[row]), int(ends[row])
        if row in recorded:
            ended = _ended_places(places, recorded[row], ends, end)
            until = max(ended, key=lambda place: device[place].end_ns, default=None)
            if until is not None and device[until].end_ns > start + _GRAIN_NS:
                blocking.append(Blocking(row=row, start_ns=start, end_ns=end, until=until))
        else:
            blocking.append(_find_blocking(row, start, end, device, by_end, device_ends))
    return tuple(call for call in blocking if call is not None)


@once_per_trace
def full_queues(trace: Trace) -> tuple[Blocking, ...]:
    """Where a launch found its stream's queue full: from when it had taken as long as others do, in order of start.

    `until` is the last event of the stream that had begun when the call returned: it made room.
    """
    device, calls = device_events(trace), launchers(trace)
    took, blocking = trace.events["dur_ns"].to_numpy(np.int64), {call.row for call in blocking_calls(trace)}
    full: list[Blocking] = []
    launched: dict[int, dict[int, int]] = defaultdict(dict)  # by stream and call; a graph's launches many events
    for place, event in enumerate(device):
        if event.called_ns != UNKNOWN_NS:
            launched[event.stream].setdefault(int(calls[event.row]), place)
    for place_of_call in launched.values():
        rows, places = (np.array(list(each), dtype=np.int64) for each in (place_of_call, place_of_call.values()))
        if len(rows) <= _FULL_QUEUE:
            continue
        called, begun = (np.array([getattr(device[n], name) for n in places]) for name in ("called_ns", "start_ns"))
        order = np.argsort(begun, kind="stable")
        in_order = begun[order]
        queued = np.searchsorted(np.sort(called), called) - np.searchsorted(in_order, called, side="right")
        usual_ns = int(np.median(took[rows[queued < _FULL_QUEUE]]))
        last = np.searchsorted(in_order, called + took[rows], side="right") - 1
        waits = (queued >= _FULL_QUEUE) & (last >= 0) & (in_order[last] > called + usual_ns)
        for number in np.flatnonzero(waits).tolist():
            start_ns, row = int(called[number]), int(rows[number])
            if row not in blocking:
                end_ns, until = start_ns + int(took[row]), int(places[order[last[number]]])
                full.append(Blocking(row=row, start_ns=start_ns + usual_ns, end_ns=end_ns, until=until))
    return tuple(sorted(full, key=lambda call: call.start_ns))


def longest_wait(run: Run) -> str | None:
    """The operator in which hosts waited for their devices for longest, or else the call; None if they did not."""
    took: dict[str, int] = defaultdict(int)
    for trace in run.traces:
        operators = event_spans(trace, (trace.events["category"] == "cpu_op").to_numpy())
        operators = operators.sort_values(["start_ns", "end_ns"], ascending=[True, False])
        latest = operators[["thread"]].assign(end_ns=operators.groupby("thread")["end_ns"].cummax())
        outermost = operators[~latest.duplicated()]
        ends, rows = (outermost[name].to_numpy() for name in ("end_ns", "event"))
        calls = blocking_calls(trace)
        threads = thread_numbers(trace.events, np.array([call.row for call in calls], dtype=np.int64))
        around = enclosing_rows(outermost, threads, np.array([call.start_ns for call in calls], dtype=np.int64))
        for call, place in zip(calls, around.tolist(), strict=True):
            row = rows[place] if place >= 0 and call.end_ns <= ends[place] else call.row
            took[str(trace.events["name"].iloc[row])] += call.end_ns - call.start_ns
    return max(took, key=lambda name: took[name], default=None)


def _find_blocking(
    row: int, start_ns: int, end_ns: int, device: Sequence[DeviceEvent], by_end: Sequence[int], ends: Sequence[int]
) -> Blocking | None:
    """Find the launched event that ended last during the call: the call waited for it."""
    for number in range(bisect_right(ends, end_ns + _GRAIN_NS) - 1, -1, -1):  # a slice of all would be copied
        place = by_end[number]
        event = device[place]
        if event.end_ns <= start_ns + _GRAIN_NS or event.end_ns < end_ns - _MAX_RETURN_NS:
            return None
        if event.called_ns <= start_ns:
            return Blocking(row=row, start_ns=start_ns, end_ns=end_ns, until=place)
    return None
