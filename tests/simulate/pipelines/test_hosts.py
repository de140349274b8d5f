"""What a host takes between actions, in literals."""

from __future__ import annotations

from overlaplab.simulate.pipelines.moves import follow_moves
from overlaplab.simulate.pipelines.shape import Host
from overlaplab.simulate.player import Launch, Mark, Move, Wait, Work

ACT = (Mark("stage_forward", "1 0"), Work(9), Mark("stage_forward_end"))


def test_waits_are_not_the_hosts() -> None:
    """It posts at 5; what it receives ends at 50, and 7 later it acts; it posts twice, and acts without waiting."""
    moves: list[Move] = [
        *(Launch("in", 2), Wait("in"), *ACT),
        *(Launch("out", 2), Launch("next", 2), Wait("next"), *ACT),
        Wait("out"),
    ]
    posted = [(105, 150), (182, 220), (186, 181)]
    found = follow_moves(moves, 100, posted, [(157, 180), (190, 210)])
    assert found == (Host(post_ns=3, begin_ns=4, wake_ns=7), 5, 220)


def test_a_wait_shorter_than_what_the_host_takes_anyway_tells_nothing() -> None:
    """The first begins 10 after a post. Into the second one's gap of 12 a message fell that ended 3 after it began."""
    moves: list[Move] = [Launch("a", 2), *ACT, Launch("b", 2), Wait("b"), *ACT]
    host, _, _ = follow_moves(moves, 0, [(1, 5), (31, 34)], [(11, 30), (43, 50)])
    assert host == Host(post_ns=1, begin_ns=10, wake_ns=10)


def test_a_host_that_always_waits_is_known_by_how_it_wakes_up() -> None:
    moves: list[Move] = [Launch("a", 2), Wait("a"), *ACT]
    assert follow_moves(moves, 0, [(1, 5)], [(9, 12)]) == (Host(4, 4, 4), 1, 12)
