"""Many ranks at once: the same times as the event player, and what is drawn for ranks that were not recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from samples import sample_run

from overlaplab.simulate.further import draw_ranks, with_further
from overlaplab.simulate.player import End, Launch, Mark, Move, Program, StuckError, Wait, Work, find_launches, play
from overlaplab.simulate.recorded import recorded_programs
from overlaplab.simulate.vector_player import NO_WAIT, WideProgram, play_wide, retime_collectives, widen

NAMES = ("per-param", "bucketed", "zero2", "zero3", "sweep/cap-25")


def narrowed(program: WideProgram) -> list[list[Move]]:
    """One program per rank, for the event player."""
    return [
        [
            own
            for move, work_ns, wake_ns in zip(
                program.moves, *map(np.ndarray.tolist, program.times_of_rank(rank)), strict=True
            )
            for own in (Work(work_ns), replace(move, wake_ns=wake_ns) if isinstance(move, Wait) else move)
            if not isinstance(own, Wait) or own.wake_ns != NO_WAIT
        ]
        for rank in range(program.ranks)
    ]


def works_of(program: WideProgram) -> npt.NDArray[np.int64]:
    """How long each rank works before each move, of shape (moves, ranks)."""
    return np.column_stack([program.times_of_rank(rank)[0] for rank in range(program.ranks)])


def same(programs: Sequence[Program], wide: WideProgram) -> None:
    """Both players give the same times."""
    expected, got = play(programs), play_wide(wide)
    assert got.ends_ns.T.tolist() == [list(ends) for ends in expected.ends_ns]
    in_order = find_launches(programs[0]) if programs else []
    assert got.carried_ns.tolist() == [list(expected.carried[launch.key]) for launch in in_order]


def wide_of(name: str) -> WideProgram:
    recorded = recorded_programs(sample_run(name))
    assert recorded is not None
    return widen(recorded.programs)


@given(st.data())
def test_against_the_event_player(data: st.DataObject) -> None:
    times = st.integers(0, 9)
    shape: list[Move] = []
    launched: list[str] = []
    queues = data.draw(st.booleans())
    for number in range(data.draw(st.integers(0, 12))):
        kind = data.draw(st.sampled_from(["launch", "wait", "mark", "end"]))
        if kind == "launch":
            launched.append(f"collective {number}")
            shape.append(Launch(launched[-1], data.draw(times), queues=queues))
        elif kind == "wait" and launched:
            shape.append(Wait(data.draw(st.sampled_from(launched))))
        else:
            shape.append(Mark("gradient") if kind == "mark" else End())
    programs = [
        [
            own
            for move in shape
            if not isinstance(move, Wait) or data.draw(st.booleans())  # some ranks pass
            for own in (
                Work(data.draw(times)),
                replace(move, wake_ns=data.draw(times)) if isinstance(move, Wait) else move,
            )
        ]
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    same(programs, widen(programs))


@given(st.data())
def test_each_rank_may_wait_in_its_own_order_for_what_does_not_queue(data: st.DataObject) -> None:
    times = st.integers(0, 9)
    programs: list[list[Move]] = [[] for _ in range(data.draw(st.integers(1, 4)))]
    launched: list[int] = []
    for _ in range(data.draw(st.integers(1, 3))):
        fresh = range(len(launched), len(launched) + data.draw(st.integers(1, 3)))
        launches = [Launch(key, data.draw(times), queues=data.draw(st.integers(0, 3)) == 0) for key in fresh]
        launched += fresh
        for program in programs:
            for launch in launches:
                program += (Work(data.draw(times)), launch)
            for key in data.draw(st.permutations(launched)):
                program += (Work(data.draw(times)), Wait(key, data.draw(times)))
            program.append(End())
    same(programs, widen(programs))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_runs_play_as_by_the_event_player(name: str) -> None:
    recorded = recorded_programs(sample_run(name))
    assert recorded is not None
    same([list(program) for program in recorded.programs], widen(recorded.programs))


@pytest.mark.parametrize("ranks", [1, 3, 64])
@pytest.mark.parametrize("skew", ["recorded", "lognormal"])
def test_ranks_that_were_drawn_play_as_by_the_event_player(ranks: int, skew: str) -> None:
    for name in ("bucketed", "zero2", "zero3"):
        program = draw_ranks(wide_of(name), ranks, skew=skew)  # type: ignore[arg-type]
        same(narrowed(program), program)


TWO_STEPS: list[Move] = [
    *(End(), Work(10), Launch("a", 5), Work(20), Wait("a", 1), End()),
    *(Work(30), Launch("b", 5), Work(40), Wait("b", 2), End()),
    *(Work(7), End()),
]


def test_a_drawn_rank_does_what_one_rank_did_in_a_step_with_these_moves() -> None:
    other = [Work(move.ns + 100) if isinstance(move, Work) else move for move in TWO_STEPS]
    work_ns = works_of(draw_ranks(widen([TWO_STEPS, other]), 500))
    assert [len({*row}) for row in work_ns.tolist()] == [1, 4, 4, 1, 4, 4, 1, 2]
    assert work_ns[:, :2].tolist() == widen([TWO_STEPS, other]).work_ns.tolist()  # those recorded stay
    pairs = {(10, 20), (30, 40), (110, 120), (130, 140)}  # together as they were recorded
    assert {*zip(*work_ns[1:3].tolist(), strict=True)} == pairs
    assert {*zip(*work_ns[4:6].tolist(), strict=True)} == pairs
    assert {*work_ns[7].tolist()} == {7, 107}
    assert not np.array_equal(work_ns[1], work_ns[4])


@given(st.data())
def test_further_ranks_play_as_those_drawn(data: st.DataObject) -> None:
    """Steps alike, in which each rank waits, or does not, for this and one of the last collectives."""
    times = st.integers(0, 9)
    waits = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    queues = data.draw(st.booleans())
    programs: list[list[Move]] = [[End()] for _ in range(2)]
    for number in range(len(waits) * 4):
        last = number % len(waits) == len(waits) - 1
        for program in programs:
            program += (Work(data.draw(times)), Launch(number, 5, queues=queues))
            for back in data.draw(st.permutations([0, waits[number % len(waits)]])):
                if data.draw(st.booleans()):
                    program += (Wait(max(number - back, 0), data.draw(times)), Work(data.draw(times)))
            program += (Work(data.draw(times)), *([End()] if last else []))
    same(with_further(programs, 6), draw_ranks(widen(programs), 6))


def test_a_further_rank_waits_again_only_for_what_its_step_launched() -> None:
    """Each last wait comes after one for a later collective, and does nothing."""
    first = (End(), Launch("a", 1), Launch("b", 1), Wait("b"), Wait("a"), End())
    second = (Launch("c", 1), Launch("d", 1), Wait("d"), Wait("c"))
    assert with_further([[*first, *second, Wait("b")]], 2)[1] == [*first, *second]


def test_drawn_ranks_share_what_was_recorded() -> None:
    program = wide_of("bucketed")
    few, many = (draw_ranks(program, ranks).work_ns for ranks in (64, 10_000))
    assert np.array_equal(few, many)


def test_the_same_is_drawn_each_time() -> None:
    first, again = (works_of(draw_ranks(wide_of("bucketed"), 50)) for _ in range(2))
    assert np.array_equal(first, again)


def test_a_fitted_distribution_has_the_moments_of_what_was_seen_and_goes_beyond_it() -> None:
    factors = [0.9, 0.95, 1.0, 1.0, 1.05, 1.2]
    seen = [[End(), Work(round(7e8 * factor)), Launch("a", 1), Work(round(3e8 * factor)), End()] for factor in factors]
    sums = draw_ranks(widen(seen), 40_000, skew="lognormal").work_ns.sum(axis=0)
    logs, expected = np.log(sums), np.log(np.array(factors) * 1e9)
    assert logs.mean() == pytest.approx(expected.mean(), abs=0.002)
    assert logs.std() == pytest.approx(expected.std(ddof=1), rel=0.02)
    assert sums.max() > 1.25e9
    assert works_of(draw_ranks(widen(seen), 500)).sum(axis=0).max() == pytest.approx(1.2e9)


def test_how_far_apart_ranks_begin_is_not_fitted() -> None:
    """Logarithms of nothing and of 5 ms would be drawn from 0 to years."""
    step = [End(), Work(10**9), Launch("a", 1), End(), Work(7), Launch("b", 1)]
    works = works_of(draw_ranks(widen([step, [Work(5_000_000), *step]]), 500, skew="lognormal"))
    assert {*works[0].tolist()} == {0, 5_000_000}
    assert {*works[-1].tolist()} == {7}


def test_other_times_of_collectives() -> None:
    program = retime_collectives(widen([TWO_STEPS]), lambda launch: launch.transfer_ns * 10)
    assert play_wide(program).carried_ns.tolist() == [[10, 60], [91, 141]]
    assert play_wide(program).spans_ns.tolist() == [[61], [82], [7]]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ([Launch("a", 1), Wait("a")], [Launch("b", 1), Wait("b")], "the same collectives"),
        ([Launch("a", 1)], [Launch("a", 2)], "the same collectives"),
        ([Launch("a", 1), Launch("b", 1)], [Launch("a", 1)], "the same collectives"),
        ([Launch("a", 1), End()], [End(), Launch("a", 1)], "the same collectives"),
        ([Wait("a")], [Wait("a")], "has not launched"),
    ],
)
def test_ranks_that_do_different_things_are_refused(first: list[Move], second: list[Move], problem: str) -> None:
    with pytest.raises(StuckError, match=problem):
        widen([first, second])


def test_more_ranks_wait_for_the_slowest() -> None:
    """The median step grows with the ranks, and ten thousand of them are played."""
    program = wide_of("bucketed")
    took = [float(np.median(play_wide(draw_ranks(program, ranks)).spans_ns)) for ranks in (2, 64, 10_000)]
    assert took == sorted(took)
