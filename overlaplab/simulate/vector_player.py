"""The player for many ranks: programs that launch the same collectives in the same order, with the ranks as an axis.

[Note: alike]: docs/design/plays.md, More ranks than recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.intervals import Intervals, union
from overlaplab.simulate.player import End, Launch, Mark, Move, Program, StuckError, Wait, Work

Times: TypeAlias = npt.NDArray[np.int64]


NO_WAIT = -1


class WideProgram(Struct, frozen=True, kw_only=True, eq=False):
    """The moves that all ranks make, and how long a rank works before each; arrays are (moves, columns), in ns."""

    moves: tuple[Launch | Wait | End, ...]
    """Keys are launch numbers, from 0."""
    work_ns: Times
    wake_ns: Times
    """How long the rank wakes up after a wait in which it was blocked; `NO_WAIT` where it does not wait."""
    steps: tuple[tuple[Hashable, slice], ...]
    """(shape, moves) of each step: steps of one shape have the same moves. Entry 0 precedes the first step."""
    columns: Times
    """(steps, ranks): the column of each rank in each step."""

    @property
    def ranks(self) -> int:
        return int(self.columns.shape[1])

    def times_of_rank(self, rank: int) -> tuple[Times, Times]:
        """How long a rank works before each move, and wakes up after each."""
        lengths = np.array([step.stop - step.start for _, step in self.steps], dtype=np.int64)
        places = np.arange(len(self.moves)), np.repeat(self.columns[:, rank], lengths)
        return self.work_ns[places], self.wake_ns[places]


class WidePlayed(Struct, frozen=True, kw_only=True, eq=False):
    """What came of a wide program; times in ns from the start of the first move."""

    ends_ns: Times
    """(ends of steps, ranks)."""
    carried_ns: Times
    """(collectives in order of launch, 2): start and end."""

    @property
    def spans_ns(self) -> Times:
        """(steps, ranks): how long each step took."""
        return np.diff(self.ends_ns, axis=0)


def widen(programs: Sequence[Program]) -> WideProgram:
    """One program for all ranks, with the waits of any. Raises `StuckError` where their launches differ."""
    keys, ranks = zip(*map(_slots, programs), strict=True)
    fixed = [[slot.move for slot in rank_slots.values() if not isinstance(slot.move, Wait)] for rank_slots in ranks]
    if any(each != keys[0] for each in keys) or any(each != fixed[0] for each in fixed):
        raise StuckError("the ranks' programs do not launch the same collectives in the same order")
    moves = {place: slot.move for rank_slots in ranks for place, slot in rank_slots.items()}
    order = sorted(moves)
    table = [[rank_slots.get(place, _NO_WAIT_SLOT) for rank_slots in ranks] for place in order]
    in_order = tuple(moves[place] for place in order)
    steps = tuple(_steps(in_order))
    return WideProgram(
        moves=in_order,
        work_ns=np.array([[slot.work_ns for slot in row] for row in table], np.int64).reshape(-1, len(programs)),
        wake_ns=np.array([[slot.wake_ns for slot in row] for row in table], np.int64).reshape(-1, len(programs)),
        steps=steps,
        columns=separate_columns(len(steps), len(programs)),
    )


_Place: TypeAlias = tuple[int, float, float]
"""How many launches and step ends come before. Then, of a wait: how many of the waits since then, it included, were for
an earlier launch than the wait before them; and its launch's number. Of a launch or step end: infinity, twice."""


class _Slot(Struct, frozen=True):
    move: Launch | Wait | End
    work_ns: int
    wake_ns: int = 0


_NO_WAIT_SLOT = _Slot(End(), 0, NO_WAIT)


def _slots(program: Program) -> tuple[list[Hashable], dict[_Place, _Slot]]:
    """The keys of one rank's launches, and its moves by their places.

    Collectives that queue end in the order of their launches. So once a rank has waited for one, waits for earlier
    ones do nothing, and are left out: where they stand may depend on how long each happened to take. Those that do not
    queue may be waited for in any order, each rank in its own: what one rank waits for, others pass.
    """
    keys: dict[Hashable, int] = {}
    slots: dict[_Place, _Slot] = {}
    worked = passed = 0
    waited = before = -1
    again = 0
    unqueued: dict[Hashable, bool] = {}  # by key, of those that do not queue: whether no wait for it came yet
    for move in program:
        match move:
            case Work(ns):
                worked += ns
                continue
            case Mark():
                continue
            case Wait(key, wake_ns):
                if key not in keys:
                    raise StuckError("a rank waits for a collective that it has not launched")
                if not unqueued.get(key, keys[key] > waited):
                    continue
                if key in unqueued:
                    unqueued[key] = False
                else:
                    waited = keys[key]
                again += keys[key] < before
                before = keys[key]
                slots[passed, again, keys[key]] = _Slot(Wait(keys[key]), worked, wake_ns)
            case Launch(key):
                slots[passed, inf, inf] = _Slot(replace(move, key=len(keys), host_ns=0, displaced_ns=0), worked)
                keys[key] = len(keys)
                passed, before, again = passed + 1, -1, 0
                if not move.queues:
                    unqueued[key] = True
            case End():
                slots[passed, inf, inf] = _Slot(move, worked)
                passed, before, again = passed + 1, -1, 0
        worked = 0
    return list(keys), slots


def separate_columns(steps: int, ranks: int) -> Times:
    """`WideProgram.columns` where each rank has its own column in all steps."""
    return np.broadcast_to(np.arange(ranks, dtype=np.int64), (steps, ranks))


def play_wide(program: WideProgram) -> WidePlayed:
    """Play the program of all ranks to its end; see [Note: alike]."""
    now = np.zeros(1, dtype=np.int64)
    alike = np.zeros(program.ranks, dtype=np.int64)  # the place in `now` of each rank's time
    width = program.work_ns.shape[1]
    carried: list[tuple[int, int]] = []
    ends: list[Times] = []
    free = 0
    for columns, (_, step) in zip(program.columns, program.steps, strict=True):
        # a pair is a place in `now` and a column, as place × width + column
        pairs, alike = np.unique(alike * width + columns, return_inverse=True)
        used_columns = pairs % width
        now = now[pairs // width]
        works, wakes = program.work_ns[step][:, used_columns], program.wake_ns[step][:, used_columns]
        for move, work_ns, wake_ns in zip(program.moves[step], works, wakes, strict=True):
            now = now + work_ns
            match move:
                case Launch(queues=False):
                    start = int(now.max())
                    carried.append((start, start + move.transfer_ns))
                case Launch():
                    start = max(int(now.max()), free)
                    free = start + move.transfer_ns
                    carried.append((start, free))
                case Wait(number):
                    ended = carried[_number(number)][1]
                    now = np.where((now < ended) & (wake_ns != NO_WAIT), ended + wake_ns, now)
                case End():
                    ends.append(now[alike])
        now, same = np.unique(now, return_inverse=True)
        alike = same[alike]
    return WidePlayed(
        ends_ns=np.array(ends, dtype=np.int64).reshape(-1, program.ranks),
        carried_ns=np.array(carried, dtype=np.int64).reshape(-1, 2),
    )


def working_times(program: WideProgram, result: WidePlayed, rank: int) -> Intervals:
    """When a rank worked."""
    now = 0
    starts, ends = [], []
    works, wakes = (times.tolist() for times in program.times_of_rank(rank))
    for move, work_ns, wake_ns in zip(program.moves, works, wakes, strict=True):
        starts.append(now)
        now += work_ns
        ends.append(now)
        if isinstance(move, Wait) and wake_ns != NO_WAIT:
            ended = int(result.carried_ns[_number(move.key), 1])
            now = ended + wake_ns if now < ended else now
    return union(starts, ends)


def _number(key: Hashable) -> int:
    assert isinstance(key, int)
    return key


def retime_collectives(program: WideProgram, takes: Callable[[Launch], int]) -> WideProgram:
    """The same with another T of each collective, in ns."""
    moves = [replace(move, transfer_ns=takes(move)) if isinstance(move, Launch) else move for move in program.moves]
    return replace(program, moves=tuple(moves))


def _steps(moves: Sequence[Move]) -> Iterator[tuple[tuple[Hashable, ...], slice]]:
    shape: list[Hashable] = []
    launched = begun = 0
    for place, move in enumerate(moves):
        match move:
            case Launch():
                shape.append((move.kind, move.bytes, move.role, move.what))
                launched += 1
            case Wait(number):
                shape.append(launched - _number(number))
            case End():
                yield (begun == 0, *shape), slice(begun, place + 1)
                begun, shape = place + 1, []
    if begun < len(moves):
        yield ("after the last", *shape), slice(begun, len(moves))
