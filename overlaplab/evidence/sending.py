"""What a host does for nothing but sending gradients or gathering parameters: copies, launches, and copies back.

torch's DDP does none of it in a backward pass under `no_sync` (torch/csrc/distributed/c10d/reducer.cpp,
`autograd_hook`), nor does FSDP2 without gradient sync (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py,
`post_backward`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from overlaplab.events import Trace, event_times, host_ranges, once_per_trace
from overlaplab.evidence.ddp import DDPBackward, DDPBucket, ddp_backwards
from overlaplab.evidence.dependencies import device_events
from overlaplab.evidence.executions import executions
from overlaplab.evidence.fsdp2 import fsdp2_gathers, fsdp2_ranges
from overlaplab.evidence.gathers import Gather
from overlaplab.evidence.recorded import recorded_collectives, recorded_of_events

COPIED_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
"""The range in which DDP copies a gradient back, where it is no view of its bucket."""
_REDUCED = "FSDP::post_backward_reduce"
"""How the ranges begin in which FSDP2 launches the reduction of a unit's gradients."""
_COPIED_IN = "torch::distributed::reducer::"
"""How the ranges begin in which DDP copies a gradient into its bucket."""

Range = tuple[int, int]
"""Start and end, in absolute ns."""
_CalledPlace = tuple[int, int]
"""When the host launched a collective's last event, in absolute ns, and the event's place in `device_events`."""


class Sending(Struct, frozen=True, kw_only=True):
    """A range of a host's time, in absolute ns, that one bucket or unit took."""

    start_ns: int
    end_ns: int
    place: int
    """The index of its collective's last event in `device_events`."""


@once_per_trace
def sendings(trace: Trace) -> list[Sending]:
    """What each unit of FSDP2, gathered or reduced, took the host, and each bucket of DDP with known gradients."""
    gathered = [sending for _, sendings in gatherings(trace) for sending in sendings]
    return [*_unit_sendings(trace), *_bucket_sendings(trace), *gathered]


@once_per_trace
def gatherings(trace: Trace) -> list[tuple[Gather, list[Sending]]]:
    """FSDP2's gathers, each with the ranges in which its unit is gathered and copied out."""
    called = _called_places(trace)
    gathered: list[tuple[Gather, list[Sending]]] = []
    for gather in fsdp2_gathers(fsdp2_ranges(trace), executions(trace)):
        if (place := _first_called(called, gather.launch.start_ns, gather.launch.end_ns)) is not None:
            ranges = ((each.start_ns, each.end_ns) for each in (gather.launch, *gather.blocked))
            gathered.append((gather, [Sending(start_ns=start, end_ns=end, place=place) for start, end in ranges]))
    return gathered


def _unit_sendings(trace: Trace) -> Iterator[Sending]:
    called = _called_places(trace)
    for start_ns, end_ns in _ranges(trace, _REDUCED):
        if (place := _first_called(called, start_ns, end_ns)) is not None:
            yield Sending(start_ns=start_ns, end_ns=end_ns, place=place)


def _called_places(trace: Trace) -> list[_CalledPlace]:
    """Every collective's, in order."""
    events = device_events(trace)
    return sorted((events[place].called_ns, place) for place in collective_places(trace).values())


def _first_called(called: list[_CalledPlace], start_ns: int, end_ns: int) -> int | None:
    """The place of the first collective that was launched in [start_ns, end_ns)."""
    first = bisect_left(called, (start_ns, 0))
    return called[first][1] if first < len(called) and called[first][0] < end_ns else None


def _bucket_sendings(trace: Trace) -> list[Sending]:
    places, copied_in, copied_back = collective_places(trace), _ranges(trace, _COPIED_IN), _ranges(trace, COPIED_BACK)
    backwards = ddp_backwards(trace, executions(trace), engine=True)
    sendings: list[Sending] = []
    for number, backward in enumerate(backwards):
        until_ns = backwards[number + 1].start_ns if number + 1 < len(backwards) else None
        back = iter(_copied_back(backward, until_ns, copied_back))
        for bucket in backward.buckets:
            ranges = [*_copies_in(bucket, copied_in), *islice(back, len(bucket.gradients))]
            if (place := places.get(bucket.launch.ran or (0, 0))) is not None:
                sendings += (Sending(start_ns=start, end_ns=end, place=place) for start, end in ranges if end > start)
    return sendings


@once_per_trace
def collective_places(trace: Trace) -> dict[Range, int]:
    """By start and end the place of each collective's last event, in `device_events`."""
    row_of, rows = recorded_of_events(trace), recorded_collectives(trace)[["start_ns", "end_ns"]].to_numpy().tolist()
    events = enumerate(device_events(trace))
    return {tuple(rows[row]): place for place, event in events if (row := int(row_of[event.row])) >= 0}


def _ranges(trace: Trace, name: str) -> list[Range]:
    """The host's ranges whose names begin so, in order."""
    starts, ends = event_times(trace.events, host_ranges(trace.events, lambda each: each.startswith(name)))
    return sorted(zip(starts.tolist(), ends.tolist(), strict=True))


def _copies_in(bucket: DDPBucket, copied: list[Range]) -> Iterator[Range]:
    """Yield the ranges from where DDP copies a gradient, or else launches the bucket, until its hooks are over."""
    for gradient in bucket.gradients:
        place = bisect_left(copied, (gradient.at_ns, 0))
        if place < len(copied) and copied[place][0] < gradient.hooks_end_ns:
            yield copied[place][0], gradient.hooks_end_ns
        elif gradient.at_ns <= bucket.launch.start_ns < gradient.hooks_end_ns:
            yield bucket.launch.start_ns, gradient.hooks_end_ns


def _copied_back(backward: DDPBackward, until_ns: int | None, copied: list[Range]) -> list[Range]:
    """Return the copies after a backward pass, of all its gradients in order of buckets; none if they are unclear."""
    first = bisect_right(copied, (backward.end_ns, -1))
    last = len(copied) if until_ns is None else bisect_left(copied, (until_ns, -1))
    gradients = sum(len(bucket.gradients) for bucket in backward.buckets)
    return copied[first:last] if last - first == gradients else []
