"""Programs of more ranks than there are: what `wide.drawn` draws, move by move."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from overlaplab.simulate.player import End, Launch, Move, Program, Wait
from overlaplab.simulate.wide import draws, widen

__all__ = ["with_further"]


def with_further(programs: Sequence[Program], ranks: int) -> tuple[Program, ...]:
    """So many ranks: the first of these, and further ones, each of which does in each step what one of these did.

    They play to the nanosecond as `wide.drawn` of the same programs. Raises `StuckError` where these launch different
    collectives, or in another order.
    """
    if ranks <= len(programs):
        return tuple(programs[:ranks])
    choices = list(draws([shape for shape, _ in widen(programs).steps], len(programs), ranks))
    steps = [list(_steps(program)) for program in programs]
    launches = [[move for move in step if isinstance(move, Launch)] for step in steps[0]]
    order = [launch for own in launches for launch in own]
    begun = [sum(map(len, launches[:place])) for place in range(len(launches))]
    number = {launch.key: place for place, launch in enumerate(order)}
    further: list[Program] = []
    for rank in range(len(programs), ranks):
        moves: list[Move] = []
        for place, (same, chosen) in enumerate(choices):
            step, other = divmod(int(chosen[rank]), len(programs))
            ahead = begun[place] - begun[same[step]]
            moves += (_moved(move, ahead, order, number) for move in steps[other][same[step]])
        further.append(moves)
    return (*programs, *further)


def _steps(program: Program) -> Iterator[list[Move]]:
    """The moves up to each end of a step.

    Where a later collective was waited for before, a wait does nothing. It is left out if its collective is an earlier
    step's: among other steps it may do something, or there may be no such collective.
    """
    numbers: dict[Hashable, int] = {}
    waited, begun = -1, 0
    step: list[Move] = []
    for move in program:
        if isinstance(move, Launch):
            numbers[move.key] = len(numbers)
        if isinstance(move, Wait):
            if numbers[move.key] < begun and numbers[move.key] <= waited:
                continue
            waited = max(waited, numbers[move.key])
        step.append(move)
        if isinstance(move, End):
            yield step
            step, begun = [], len(numbers)
    yield step


def _moved(move: Move, ahead: int, order: Sequence[Launch], number: Mapping[Hashable, int]) -> Move:
    """A move in a step whose collectives come so many launches later."""
    if isinstance(move, Launch):
        return replace(order[number[move.key] + ahead], host_ns=move.host_ns, displaced_ns=move.displaced_ns)
    if isinstance(move, Wait):
        return replace(move, key=order[number[move.key] + ahead].key)
    return move
