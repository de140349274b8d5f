"""Programs of several ranks over one link: in literals, and against machines that tick."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from samples import sample_run

from overlaplab.errors import OverlaplabError
from overlaplab.simulate.play_errors import play_or_refuse
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


def sends(key: str, ns: int, sender: int, receiver: int) -> Launch:
    return Launch(key, ns, lane=(sender, receiver))


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        (  # a link sends one after the other
            [[sends("a", 5, 0, 1), sends("b", 5, 0, 2), Wait("b")], [sends("a", 5, 0, 1)], [sends("b", 5, 0, 2)]],
            {"a": (0, 5), "b": (5, 10)},
        ),
        (  # and receives meanwhile
            [[sends("a", 5, 0, 1), sends("b", 5, 1, 0)], [sends("b", 5, 1, 0), sends("a", 5, 0, 1)]],
            {"a": (0, 5), "b": (0, 5)},
        ),
        (  # who is ready first is received first
            [
                [sends("a", 5, 1, 0), sends("b", 5, 2, 0)],
                [Work(3), sends("a", 5, 1, 0)],
                [Work(1), sends("b", 5, 2, 0)],
            ],
            {"b": (1, 6), "a": (6, 11)},
        ),
        (  # b waits for rank 1's link, and c goes from rank 0 before it
            [
                [sends("b", 2, 0, 1), Work(5), sends("c", 2, 0, 3)],
                [sends("a", 10, 2, 1), sends("b", 2, 0, 1)],
                [sends("a", 10, 2, 1)],
                [sends("c", 2, 0, 3)],
            ],
            {"b": (0, 2), "a": (2, 12), "c": (5, 7)},
        ),
        (
            [
                [Work(1), sends("b", 2, 0, 1), Work(4), sends("c", 2, 0, 3)],
                [sends("a", 10, 2, 1), sends("b", 2, 0, 1)],
                [sends("a", 10, 2, 1)],
                [sends("c", 2, 0, 3)],
            ],
            {"a": (0, 10), "b": (10, 12), "c": (5, 7)},
        ),
        (  # a lane keeps its order, and the second one waits for its receiver
            [[sends("a", 3, 0, 1), sends("b", 3, 0, 1)], [sends("a", 3, 0, 1), Work(9), sends("b", 3, 0, 1)]],
            {"a": (0, 3), "b": (9, 12)},
        ),
    ],
)
def test_messages_share_the_links_of_their_ends(
    programs: list[list[Move]], expected: dict[str, tuple[int, int]]
) -> None:
    assert play(programs).carried == expected


def test_a_lane_whose_ends_disagree_is_refused() -> None:
    with pytest.raises(StuckError):
        play(
            [
                [sends("a", 1, 0, 1), sends("b", 1, 0, 1), Wait("a")],
                [sends("b", 1, 0, 1), sends("a", 1, 0, 1)],
            ]
        )


def messages_by_ticks(programs: Sequence[Sequence[Move]]) -> dict[object, tuple[int, int]]:
    """When messages began and ended: at every nanosecond what can go then books its time on the links of its ends."""
    left = [[move.ns if isinstance(move, Work) else 0 for move in program] for program in programs]
    place = [0] * len(programs)
    lanes: dict[tuple[int, int], list[list[Launch]]] = {}
    carried: dict[object, tuple[int, int]] = {}
    tick = 0
    while any(at < len(program) for at, program in zip(place, programs, strict=True)) or any(
        call for ends in lanes.values() for end in ends for call in end
    ):
        for rank, program in enumerate(programs):
            while place[rank] < len(program) and not left[rank][place[rank]]:
                move = program[place[rank]]
                if isinstance(move, Wait) and carried.get(move.key, (0, tick + 1))[1] > tick:
                    break
                if isinstance(move, Launch) and move.lane is not None:
                    lanes.setdefault(move.lane, [[], []])[move.lane.index(rank)].append(move)
                place[rank] += 1
        for lane in sorted(lanes):
            sent, received = lanes[lane]
            before = [end for key, (_, end) in carried.items() if key[:2] == lane]  # type: ignore[index]
            if sent and received and max(before, default=0) <= tick:
                taken = [span for key, span in carried.items() if key[0] == lane[0] or key[1] == lane[1]]  # type: ignore[index]
                begin, ns = tick, sent[0].transfer_ns
                while any(start < begin + ns and begin < end for start, end in taken):
                    begin += 1
                carried[sent[0].key] = begin, begin + ns
                sent.pop(0)
                received.pop(0)
        tick += 1
        for rank, own in enumerate(left):
            if place[rank] < len(own) and own[place[rank]]:
                own[place[rank]] -= 1
    return carried


@given(st.data())
def test_messages_against_links_that_tick(data: st.DataObject) -> None:
    """Every rank posts all of its messages in one order, and may wait for what it has posted."""
    ranks = data.draw(st.integers(2, 4))
    pairs = st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1)).filter(lambda pair: pair[0] != pair[1])
    programs: list[list[Move]] = [[] for _ in range(ranks)]
    for number, lane in enumerate(data.draw(st.lists(pairs, max_size=6))):
        launch = Launch((*lane, number), data.draw(st.integers(1, 5)), lane=lane)
        for rank in lane:
            programs[rank] += [Work(data.draw(st.integers(0, 6))), launch]
            if data.draw(st.booleans()):
                programs[rank] += [Wait(launch.key)]
    assert play(programs).carried == messages_by_ticks(programs)


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


def test_a_single_trace_that_is_stuck_is_not_told_of_orders_of_ranks() -> None:
    run = sample_run("bucketed")
    alone = replace(run, traces=run.traces[:1])
    stuck = [[Wait("never")]]
    with pytest.raises(OverlaplabError, match="1 of 2 ranks have no trace, and what its host and streams wait for"):
        play_or_refuse(alone, stuck)
    with pytest.raises(OverlaplabError, match="its ranks launch collectives in different orders"):
        play_or_refuse(run, stuck)
