"""What streams and the host waited for, as events of the category `cuda_sync` have it.

Kineto writes them with `enable_cuda_sync_events`. `Stream Wait Event`: work that is given to a stream after this call
begins once a CUDA event is over, that is, all that another stream had been given when the event was recorded there.
`Event Sync`, `Stream Sync` and `Context Sync`: in this call the host waits for an event, a stream, or the device. Which
device events these are follows from the order of the host's calls, as in HTA's critical path analysis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from overlaplab.events import Trace, calls_of, launchers, once_per_trace

_LAUNCH, _RECORD = "launch", "record"
_STREAM_WAITS, _EVENT_SYNC = "Stream Wait Event", "Event Sync"
_STREAM_SYNC, _CONTEXT_SYNC = "Stream Sync", "Context Sync"


class _MoveOfHost(NamedTuple):
    """What a call of the host did to a stream; in order of these fields."""

    at_ns: int
    call: int  # its row
    what: str
    stream: int
    number: int  # the row launched, or the correlation of the record


class StreamWaits(Struct, frozen=True):
    """Whom streams and calls waited for, as rows of the trace's events."""

    of_events: Mapping[int, tuple[int, ...]]
    """For a device event those for which its stream was told to wait since the one before; absent where unknown."""
    of_calls: Mapping[int, tuple[int, ...]]
    """For a call of the host those until which it was blocked at most; absent where unknown."""


@once_per_trace
def missing_wait_fields(trace: Trace) -> bool:
    """Whether streams were told to wait, and for none of these waits it was recorded what for."""
    names = trace.events["name"].iloc[trace.syncs["event"].to_numpy()]
    recorded = trace.syncs["recorded_by"][(names == _STREAM_WAITS).to_numpy()]
    return len(recorded) > 0 and bool((recorded < 0).all())


@once_per_trace
def stream_waits(trace: Trace) -> StreamWaits:
    """What is known of the waits of a trace; nothing where no wait for an event is resolved."""
    of_events: dict[int, tuple[int, ...]] = {}
    of_calls: dict[int, tuple[int, ...]] = {}
    last: dict[int, int] = {}  # by stream the event launched last
    pending: dict[int, tuple[int, ...]] = {}  # by stream what it waits for before the next
    blind: set[int] = set()  # streams that wait for something unknown
    records: dict[int, tuple[int, ...]] = {}  # by correlation what must be over when the CUDA event is
    streams, launch_order = trace.events["stream"].to_numpy(), dict[int, int]()

    def drop_earlier(*rows: int) -> tuple[int, ...]:
        """Those launched last on their streams: the others are over before."""
        of_stream = {streams[row]: row for row in sorted(rows, key=launch_order.__getitem__)}
        return tuple(row for row in dict.fromkeys(rows) if of_stream[streams[row]] == row)

    for place, (_, call, what, stream, number) in enumerate(sorted(_moves(trace))):
        before = (*((last[stream],) if stream in last else ()), *pending.get(stream, ()))
        if what == _LAUNCH:
            if stream not in blind:
                of_events[number] = pending.get(stream, ())
            blind.discard(stream)
            pending.pop(stream, None)
            last[stream], launch_order[number] = number, place
        elif what == _RECORD:
            if stream not in blind:
                records[number] = drop_earlier(*before)
        elif what == _STREAM_WAITS:
            if number in records:
                pending[stream] = drop_earlier(*pending.get(stream, ()), *records[number])
            else:
                blind.add(stream)
        elif what == _STREAM_SYNC:
            of_calls[call] = before
        elif what == _CONTEXT_SYNC:
            of_calls[call] = tuple(last.values())
        elif number in records:
            of_calls[call] = records[number]
    for row in _within_graphs(trace) if of_events else ():
        of_events.pop(row, None)
    return StreamWaits(of_events, of_calls)


def _moves(trace: Trace) -> Iterator[_MoveOfHost]:
    """What the host did to streams, in no order; nothing where no wait for an event is resolved."""
    events, syncs = trace.events, trace.syncs
    resolved = syncs[(syncs["recorded_by"] >= 0) & (syncs["wait_on_stream"] >= 0)]
    if resolved.empty:
        return
    calls = launchers(trace)
    starts, streams = events["ts_ns"].to_numpy(), events["stream"].to_numpy()
    for row in np.flatnonzero((calls >= 0) & (streams >= 0)).tolist():
        yield _MoveOfHost(int(starts[calls[row]]), int(calls[row]), _LAUNCH, int(streams[row]), row)
    record_streams = dict(resolved[["recorded_by", "wait_on_stream"]].to_numpy().tolist())
    correlations = events["correlation"].to_numpy()
    for row in np.flatnonzero(np.isin(correlations, list(record_streams)) & (streams < 0)).tolist():
        number = int(correlations[row])
        yield _MoveOfHost(int(starts[row]), row, _RECORD, record_streams[number], number)
    rows = syncs["event"].to_numpy()
    waiting = zip(rows.tolist(), calls_of(events, rows).tolist(), syncs["recorded_by"].tolist(), strict=True)
    for (row, call, number), name in zip(waiting, events["name"].iloc[rows], strict=True):
        if name in (_STREAM_WAITS, _EVENT_SYNC, _STREAM_SYNC, _CONTEXT_SYNC):
            at = call if call >= 0 else row
            yield _MoveOfHost(int(starts[at]), at, name, int(streams[row]), number)


def _within_graphs(trace: Trace) -> list[int]:
    """The device events that share their launch: what those of a CUDA graph wait for is part of the graph."""
    calls = launchers(trace)
    rows = np.flatnonzero(calls >= 0)
    return rows[np.bincount(calls[rows], minlength=1)[calls[rows]] > 1].tolist() if len(rows) else []
