"""Programs of several ranks over one link: in literals, and against machines that tick."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaplab.simulate.player import End, Launch, Mark, Move, Program, StuckError, Wait, Work, play


def spans(*programs: Program) -> list[list[int]]:
    played = play([[End(), *program, End()] for program in programs])
    return [played.spans_ns(rank) for rank in range(len(programs))]


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        ([[]], [[0]]),
        ([[Work(7)]], [[7]]),
        ([[Launch("a", 5), Wait("a"), Work(1)]], [[6]]),
        ([[Launch("a", 5), Work(7), Wait("a")]], [[7]]),  # hidden
        ([[Launch("a", 5), Launch("b", 5), Work(7), Wait("b"), Wait("a")]], [[10]]),  # one after the other
        ([[Work(3), Launch("a", 5), Work(9), Launch("b", 5), Wait("b")]], [[17]]),  # the link stood idle
        ([[Work(2), Launch("a", 5), Wait("a")], [Work(9), Launch("a", 5), Work(1)]], [[14], [10]]),  # a late rank
        ([[Launch("a", 5), Wait("a")], [Work(4)]], [[5], [4]]),  # of a group of one
        ([[Mark("gradient", "w"), Work(2)]], [[2]]),
    ],
)
def test_literals(programs: list[list[Move]], expected: list[list[int]]) -> None:
    assert spans(*programs) == expected


def test_a_collective_may_reach_into_the_next_step() -> None:
    program = [End(), Work(4), Launch("a", 5), End(), Work(3), Wait("a"), Work(1), End()]
    played = play([program])
    assert played.spans_ns(0) == [4, 6]
    assert played.carried == {"a": (4, 9)}


@pytest.mark.parametrize(
    "programs",
    [
        [[Wait("a")]],
        [[Launch("a", 1), Launch("b", 1), Wait("a")], [Launch("b", 1), Launch("a", 1), Wait("b")]],
    ],
)
def test_what_cannot_end_is_refused(programs: list[list[Move]]) -> None:
    with pytest.raises(StuckError):
        play(programs)


LEFT, RIGHT, BOTH = (0, 1), (2, 3), (0, 2)
"""Groups of four ranks."""


@pytest.mark.parametrize(
    ("programs", "carried"),
    [
        # on different links at once
        ([[Launch("l", 5, group=LEFT)]] * 2 + [[Launch("r", 7, group=RIGHT)]] * 2, {"l": (0, 5), "r": (0, 7)}),
        # on rank 0's link in the order in which their last ranks came, whatever rank 0 launched first
        (
            [
                [Launch("l", 5, group=LEFT), Launch("b", 3, group=BOTH)],
                [Work(2), Launch("l", 5, group=LEFT)],
                [Launch("b", 3, group=BOTH)],
                [],
            ],
            {"b": (0, 3), "l": (3, 8)},
        ),
        # what fits before another that is booked already goes before it
        (
            [
                [Launch("l", 6, group=LEFT), Wait("l"), Launch("b", 4, group=BOTH)],
                [Launch("l", 6, group=LEFT)],
                [Launch("r", 9, group=RIGHT), Launch("b", 4, group=BOTH)],
                [Launch("r", 9, group=RIGHT)],
            ],
            {"l": (0, 6), "r": (0, 9), "b": (9, 13)},
        ),
        # one of a group follows the one before, and is not booked sooner
        (
            [
                [Launch("l", 5, group=LEFT), Launch("m", 5, group=LEFT), Work(4), Launch("b", 2, group=BOTH)],
                [Launch("l", 5, group=LEFT), Launch("m", 5, group=LEFT)],
                [Work(4), Launch("b", 2, group=BOTH)],
                [],
            ],
            {"l": (0, 5), "b": (5, 7), "m": (7, 12)},
        ),
    ],
)
def test_groups_share_their_ranks_links(programs: list[list[Move]], carried: dict[str, tuple[int, int]]) -> None:
    assert play(programs).carried == carried


def test_a_server_gets_one_message_after_another() -> None:
    """Of 4 ns each, in the order in which they come, whatever the order in which it waits for them."""
    programs: list[list[Move]] = [[Launch(k, 4, group=(0, k), lane=(k, 0)) for k in (1, 2, 3)]]
    programs[0] += [Work(5), *(Wait(k) for k in (1, 2, 3))]
    programs += [[Work(late), Launch(k, 4, group=(0, k), lane=(k, 0)), Wait(k)] for k, late in ((1, 9), (2, 0), (3, 1))]
    played = play([[End(), *program, End()] for program in programs])
    assert played.carried == {2: (0, 4), 3: (4, 8), 1: (9, 13)}
    assert [played.spans_ns(rank) for rank in range(4)] == [[13], [13], [4], [8]]


def by_ticks(programs: Sequence[Sequence[Move]]) -> list[int]:
    """When each rank ends: processors and a link that advance by a nanosecond at a time."""
    left = [[move.ns if isinstance(move, Work) else 0 for move in program] for program in programs]
    place = [0] * len(programs)
    order = [move for move in programs[0] if isinstance(move, Launch)]
    launched: dict[object, int] = {}
    ended: set[object] = set()
    ends: list[int | None] = [None] * len(programs)
    moving: list[int] = []  # what is left of the collective on the link
    tick = 0
    while None in ends:
        changed = True
        while changed:
            changed = False
            for rank, program in enumerate(programs):
                while ends[rank] is None:
                    if place[rank] == len(program):
                        ends[rank] = tick
                        break
                    move = program[place[rank]]
                    if left[rank][place[rank]] or (isinstance(move, Wait) and move.key not in ended):
                        break
                    if isinstance(move, Launch):
                        launched[move.key] = launched.get(move.key, 0) + 1
                    place[rank] += 1
                    changed = True
            if moving and not moving[0]:
                ended.add(order.pop(0).key)
                moving.clear()
                changed = True
            if not moving and order and launched.get(order[0].key, 0) == len(programs):
                moving.append(order[0].transfer_ns)
                changed = True
        tick += 1
        if moving:
            moving[0] -= 1
        for rank, own in enumerate(left):
            if place[rank] < len(own) and own[place[rank]]:
                own[place[rank]] -= 1
    return [end for end in ends if end is not None]


@given(st.data())
def test_against_machines_that_tick(data: st.DataObject) -> None:
    took = data.draw(st.lists(st.integers(1, 6), max_size=4))
    programs: list[list[Move]] = []
    for _ in range(data.draw(st.integers(1, 3))):
        moves: list[Move] = []
        waiting: list[int] = []
        for number, ns in enumerate(took):
            moves += [Work(data.draw(st.integers(0, 6))), Launch(number, ns)]
            waiting.append(number)
            if data.draw(st.booleans()):
                moves += [Work(data.draw(st.integers(0, 6))), Wait(data.draw(st.sampled_from(waiting)))]
        programs.append([*moves, Work(data.draw(st.integers(0, 6)))])
    assert [own[0] for own in spans(*programs)] == by_ticks(programs)
