"""Gathers of parameters, earlier."""

from __future__ import annotations

from bisect import bisect_right

from overlaplab.simulate.player import Launch, Mark, Move, Program, Wait


def with_earlier_gathers(program: Program) -> list[Move]:
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
