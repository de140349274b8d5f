"""The player: programs of all ranks, over one link that carries collectives in order.

A program is the order of one rank's moves over its steps: it works, launches collectives, waits for them, and ends
steps. A collective starts once its last rank has launched it and the link has finished the one before, and ends T
later: start = max(last launch, previous end). Work goes on meanwhile, until a wait. Messages from one rank
to another have a lane, which carries them in order; that other lanes take the link at the same time is left out.
Where groups of the ranks are named, as of a mesh and of a server, each carries what it launches in order, too, but they
share their ranks' links: in the order in which it could go, each takes the first time that is free on all of them.

A rank may be several programs, such as its host and its device's streams: what one of them notes, others may wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

__all__ = ["End", "Launch", "Mark", "Move", "Note", "Played", "Program", "StuckError", "Wait", "Work", "play"]


@dataclass(frozen=True, slots=True)
class Work:
    """What the rank does without communication, idle time included."""

    ns: int
    paused_ns: int = 0
    """The part in which the host paused: it computed nothing, for long at a stretch."""
    idle_ns: int = 0
    """The part in which the rank computed nothing, pauses included."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A collective, by a key that all its ranks share; it takes no time here."""

    key: Hashable
    transfer_ns: int
    """T: how long it occupies the link."""
    kind: str = ""
    bytes: int = 0
    """Those sent."""
    role: str = ""
    """A `Role`'s value: what it moves."""
    what: str | None = None
    """The bucket or unit that it moves."""
    host_ns: int = 0
    """How long launching it took the host; this is part of the work around it. 0 where the device made up for it."""
    parameters: tuple[str, ...] = ()
    """Of a bucket: whose gradients it sends."""
    gradient_bytes: int = 0
    """Of a bucket: the gradients alone, without what is sent beside them."""
    hops: str | None = None
    """By which messages it is made by hand, those of a `ring` or a `tree`; None: the library's."""
    group: tuple[int, ...] | None = None
    """The ranks that take part, where not all do; groups share the link, unless this is None."""
    lane: tuple[int, int] | None = None
    """Of a message: sender and receiver; None for collectives, which all queue up."""


@dataclass(frozen=True, slots=True)
class Note:
    """That the program has come so far, for others to wait for; as an event that is recorded in a CUDA stream."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Wait:
    """The rank goes on once the collective has ended, or another program has come to the note, and if that was not so
    yet, its thread has woken up.
    """

    key: Hashable
    wake_ns: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that a change of the program goes by: a gradient that arrives, or a border of a pass, of a unit's use
    (`use`, `last_use`) or of an update.
    """

    word: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """A step ends; the first one of a program is the start of its first step."""


Move: TypeAlias = Work | Launch | Note | Wait | Mark | End
Program: TypeAlias = Sequence[Move]


_Queue: TypeAlias = tuple[int, tuple[int, int] | None, tuple[int, ...] | None]
"""Of a rank, by the lane and the group of what it launches."""


class StuckError(ValueError):
    """Ranks wait for what cannot come: other ranks do not launch it, or not in the same order."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of programs; times in ns from the start of the first move."""

    ends_ns: tuple[tuple[int, ...], ...]
    """Of each rank, when its steps ended."""
    carried: dict[Hashable, tuple[int, int]]
    """Start and end of each collective."""
    over_ns: tuple[tuple[int, ...], ...]
    """Of each rank, when each of its moves was over."""

    def spans_ns(self, rank: int) -> list[int]:
        """How long each step of a rank took."""
        ends = self.ends_ns[rank]
        return [end - before for before, end in pairwise(ends)]


def play(programs: Sequence[Program]) -> Played:
    """Play the programs of all ranks to their ends. Raises `StuckError`."""
    members: dict[Hashable, list[int]] = {}
    for rank, program in enumerate(programs):
        for move in program:
            if isinstance(move, Launch):
                members.setdefault(move.key, []).append(rank)
    ranks = range(len(programs))
    place, now = ([0] * len(programs) for _ in range(2))
    free: dict[tuple[int, tuple[int, int] | None], int] = {}
    queues: dict[_Queue, deque[tuple[Launch, int]]] = {}
    booked: list[list[tuple[int, int]]] = [[] for _ in ranks]
    freed: dict[tuple[Hashable, Hashable], int] = {}
    carried: dict[Hashable, tuple[int, int]] = {}
    over_at: dict[Hashable, int] = {}
    busy = True
    ends: list[list[int]] = [[] for _ in ranks]
    over: list[list[int]] = [[] for _ in ranks]

    def advance(rank: int) -> None:
        nonlocal busy
        program = programs[rank]
        while place[rank] < len(program):
            match program[place[rank]]:
                case Work(ns):
                    now[rank] += ns
                case Launch() as launch:
                    queues.setdefault((rank, launch.lane, launch.group), deque()).append((launch, now[rank]))
                case Note(key):
                    over_at[key] = now[rank]
                    busy = True
                case Wait(key, wake_ns):
                    if key not in over_at:
                        return
                    if over_at[key] > now[rank]:
                        now[rank] = over_at[key] + wake_ns
                case End():
                    ends[rank].append(now[rank])
            over[rank].append(now[rank])
            place[rank] += 1

    def arrived(queue: deque[tuple[Launch, int]]) -> int | None:
        """When what is first in a rank's queue could go, but for the link; None unless all its members' begin with it.

        Of those of a group: once the one before it is over.
        """
        if not queue:
            return None
        launch = queue[0][0]
        own = [queues.get((member, launch.lane, launch.group)) for member in members[launch.key]]
        heads = [each[0] for each in own if each]
        if len(heads) < len(own) or any(head.key != launch.key for head, _ in heads):
            return None
        return max(freed.get((launch.lane, launch.group), 0), *(at for _, at in heads))

    def carry(launch: Launch, at: int) -> None:
        own = members[launch.key]
        if launch.group is None:
            start = max(at, *(free.get((member, launch.lane), 0) for member in own))
        else:
            start = _first_free([booking for member in own for booking in booked[member]], at, launch.transfer_ns)
        carried[launch.key] = start, start + launch.transfer_ns
        over_at[launch.key] = start + launch.transfer_ns
        for member in own:
            queues[member, launch.lane, launch.group].popleft()
            if launch.group is None:
                free[member, launch.lane] = start + launch.transfer_ns
            else:
                freed[launch.lane, launch.group] = carried[launch.key][1]
                booked[member] = [*(booking for booking in booked[member] if booking[1] > at), carried[launch.key]]

    while busy:
        busy = False
        for rank in ranks:
            advance(rank)
        grouped: list[tuple[int, Launch]] = []
        for queue in list(queues.values()):
            while (at := arrived(queue)) is not None:
                if queue[0][0].group is not None:
                    grouped.append((at, queue[0][0]))
                    break
                carry(queue[0][0], at)
                busy = True
        if grouped and not busy:  # who waits for one of them launches nothing before its end
            at, launch = min(grouped, key=lambda own: own[0])
            carry(launch, at)
            busy = True
    if any(place[rank] < len(programs[rank]) for rank in ranks):
        raise StuckError("the ranks' programs do not launch the same collectives in the same order")
    return Played(tuple(map(tuple, ends)), carried, tuple(map(tuple, over)))


def _first_free(booked: Sequence[tuple[int, int]], at: int, took: int) -> int:
    """The first time from `at` on that is free for so long."""
    for begin, end in sorted(booked):
        if begin < at + took and at < end:
            at = end
    return at
