"""Changes of programs: what the ranks would do with another option, from what they did (see `player`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

import numpy as np

from overlaplab.simulate.player import End, Launch, Mark, Move, Program, Wait, Work

__all__ = ["assign", "balanced", "earlier", "prefetched", "without_pauses"]

Name = TypeVar("Name", bound=Hashable)
_LONG = 0.02
"""Of a step: what occupies the link for longer may hold up what is queued behind it."""


def assign(order: Sequence[Name], sizes: Mapping[Name, int], caps: Sequence[int]) -> list[list[Name]]:
    """Gradients in order, cut into buckets that close once they hold their cap in bytes; the last cap serves on.

    Source: compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp.
    """
    buckets: list[list[Name]] = [[]]
    held = 0
    for name in order:
        buckets[-1].append(name)
        held += sizes[name]
        if held >= caps[min(len(buckets), len(caps)) - 1]:
            buckets.append([])
            held = 0
    return [bucket for bucket in buckets if bucket]


def prefetched(program: Program) -> list[Move]:
    """Each gather launched when the unit before is about to be used, in the same pass of the same microbatch."""
    gathers = {move.key: move.what for move in program if isinstance(move, Launch) and move.role == "gather"}
    uses: list[tuple[int, str]] = []  # where each one's gathers are launched, before it waits for its own; its pass
    waited: tuple[int, str | None] = -1, None
    for place, move in enumerate(program):
        if isinstance(move, Wait) and move.key in gathers:
            waited = place, gathers[move.key]
        elif isinstance(move, Mark) and move.word == "use":
            uses.append((waited[0] if waited[1] == move.name else place, move.name.partition(" ")[2]))
            waited = -1, None
    places = [place for place, _ in uses]
    moved: dict[int, list[Move]] = {}
    gone: set[int] = set()
    for place, move in enumerate(program):
        if isinstance(move, Launch) and move.key in gathers:
            use = bisect_right(places, place)
            if 0 < use < len(uses) and uses[use - 1][1] == uses[use][1]:
                moved.setdefault(uses[use - 1][0], []).append(move)
                gone.add(place)
    moves: list[Move] = []
    for place, move in enumerate(program):
        moves += moved.get(place, [])
        if place not in gone:
            moves.append(move)
    return moves


def earlier(program: Program) -> list[Move] | None:
    """What moves neither gradients nor parameters, and takes long, launched when the step begins; None without any."""
    step_ns = sum(_worked(program)[1:]) / max(sum(isinstance(move, End) for move in program) - 1, 1)
    moves: list[Move] = []
    begun = found = 0
    for move in program:
        if isinstance(move, End):
            begun = len(moves) + 1
        if isinstance(move, Launch) and not move.role and move.transfer_ns > _LONG * step_ns:
            moves.insert(begun, move)
            begun += 1
            found += 1
        else:
            moves.append(move)
    return moves if found else None


def balanced(programs: Sequence[Program], late: int) -> list[Program]:
    """The work of the rank at place `late` as the others' (their median), between any two other moves.

    Where their moves differ, as long as theirs in each step as a whole.
    """
    merged = [_merged(program) for program in programs]
    others = [program for place, program in enumerate(merged) if place != late]
    own = merged[late]
    changed: list[Move] = []
    if all(_shape(program) == _shape(own) for program in others):
        for move, *at in zip(own, *others, strict=True):
            works = [other for other in at if isinstance(other, Work)]
            changed.append(_median(works) if works else move)
    else:
        factors = np.median([_worked(program) for program in others], axis=0) / np.maximum(_worked(own), 1)
        step = 0
        for move in own:
            step += isinstance(move, End)
            changed.append(_scaled(move, factors[step]) if isinstance(move, Work) else move)
    return [changed if place == late else program for place, program in enumerate(programs)]


def without_pauses(program: Program) -> list[Move]:
    """The host does not pause."""
    return [_unpaused(move) if isinstance(move, Work) else move for move in program]


def _unpaused(work: Work) -> Work:
    return Work(work.ns - work.paused_ns, 0, max(work.idle_ns - work.paused_ns, 0))


def _scaled(work: Work, factor: float) -> Work:
    return Work(*(int(ns * factor) for ns in (work.ns, work.paused_ns, work.idle_ns)))


def _median(works: Sequence[Work]) -> Work:
    return Work(*(int(median(ns)) for ns in zip(*((own.ns, own.paused_ns, own.idle_ns) for own in works), strict=True)))


def _merged(program: Program) -> list[Move]:
    """With exactly one `Work` before every other move."""
    found: list[Move] = []
    work = Work(0)
    for move in program:
        if isinstance(move, Work):
            work = Work(work.ns + move.ns, work.paused_ns + move.paused_ns, work.idle_ns + move.idle_ns)
        else:
            found += [work, move]
            work = Work(0)
    return found


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


def _worked(program: Program) -> list[int]:
    """The work before the first step, and in each."""
    found = [0]
    for move in program:
        if isinstance(move, End):
            found.append(0)
        elif isinstance(move, Work):
            found[-1] += move.ns
    return found
