"""What changes make of programs: literals in, literals out."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from overlaplab_engine.strategies.gradients.buckets import assign as engine_assign

from overlaplab.simulate.changes import assign, balanced, earlier, prefetched, without_pauses
from overlaplab.simulate.player import End, Launch, Mark, Move, Wait, Work, play


def spans(programs: Sequence[Sequence[Move]]) -> list[list[int]]:
    played = play(programs)
    return [played.spans_ns(rank) for rank in range(len(programs))]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 20), st.integers(1, 20))
def test_buckets_close_as_the_engines(sizes: list[int], first: int, cap: int) -> None:
    names = [str(number) for number in range(len(sizes))]
    expected = engine_assign(range(len(sizes)), sizes, [0] * len(sizes), [first, cap])
    got = assign(names, dict(zip(names, sizes, strict=True)), [first, cap])
    assert got == [[names[number] for number in bucket] for bucket in expected]


def gather(unit: str, phase: str = "forward") -> Launch:
    return Launch(f"{unit} {phase}", 10, role="gather", what=f"{unit} 0 {phase}")


def use(unit: str, phase: str = "forward", *, gathered: bool = True) -> list[Move]:
    waits: list[Move] = [Wait(f"{unit} {phase}")] if gathered else []
    return [*waits, Mark("use", f"{unit} 0 {phase}"), Work(20)]


def test_gathers_are_launched_one_use_earlier() -> None:
    """c is kept for the backward pass, so that there the gather of b can go when c is used."""
    serial = [
        *(End(), gather("a"), *use("a"), gather("b"), *use("b"), gather("c"), *use("c")),
        *(*use("c", "backward", gathered=False), gather("b", "backward"), *use("b", "backward")),
        *(gather("a", "backward"), *use("a", "backward"), End()),
    ]
    ahead = [
        *(End(), gather("a"), gather("b"), *use("a"), gather("c"), *use("b"), *use("c")),
        *(gather("b", "backward"), *use("c", "backward", gathered=False)),
        *(gather("a", "backward"), *use("b", "backward"), *use("a", "backward"), End()),
    ]
    assert prefetched(serial) == ahead
    assert (spans([serial]), spans([ahead])) == ([[170]], [[130]])


def test_a_gather_that_others_queue_behind_goes_first() -> None:
    program = [
        *(End(), Work(30), Launch("flags", 1), Launch("features", 40)),
        *(Work(10), Launch("w", 10, role="bucket"), Work(10), Wait("w"), Wait("features"), End()),
    ]
    moves = earlier(program)
    assert moves is not None
    assert moves[:3] == [End(), Launch("features", 40), Work(30)]
    assert (spans([program]), spans([moves])) == ([[81]], [[51]])
    assert earlier([End(), Work(30), Launch("flags", 0), End()]) is None


def test_a_late_rank_works_as_long_as_the_others() -> None:
    """Their median. Where its moves differ from theirs, by whole steps: its 40 and 2 become 12 and 0."""
    ranks: list[list[Move]] = [[End(), Work(ns), Launch("a", 5), Wait("a"), Work(2), End()] for ns in (10, 40, 12)]
    assert spans(ranks) == [[47]] * 3
    assert spans(balanced(ranks, 1)) == [[19]] * 3
    ranks[1][1:1] = [Mark("gradient", "w")]
    assert [move.ns for move in balanced(ranks, 1)[1] if isinstance(move, Work) and move.ns] == [12]


def test_without_pauses() -> None:
    assert without_pauses([Work(10, 7), End()]) == [Work(3), End()]
