"""What a rank on GPUs does in another way than was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from overlaplab.evidence.dependencies import DeviceEvent
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.simulate.player import Launch

Held: TypeAlias = Literal["launch", "event", "stream"]
"""What an event waited for last: the call that launched it, another stream's event, the one before it on its own."""


class EventKey(NamedTuple):
    """The key of a note: what has come of an event, `launched`, `begun` or `done`, by its place on its rank."""

    rank: int
    word: str
    place: int


class AddedLaunch(Struct, frozen=True, kw_only=True):
    """A collective that a rank's host launches though none was recorded; times in absolute host ns."""

    launch: Launch
    stream: int
    at_ns: int
    """When launching it begins, in the recorded host's time."""
    call_ns: int
    """How long after that the call is that gives it to the device."""
    took_ns: int
    """How long launching it takes the host."""


class Moved(Struct, frozen=True, kw_only=True):
    """A range of the host's recorded time that it comes to at another time, with all that it launches there."""

    start_ns: int
    end_ns: int
    at_ns: int


class RankEdit(Struct, frozen=True, kw_only=True):
    """What a rank does in another way than was recorded, by places of `device_events`; those of `sent` follow."""

    sent: Sequence[AddedLaunch] = ()
    gone: Mapping[int, int] = {}
    """Collectives that are not launched; whoever waited for one waits for that at the place given."""
    spared: Sequence[tuple[int, int]] = ()
    """What the host is spared, as ranges of its recorded time."""
    moved: Sequence[Moved] = ()
    waits: Mapping[int, Sequence[int]] = {}
    """What an event waits for, besides what is known by the times."""
    late_ns: Mapping[Held, int] = {}
    """How long after what it waited for last a collective of `sent` begins."""
    freed: frozenset[int] = frozenset()
    """Events that no longer wait for another stream's, but for what `waits` tells."""
    wake_ns: int = 0
    """How long after the end of what `waits` has for it a recorded event begins."""


def last_dependency(events: Sequence[DeviceEvent], event: DeviceEvent) -> tuple[Held, int]:
    """What an event waited for last, and how long after that it began, in ns."""
    ends_ns: dict[Held, int] = {"stream": UNKNOWN_NS if event.before is None else events[event.before].end_ns}
    ends_ns["launch"] = event.called_ns
    if event.after is not None:
        ends_ns["event"] = events[event.after].end_ns
    last = max(ends_ns, key=lambda name: ends_ns[name])
    return last, max(event.start_ns - ends_ns[last], 0)
