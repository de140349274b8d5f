"""The player: programs of all ranks, over one link that carries collectives in order.

A program is the order of one rank's moves over its steps: it works, launches collectives, waits for them, and ends
steps. A collective starts once its last rank has launched it and the link has finished the one before, and ends T
later: start = max(last launch, previous end). Work goes on meanwhile, until a wait. A collective that does not queue
starts with its last launch.
A rank may be several programs, such as its host and its device's streams: what one of them notes, others may wait for.

[Note: shared links]
Messages from one rank to another have a lane, which carries them in order; so do the collectives of each group, where
groups are named, as of a mesh. A rank's link sends one message at a time and receives one at a time, at once with what
it sends (full duplex); a group's collective takes both directions of all its ranks' links. A message or collective is
ready once all its members have launched it and its lane or group is free; the first that is ready takes the first gap
that its links have in common. Collectives of all ranks, which name no group, and these never hold each other up.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class Work(Struct, frozen=True):
    """What the rank does without communication, idle time included."""

    ns: int
    paused_ns: int = 0
    """The part in which the host paused: it computed nothing, for long at a stretch."""
    idle_ns: int = 0
    """The part in which the rank computed nothing, pauses included."""


class Launch(Struct, frozen=True):
    """The launch of a collective, by a key that all its ranks share; it takes the rank no time."""

    key: Hashable
    transfer_ns: int
    """T: how long it occupies the link."""
    kind: str = ""
    bytes: int = 0
    """Those of the full tensor: the larger of its input and output."""
    role: str = ""  # a `Role`'s value
    what: str | None = None
    """The bucket or unit that it moves."""
    host_ns: int = 0
    """How long launching it took the host; this is part of the work around it. 0 where the device made up for it."""
    displaced_ns: int = 0
    """How much computation it displaces; this is part of the work after it."""
    parameters: tuple[str, ...] = ()
    """The parameters whose gradients a bucket sends."""
    gradient_bytes: int = 0
    """The bytes of a bucket's gradients alone, without what is sent beside them."""
    hops: str | None = None
    """By which messages it is made by hand, those of a `ring` or a `tree`; None: the library's."""
    group: tuple[int, ...] | None = None
    """The ranks that take part; None: all. Groups share their ranks' links, see [Note: shared links]."""
    lane: tuple[int, int] | None = None
    """The sender and receiver of a message; None for a collective."""
    carries: str = ""  # without a role: parameters, activations, gradients or buffers
    queues: bool = True
    """Whether it waits for those before it; gloo's threads carry several at once where no link is emulated."""


class Note(Struct, frozen=True):
    """That the program has come so far, for others to wait for; as an event that is recorded in a CUDA stream."""

    key: Hashable


class Wait(Struct, frozen=True):
    """The rank goes on once the collective has ended, or another program has come to the note."""

    key: Hashable
    wake_ns: int = 0  # until its thread has woken up, where that was not so yet


class Mark(Struct, frozen=True):
    """Something that an edit of the program goes by: a gradient that arrives, or a border, as of a pass, a unit's use
    (`use`, `last_use`), an update, a pipeline's action (`stage_…`) or what the host does between passes (`host`).
    """

    word: str
    name: str = ""


class End(Struct, frozen=True):
    """A step ends; the first one of a program is the start of its first step."""


Move: TypeAlias = Work | Launch | Note | Wait | Mark | End
Program: TypeAlias = Sequence[Move]


class StuckError(ValueError):
    """Ranks wait for what cannot come: other ranks do not launch it, or not in the same order."""


class Played(Struct, frozen=True):
    """What came of programs; times in ns from the start of the first move."""

    ends_ns: tuple[tuple[int, ...], ...]
    """When each rank's steps ended."""
    carried: dict[Hashable, tuple[int, int]]
    """Start and end of each collective."""
    over_ns: tuple[tuple[int, ...], ...]
    """When each move of each rank was over."""

    def spans_ns(self, rank: int) -> list[int]:
        """How long each step of a rank took."""
        ends = self.ends_ns[rank]
        return [end - before for before, end in pairwise(ends)]

    def all_spans_ns(self) -> NDArray[np.int64]:
        """How long the steps of all ranks took, of shape (ranks, steps)."""
        ends = np.array(self.ends_ns, dtype=np.int64)
        return ends[:, 1:] - ends[:, :-1]


def find_launches(moves: Iterable[Move], *roles: str) -> list[Launch]:
    """The launches among moves, or those of these roles alone."""
    return [move for move in moves if isinstance(move, Launch) and (not roles or move.role in roles)]


def split_steps(program: Program) -> Iterator[Program]:
    """The moves of each step, without its end."""
    ends = [place for place, move in enumerate(program) if isinstance(move, End)]
    for begin, end in pairwise(ends):
        yield program[begin + 1 : end]


def change_duration(work: Work, ns: int) -> Work:
    """The work in so many ns: it pauses and idles no longer than that."""
    return Work(ns, min(work.paused_ns, ns), min(work.idle_ns, ns))


def change_launches(moves: Iterable[Move], change: Callable[[Launch], Move]) -> tuple[Move, ...]:
    """The moves, of which each launch is changed."""
    return tuple(change(move) if isinstance(move, Launch) else move for move in moves)


def play(programs: Sequence[Program]) -> Played:
    """Play the programs of all ranks to their ends. Raises `StuckError`."""
    members: dict[Hashable, list[int]] = {}
    for rank, program in enumerate(programs):
        for launch in find_launches(program):
            members.setdefault(launch.key, []).append(rank)
    ranks, now = range(len(programs)), [0] * len(programs)
    in_turn, sharing = _InTurn(members, len(programs)), _Sharing(members)
    unqueued: dict[Hashable, list[int]] = defaultdict(list)  # when ranks launched what does not queue
    carried: dict[Hashable, tuple[int, int]] = {}
    reached_ns: dict[Hashable, int] = {}
    progressed = True
    ends: list[list[int]] = [[] for _ in ranks]
    over: list[list[int]] = [[] for _ in ranks]

    def finish(key: Hashable, start: int, end: int) -> None:
        nonlocal progressed
        carried[key], reached_ns[key], progressed = (start, end), end, True

    def enqueue(rank: int, move: Launch, at_ns: int) -> None:
        if not move.queues:
            unqueued[move.key].append(at_ns)
            if len(unqueued[move.key]) == len(members[move.key]):
                finish(move.key, max(unqueued[move.key]), max(unqueued[move.key]) + move.transfer_ns)
        elif move.lane is None and move.group is None:
            in_turn.queues[rank].append((move, at_ns))
        else:
            sharing.launch(rank, move, at_ns)

    def advance(rank: int) -> None:
        nonlocal progressed
        program, rank_over, at_ns = programs[rank], over[rank], now[rank]
        for place in range(len(rank_over), len(program)):
            move = program[place]
            if isinstance(move, Work):
                at_ns += move.ns
            elif isinstance(move, Wait):
                if (end_ns := reached_ns.get(move.key)) is None:
                    break
                if end_ns > at_ns:
                    at_ns = end_ns + move.wake_ns
            elif isinstance(move, Note):
                reached_ns[move.key] = at_ns
                progressed = True
            elif isinstance(move, Launch):
                enqueue(rank, move, at_ns)
            elif isinstance(move, End):
                ends[rank].append(at_ns)
            rank_over.append(at_ns)
        now[rank] = at_ns

    while progressed:
        progressed = False
        for rank in ranks:
            advance(rank)
        for rank in ranks:
            while (first := in_turn.carry(rank)) is not None:
                finish(*first)
        if not progressed and (shared := sharing.carry()) is not None:  # all that can be launched without it was
            finish(*shared)
    if any(len(over[rank]) < len(programs[rank]) for rank in ranks):
        raise StuckError("the ranks' programs do not launch the same collectives in the same order")
    return Played(tuple(map(tuple, ends)), carried, tuple(map(tuple, over)))


class _InTurn:
    """Collectives of all ranks, which the link carries one after the other."""

    def __init__(self, members: Mapping[Hashable, Sequence[int]], programs: int) -> None:
        self._members = members
        self._free = [0] * programs
        self.queues: list[deque[tuple[Launch, int]]] = [deque() for _ in range(programs)]

    def carry(self, program: int) -> tuple[Hashable, int, int] | None:
        """Key, start and end of what is first in this queue; None where it is not yet first in those of all members."""
        if not self.queues[program]:
            return None
        launch = self.queues[program][0][0]
        launching = self._members[launch.key]
        heads = [self.queues[member][0] for member in launching if self.queues[member]]
        if len(heads) < len(launching) or any(head.key != launch.key for head, _ in heads):
            return None
        start = max(*(at for _, at in heads), *(self._free[member] for member in launching))
        for member in launching:
            self._free[member] = start + launch.transfer_ns
            self.queues[member].popleft()
        return launch.key, start, start + launch.transfer_ns


_Lane: TypeAlias = tuple[str, tuple[int, ...]]  # `lane` with sender and receiver, or `group` with its ranks


class _Sharing:
    """Messages and groups' collectives that are launched and not carried yet; see [Note: shared links]."""

    def __init__(self, members: Mapping[Hashable, Sequence[int]]) -> None:
        self._members = members
        self._queues: dict[_Lane, dict[int, deque[tuple[Launch, int]]]] = defaultdict(lambda: defaultdict(deque))
        self._free: dict[_Lane, int] = {}
        self._ready: list[tuple[int, _Lane]] = []  # a heap of lanes, by when their first one could go
        self._busy: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)  # by link end, see `_link_ends`

    def launch(self, program: int, launch: Launch, at_ns: int) -> None:
        lane: _Lane = ("group", launch.group or ()) if launch.lane is None else ("lane", launch.lane)
        queue = self._queues[lane][program]
        queue.append((launch, at_ns))
        if len(queue) == 1:
            self._offer(lane, launch.key)

    def carry(self) -> tuple[Hashable, int, int] | None:
        """The key, start and end of the one that is ready first; None if none is."""
        if not self._ready:
            return None
        ready, lane = heappop(self._ready)
        queues = self._queues[lane]
        launch = next(queue[0][0] for queue in queues.values() if queue)
        link_ends = _link_ends(launch)
        for link_end in link_ends:
            self._busy[link_end] = [span for span in self._busy[link_end] if span[1] > ready]
        busy = sorted(span for link_end in link_ends for span in self._busy[link_end])
        start = _first_free_slot(ready, launch.transfer_ns, busy)
        end = self._free[lane] = start + launch.transfer_ns
        for link_end in link_ends:
            self._busy[link_end].append((start, end))
        for member in self._members[launch.key]:
            queues[member].popleft()
        if heads := [queue[0][0].key for queue in queues.values() if queue]:
            self._offer(lane, heads[0])
        return launch.key, start, end

    def _offer(self, lane: _Lane, key: Hashable) -> None:
        """Make the lane ready if all members have launched this collective, and each has it first in its queue."""
        queues = self._queues[lane]
        heads = [queues[member][0] for member in self._members[key] if queues[member]]
        if len(heads) == len(self._members[key]) and all(head.key == key for head, _ in heads):
            heappush(self._ready, (max(*(at for _, at in heads), self._free.get(lane, 0)), lane))


def _link_ends(launch: Launch) -> list[tuple[str, int]]:
    """The (direction, rank) link ends that a launch occupies."""
    if launch.lane is not None:
        return [("out", launch.lane[0]), ("in", launch.lane[1])]
    return [(direction, rank) for rank in launch.group or () for direction in ("out", "in")]


def _first_free_slot(start_ns: int, ns: int, busy: Sequence[tuple[int, int]]) -> int:
    """The start of the first gap of `ns` from `start_ns` on between the busy times, which are in order of start."""
    for begin, end in busy:
        if begin < start_ns + ns and start_ns < end:
            start_ns = end
    return start_ns
