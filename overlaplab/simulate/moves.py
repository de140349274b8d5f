"""The moves of one rank in a step, and the clock that plays them: computation is one queue, the link another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compute:
    """Computation of a given length."""

    ns: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A collective that may start once the computation has reached it, and then occupies the link for T."""

    transfer_ns: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Computation continues once the collective with this launch number, from 0, has ended."""

    number: int


Move = Compute | Launch | Wait


def finish_ns(moves: Iterable[Move]) -> int:
    """When the last computation of the moves ends, in ns from the start of the first move.

    Raises IndexError for a wait before its launch.
    """
    now = free = 0
    ends: list[int] = []
    for move in moves:
        match move:
            case Compute(ns):
                now += ns
            case Launch(ns):
                free = max(now, free) + ns
                ends.append(free)
            case Wait(number):
                now = max(now, ends[number])
    return now
