"""What changes make of programs: literals in, literals out."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from overlaplab_engine.strategies.gradients.buckets import assign as engine_assign

from overlaplab.simulate.changes import Bucket, assign, balanced, earlier, prefetched, recut, without_pauses
from overlaplab.simulate.displaced import with_displaced, without_displaced
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


BACKWARD: list[Move] = [
    *(End(), Work(10)),  # forward
    *(Work(20), Mark("gradient", "c"), Work(20), Mark("gradient", "b"), Work(20), Mark("gradient", "a"), Work(3)),
    *(Launch("all", 60, role="bucket", host_ns=1), Mark("backward_end")),
    *(Wait("all", 2), Work(5), End()),
]
"""It takes 10 + 60 + 3 + 60 + 2 + 5."""


def test_smaller_buckets_leave_as_soon_as_they_are_full() -> None:
    """Of 20 each: two are hidden, the last ends 21 after its gradient, of which 1 is what the launch costs.

    The recorded launch's 2 ns are saved.
    """
    assert spans([BACKWARD]) == [[140]]
    buckets = [Bucket(parameters=(name,), transfer_ns=20) for name in "cba"]
    moves = recut(BACKWARD, buckets, host_ns=1, wake_ns=4)
    launches = [(place, move.key) for place, move in enumerate(moves) if isinstance(move, Launch)]
    assert [key for _, key in launches] == [("bucket", 0, number) for number in range(3)]
    assert spans([moves]) == [[10 + 3 * 21 + 20 + 4 + (5 - 2)]]


def test_a_bucket_on_its_way_displaces_computation() -> None:
    """Half of its T of 20 each, of the last 2 before the wait. The recorded one displaced 1 of the last 3."""
    program = [*BACKWARD[:8], Launch("all", 60, role="bucket", displaced_ns=20), BACKWARD[8], *BACKWARD[10:]]
    buckets = [Bucket(parameters=(name,), transfer_ns=20, displaced_ns=10) for name in "cba"]
    moves = with_displaced(recut(without_displaced(program), buckets, host_ns=0, wake_ns=0))
    assert sum(move.ns for move in moves if isinstance(move, Work)) == 10 + 20 + 2 * 30 + 2 * 2 + 5
    assert spans([moves]) == [[10 + 20 + 2 * 30 + 20 + 5]]


def test_a_launch_that_was_waited_for_at_once_saves_its_range_alone() -> None:
    """Of the 3 after each launch; as much again would come out of the work on gradients."""
    blocking: list[Move] = [End(), Work(10)]
    for name in "ba":
        launch = Launch(name, 60, role="bucket", host_ns=3)
        blocking += [Work(20), Mark("gradient", name), launch, Work(3), Wait(name, 2)]
    blocking += [Mark("backward_end"), Work(30), End()]
    buckets = [Bucket(parameters=("b", "a"), transfer_ns=60)]
    assert spans([recut(blocking, buckets, host_ns=0, wake_ns=0)]) == [[10 + 2 * 20 + 60 + 30]]


def test_what_has_no_gradient_is_sent_at_the_end() -> None:
    buckets = [Bucket(parameters=("unused",), transfer_ns=20), Bucket(parameters=("a", "b", "c"), transfer_ns=40)]
    moves = recut(BACKWARD, buckets, host_ns=0, wake_ns=0)
    assert spans([moves]) == [[10 + 60 + 3 + 60 + 5 - 2]]


def test_what_a_pass_does_not_use_holds_no_bucket_up() -> None:
    """DDP sent the bucket of `unused` within the pass, though no gradient arrived: as soon as the one before it."""
    sent = [Launch(name, 20, role="bucket", parameters=(name,)) for name in ("c", "unused")]
    flags = Launch("flags", 1)
    program = [End(), Mark("backward"), Work(10), Mark("gradient", "c"), *sent, Work(10), flags, Mark("backward_end")]
    buckets = [Bucket(parameters=("c", "unused"), transfer_ns=40)]
    moves = recut([*program, End()], buckets, host_ns=0, wake_ns=0)
    assert [move.key for move in moves if isinstance(move, Launch)] == [("bucket", 0, 0), "flags"]
    assert spans([moves]) == [[10 + 40]]


def test_each_pass_has_buckets_of_its_own() -> None:
    buckets = [Bucket(parameters=("c", "b", "a"), transfer_ns=60)]
    moves = recut([*BACKWARD[:-1], *BACKWARD[1:]], buckets, host_ns=0, wake_ns=0)
    assert [move.key for move in moves if isinstance(move, Launch)] == [("bucket", 0, 0), ("bucket", 1, 0)]


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
