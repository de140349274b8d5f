"""What carrying collectives takes from computation: literals in, literals out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.traces import event, op, run_of, step

from overlaplab.manifest import Calibration, IdleCollective, Manifest, Sleep
from overlaplab.simulate.displaced import calibrated_use, displaced_over_used, with_displaced, without_displaced
from overlaplab.simulate.player import End, Launch, Mark, Move, Wait, Work

CALIBRATION = Calibration(
    collectives=(
        IdleCollective(kind="all_reduce", bytes=100, used_ns=(30, 30, 31)),
        IdleCollective(kind="all_reduce", bytes=300, used_ns=(50, 50, 57)),
        IdleCollective(kind="all_gather", bytes=100),
    )
)


def test_what_a_collective_uses_follows_its_size() -> None:
    """20 ns, and 0.1 ns per byte."""
    used = calibrated_use(Manifest(format_version=1, world_size=1, calibration=CALIBRATION))
    assert [used("all_reduce", size) for size in (0, 100, 1000)] == [20, 30, 120]
    assert used("all_gather", 100) == used("broadcast", 100) == 0, "not measured"


def test_where_nothing_waits_for_a_core_or_nothing_is_known_it_is_nothing() -> None:
    asleep = Manifest(format_version=1, world_size=1, calibration=CALIBRATION, sleep=Sleep(on_schedule=True))
    for manifest in (asleep, Manifest(format_version=1, world_size=1), None):
        assert calibrated_use(manifest)("all_reduce", 100) == 0


def program(*works: float) -> list[Move]:
    """Two collectives of 40 that displace a half and a quarter; the second follows the first on the link."""
    first, second, third, last = (Work(round(ns)) for ns in works)
    return [
        *(End(), first, Launch("a", 40, displaced_ns=20), second, Launch("b", 40, displaced_ns=10), Mark("use"), third),
        *(Wait("a"), Wait("b"), last, End()),
    ]


def test_work_is_slower_while_the_link_is_busy() -> None:
    """Up to the second launch 10 ns of the first collective pass, then its other 30 and 20 of the second."""
    alone, together = program(7, 5, 15 + 15, 9), program(7, 10, 30 + 20, 9)
    assert list(with_displaced(alone)) == together
    assert list(without_displaced(together)) == alone


def test_work_without_what_was_displaced_pauses_no_longer_than_it_takes() -> None:
    pausing: list[Move] = [Launch("a", 40, displaced_ns=20), Work(40, 30, 35)]
    assert list(without_displaced(pausing))[1] == Work(20, 20, 20)


def test_a_wait_goes_on_when_the_link_has_carried_it() -> None:
    """What is launched then is carried at once; the first is over."""
    moves = [Launch("a", 100, displaced_ns=50), Work(10), Wait("a"), Launch("b", 20, displaced_ns=10), Work(30)]
    expected = [5, 10 + 10]
    assert [move.ns for move in without_displaced(moves) if isinstance(move, Work)] == expected


@pytest.mark.parametrize(("delayed_us", "times"), [(0, 0.0), (6, 0.6), (15, 1.5), (50, 3.0)])
def test_waits_for_a_core_in_units_passes_tell_how_much_more_it_is(
    tmp_path: Path, delayed_us: int, times: float
) -> None:
    """Of 20 us beside a collective it would be 10. A wait for a core before and after the passes is none for it."""
    counted = [(0, 0, ""), (30, 700, ""), (70, 700 + delayed_us, " unit=layers.0 phase=backward"), (80, 999, "")]
    labels = [
        event(f"engine::processor ran_ns=0 delayed_ns={1000 * delayed}{about}", at, at)
        for at, delayed, about in counted
    ]
    run = run_of(tmp_path, [step(3, 0, 90), op("mm", 0, 90), *labels])
    launch, forward, end = Launch("a", 40_000, displaced_ns=20_000), Mark("forward"), Mark("backward_end")
    program = [forward, Work(30_000), launch, Work(20_000), end, Work(10_000), Wait("a"), Work(20_000)]
    assert displaced_over_used(run, [program]) == times
    assert displaced_over_used(run, [[forward, Work(90_000), end]]) == 0


def test_where_all_is_sent_after_the_passes_it_is_what_was_measured(tmp_path: Path) -> None:
    """However long the passes waited for a core, since that was for something else."""
    labels = [
        event(f"engine::processor ran_ns=0 delayed_ns={delayed}{about}", at, at)
        for at, delayed, about in [(0, 0, ""), (70, 9_000, " unit=layers.0 phase=backward")]
    ]
    run = run_of(tmp_path, [step(3, 0, 90), op("mm", 0, 90), *labels])
    launch = Launch("a", 40_000, displaced_ns=20_000)
    naive = [Mark("forward"), Work(70_000), Mark("backward_end"), launch, Work(500), Wait("a"), Work(20_000)]
    assert displaced_over_used(run, [naive]) == 1


@given(
    st.lists(
        st.one_of(
            st.builds(Work, st.integers(0, 10**9)),
            st.builds(Launch, st.integers(0, 9), st.integers(0, 10**8), displaced_ns=st.integers(0, 10**8)),
            st.builds(Wait, st.integers(0, 9)),
        )
    )
)
def test_one_is_the_others_inverse(moves: list[Move]) -> None:
    there = list(with_displaced(moves))
    back = list(without_displaced(there))
    assert [move for move in back if not isinstance(move, Work)] == [m for m in moves if not isinstance(m, Work)]
    for move, own, longer in zip(moves, back, there, strict=True):
        if isinstance(move, Work) and isinstance(own, Work) and isinstance(longer, Work):
            assert abs(own.ns - move.ns) <= len(moves)
            assert move.ns <= longer.ns <= 10 * move.ns + 1
