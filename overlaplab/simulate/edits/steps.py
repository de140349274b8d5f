"""Programs by their steps."""

from __future__ import annotations

from overlaplab.simulate.player import End, Program, Work


def work_by_step(program: Program) -> list[int]:
    """The work before the first step, and in each."""
    works = [0]
    for move in program:
        if isinstance(move, End):
            works.append(0)
        elif isinstance(move, Work):
            works[-1] += move.ns
    return works


def mean_step_ns(program: Program) -> float:
    """How long a step works, in the mean."""
    return sum(work_by_step(program)[1:]) / max(sum(isinstance(move, End) for move in program) - 1, 1)
