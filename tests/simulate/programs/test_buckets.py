"""Programs with other buckets: literals in, literals out."""

from __future__ import annotations

from collections.abc import Sequence

from overlaplab.simulate.displaced import with_displaced, without_displaced
from overlaplab.simulate.player import End, Launch, Mark, Move, Wait, Work, play
from overlaplab.simulate.programs.without_buckets import WithoutBuckets


def spans(programs: Sequence[Sequence[Move]]) -> list[list[int]]:
    played = play(programs)
    return [played.spans_ns(rank) for rank in range(len(programs))]


def bucket(parameters: tuple[str, ...], transfer_ns: int, displaced_ns: int = 0) -> Launch:
    return Launch(None, transfer_ns, role="bucket", parameters=parameters, displaced_ns=displaced_ns)


def recut(program: Sequence[Move], buckets: Sequence[Launch], host_ns: int = 0, wake_ns: int = 0) -> list[Move]:
    return WithoutBuckets(program).add(buckets, host_ns=host_ns, wake_ns=wake_ns)


BACKWARD: list[Move] = [
    *(End(), Work(10)),  # forward
    *(Work(20), Mark("gradient", "c"), Work(20), Mark("gradient", "b"), Work(20), Mark("gradient", "a"), Work(3)),
    *(Launch("all", 60, role="bucket", host_ns=1, parameters=("c", "b", "a")), Mark("backward_end")),
    *(Wait("all", 2), Work(5), End()),
]
"""It takes 10 + 60 + 3 + 60 + 2 + 5."""


def test_smaller_buckets_leave_as_soon_as_they_are_full() -> None:
    """Of 20 each: two are hidden, the last ends 21 after its gradient, of which 1 is what a launch costs before it.

    The recorded launch's 2 ns are saved.
    """
    assert spans([BACKWARD]) == [[140]]
    buckets = [bucket((name,), 20) for name in "cba"]
    moves = recut(BACKWARD, buckets, host_ns=1, wake_ns=4)
    launches = [(place, move.key) for place, move in enumerate(moves) if isinstance(move, Launch)]
    assert [key for _, key in launches] == [("bucket", 0, number) for number in range(3)]
    assert spans([moves]) == [[10 + 3 * 20 + (2 + 2 + 1) + 20 + 4 + (5 - 2)]]


def test_a_bucket_on_its_way_displaces_computation() -> None:
    """Half of its T of 20 each, of the last 2 before the wait. The recorded one displaced 1 of the last 3."""
    sent = Launch("all", 60, role="bucket", displaced_ns=20, parameters=("c", "b", "a"))
    program = [*BACKWARD[:8], sent, BACKWARD[8], *BACKWARD[10:]]
    buckets = [bucket((name,), 20, displaced_ns=10) for name in "cba"]
    moves = with_displaced(recut(without_displaced(program), buckets))
    assert sum(move.ns for move in moves if isinstance(move, Work)) == 10 + 20 + 2 * 30 + 2 * 2 + 5
    assert spans([moves]) == [[10 + 20 + 2 * 30 + 20 + 5]]


def test_a_launch_that_was_waited_for_at_once_saves_its_range_alone() -> None:
    """Of the 3 after each launch; as much again would come out of the work on gradients."""
    blocking: list[Move] = [End(), Work(10)]
    for name in "ba":
        launch = Launch(name, 60, role="bucket", host_ns=3, parameters=(name,))
        blocking += [Work(20), Mark("gradient", name), launch, Work(3), Wait(name, 2)]
    blocking += [Mark("backward_end"), Work(30), End()]
    buckets = [bucket(("b", "a"), 60)]
    assert spans([recut(blocking, buckets)]) == [[10 + 2 * 20 + 60 + 30]]


def test_what_has_no_gradient_is_sent_at_the_end() -> None:
    buckets = [bucket(("unused",), 20), bucket(("a", "b", "c"), 40)]
    moves = recut(BACKWARD, buckets)
    assert spans([moves]) == [[10 + 60 + 3 + 60 + 5 - 2]]


def test_what_a_pass_does_not_use_holds_no_bucket_up() -> None:
    """DDP sent the bucket of `unused` within the pass, though no gradient arrived: as soon as the one before it."""
    sent = [Launch(name, 20, role="bucket", parameters=(name,)) for name in ("c", "unused")]
    flags = Launch("flags", 1)
    program = [End(), Mark("backward"), Work(10), Mark("gradient", "c"), *sent, Work(10), flags, Mark("backward_end")]
    buckets = [bucket(("c", "unused"), 40)]
    moves = recut([*program, End()], buckets)
    assert [move.key for move in moves if isinstance(move, Launch)] == [("bucket", 0, 0), "flags"]
    assert spans([moves]) == [[10 + 40]]


def test_a_bucket_without_names_is_another_models_and_stays() -> None:
    other = [Work(7), Launch("other", 50, role="bucket"), Mark("kept_end"), Wait("other")]
    moves = recut([*BACKWARD[:-1], *other, End()], [bucket(("c", "b", "a"), 60)])
    assert [move.key for move in moves if isinstance(move, Launch)] == [("bucket", 0, 0), "other"]
    assert spans([moves]) == [[10 + 60 + 60 + (5 - 2) + 7 + 50]]


def test_each_pass_has_buckets_of_its_own() -> None:
    buckets = [bucket(("c", "b", "a"), 60)]
    moves = recut([*BACKWARD[:-1], *BACKWARD[1:]], buckets)
    assert [move.key for move in moves if isinstance(move, Launch)] == [("bucket", 0, 0), ("bucket", 1, 0)]
