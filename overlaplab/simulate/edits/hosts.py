"""What the ranks' hosts would do otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from overlaplab.simulate.player import End, Launch, Mark, Move, Program, Wait, Work, change_duration


def balance_rank(programs: Sequence[Program], late: int) -> list[Program]:
    """The work of the rank at `late` as the others' median, move by move; where moves differ, in each step."""
    merged = [_merge_work(program) for program in programs]
    others = [program for place, program in enumerate(merged) if place != late]
    slow = merged[late]
    changed: list[Move] = []
    if all(_shape(program) == _shape(slow) for program in others):
        for move, *counterparts in zip(slow, *others, strict=True):
            works = [other for other in counterparts if isinstance(other, Work)]
            changed.append(_median(works) if works else move)
    else:
        factors = np.median([work_by_step(program) for program in others], axis=0) / np.maximum(work_by_step(slow), 1)
        changed = _scale_steps(slow, factors)
    return [changed if place == late else program for place, program in enumerate(programs)]


def even_out_work(programs: Sequence[Program]) -> list[Program]:
    """Every rank computes as long in each step as all do in the mean, as with inputs of equal length."""
    works = np.array([work_by_step(program, idle=False) for program in programs], dtype=np.float64)
    factors = works.mean(axis=0) / np.maximum(works, 1)
    if works.shape[1] > 1:  # hosts and streams of GPUs have no steps
        factors[:, 0] = 1  # before the first one
    return [_scale_steps(program, by_step, idle=False) for program, by_step in zip(programs, factors, strict=True)]


def without_pauses(program: Program) -> list[Move]:
    """The host does not pause."""
    return [
        Work(move.ns - move.paused_ns, 0, max(move.idle_ns - move.paused_ns, 0)) if isinstance(move, Work) else move
        for move in program
    ]


def without_host_work(program: Program, name: str) -> list[Move]:
    """Nothing is done between the marks `host` and `host_end` of this name."""
    return [move for move, inside in between_marks(program, "host", {name}) if not (inside and isinstance(move, Work))]


def host_works(programs: Sequence[Program]) -> dict[str, int]:
    """By name how long the host worked between the passes, in ns: of the rank that did so longest."""
    longest: dict[str, int] = {}
    for program in programs:
        works: dict[str, int] = {}
        inside = None
        for move in program:
            if isinstance(move, Mark) and move.word in ("host", "host_end"):
                inside = move.name if move.word == "host" else None
            elif isinstance(move, Work) and inside:
                works[inside] = works.get(inside, 0) + move.ns
        longest |= {name: max(ns, longest.get(name, 0)) for name, ns in works.items()}
    return longest


def without_launch_overhead(program: Program) -> list[Move]:
    """The host of a GPU launches in no time; what it does between passes by name, and its pauses, stay."""
    return [
        Work(move.paused_ns, move.paused_ns) if isinstance(move, Work) and not inside else move
        for move, inside in between_marks(program, "host")
    ]


def between_marks(program: Program, word: str, names: Collection[str] | None = None) -> Iterator[tuple[Move, bool]]:
    """Each move, and whether it lies between the marks `<word>` and `<word>_end` of one of these names, or of any."""
    inside = False
    for move in program:
        if isinstance(move, Mark) and move.word in (word, f"{word}_end"):
            inside = move.word == word and (names is None or move.name in names)
        yield move, inside


def _scale_steps(program: Program, factors: npt.NDArray[np.float64], *, idle: bool = True) -> list[Move]:
    """The work before the first step, and in each, times its factor; idle time as it is unless it is `idle`, too."""
    moves: list[Move] = []
    step = 0
    for move in program:
        step += isinstance(move, End)
        if isinstance(move, Work):
            times = (move.ns, move.paused_ns, move.idle_ns) if idle else (move.ns - move.idle_ns, 0, 0)
            scaled = Work(*(int(ns * factors[step]) for ns in times))
            move = scaled if idle else change_duration(move, scaled.ns + move.idle_ns)
        moves.append(move)
    return moves


def _median(works: Sequence[Work]) -> Work:
    times = zip(*((work.ns, work.paused_ns, work.idle_ns) for work in works), strict=True)
    return Work(*(int(median(ns)) for ns in times))


def _merge_work(program: Program) -> list[Move]:
    """With exactly one `Work` before every other move."""
    moves: list[Move] = []
    work = Work(0)
    for move in program:
        if isinstance(move, Work):
            work = Work(work.ns + move.ns, work.paused_ns + move.paused_ns, work.idle_ns + move.idle_ns)
        else:
            moves += [work, move]
            work = Work(0)
    return moves


def _shape(program: Program) -> list[Move]:
    """The moves without what differs from rank to rank."""
    shape: list[Move] = []
    for move in program:
        match move:
            case Work():
                shape.append(Work(0))
            case Launch():
                shape.append(replace(move, host_ns=0, displaced_ns=0))
            case Wait(key):
                shape.append(Wait(key))
            case _:
                shape.append(move)
    return shape


def work_by_step(program: Program, *, idle: bool = True) -> list[int]:
    """The work before the first step, and in each, with or without what is `idle`."""
    works = [0]
    for move in program:
        if isinstance(move, End):
            works.append(0)
        elif isinstance(move, Work):
            works[-1] += move.ns - (0 if idle else move.idle_ns)
    return works


def mean_work_ns(program: Program) -> float:
    """How long a step works, in the mean."""
    return sum(work_by_step(program)[1:]) / max(sum(isinstance(move, End) for move in program) - 1, 1)
