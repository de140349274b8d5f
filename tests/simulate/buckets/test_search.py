"""The best buckets: against playing all caps, all cuttings of a small run, and a bound that none falls below."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest
from cuttings import cuttings
from msgspec.structs import replace
from samples import TRACES, sample_run

import overlaplab
from overlaplab.findings import advice_refused
from overlaplab.folders import run_folders
from overlaplab.manifest import strategy_traits
from overlaplab.simulate import advise, best_cap_mb, bound, gains, remedies
from overlaplab.simulate.buckets import search as module
from overlaplab.simulate.buckets.least import least_steps
from overlaplab.simulate.buckets.search import BucketSearch, bucket_search
from overlaplab.simulate.player import End, Launch, Mark, Move, Wait, Work, play
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.buckets import Recutting, find_recutting
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.without_buckets import without_buckets
from overlaplab.simulate.recorded import Recorded
from overlaplab.simulate.undisturbed import TIE, undisturbed_spans_ns

SAMPLES = sorted(
    os.path.relpath(folder, TRACES)
    for room in (TRACES, TRACES / "sweep", TRACES / "course", TRACES / "ddp-lessons")
    for folder in run_folders(room)
)


def search_of(name: str) -> BucketSearch:
    search = bucket_search(sample_run(name))
    assert search is not None
    return search


@pytest.mark.parametrize("name", SAMPLES)
def test_bound_best_found_and_every_cap_are_in_order(name: str) -> None:
    """The best cap is chosen as if all had been played; the gap between bound and best found is little."""
    run = sample_run(name)
    assert remedies(run)["gain_ns"].notna().all()  # which are played for every summary
    search = bucket_search(run)
    if search is None:
        return
    played = search.play_candidates(search.caps)
    assert search.best_found is not None
    assert search.best_cap is not None
    shortest = min(each.mean_ns for each in played)
    tied = [each for each in played if each.mean_ns <= shortest * (1 + TIE)]
    assert search.best_cap.mean_ns <= shortest * (1 + TIE)
    assert len(search.best_cap.buckets) == min(len(each.buckets) for each in tied)
    assert search.least_ns <= search.best_found.mean_ns <= shortest
    recorded_ns = undisturbed_spans_ns(run).mean()
    programs = search.cut.recorded.programs
    alone = all(move.role for program in programs for move in program if isinstance(move, Launch))
    most = 0.01 if alone else 0.035  # it leaves out waking up, and that other collectives queue behind buckets
    assert search.best_found.mean_ns - search.least_ns <= most * recorded_ns
    table = bound(run)
    assert (table["least_ns"] <= table["found_ns"]).all()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_cap_has_one_figure_whoever_is_asked(name: str) -> None:
    """The best cap's mean step: by `gains`, `predict`, What if and `advise`, to the nanosecond."""
    run, search = sample_run(name), bucket_search(sample_run(name))
    if search is None or search.best_cap is None:
        return
    cap_mb = search.best_cap.caps_mb[-1]
    expected = round(search.best_cap.mean_ns)
    table = gains(run)
    assert table[table["remedy"] == "cap"]["step_ns"].tolist() == [expected]
    rows = advise(run)
    row = rows[(rows["option"] == "cap") & rows["best"]].iloc[0]
    assert (row["bucket_cap_mb"], row["step_ns"]) == (cap_mb, expected)
    assert run.manifest is not None
    if (traits := strategy_traits(run.manifest)) is not None and traits.buckets:
        setting = Setting(bucket_cap_mb=cap_mb)
        assert predict(run, setting).step_ns == expected
        assert what_if.answer(run, Question(setting=setting)).step_ns == expected


def test_the_sweeps_recordings_agree_on_the_best_cap() -> None:
    """Whatever cap was recorded: 1.2 MiB, where six buckets of about a layer become five, a cliff of 2 %."""
    for name in ("cap-0.25", "cap-1", "cap-4", "cap-25"):
        best = search_of(f"sweep/{name}").best_cap
        assert best is not None
        assert best.caps_mb == (1.2,)
        assert len(best.buckets) == 5


def test_a_played_cap_takes_as_long_as_its_programs() -> None:
    search = search_of("sweep/cap-4")
    own = search.play_candidates(search.caps)[20]
    played = play(search.cut.programs(search.cut.cut(*(int(cap * (1 << 20)) for cap in own.caps_mb))))
    assert own.spans_ns.tolist() == [played.spans_ns(rank) for rank in range(2)]


def test_the_recorded_buckets_take_as_long_as_they_took() -> None:
    run, search = sample_run("sweep/cap-4"), search_of("sweep/cap-4")
    assert search.cut.buckets is not None
    assert search.cut.spans_ns(search.cut.buckets).mean() == pytest.approx(
        overlaplab.summary(run)["span_ns"].mean(), rel=1e-3
    )


def test_where_all_caps_would_take_long_the_best_are_still_played(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of("sweep/cap-25")
    every = search.play_candidates(search.caps)
    monkeypatch.setattr(module, "_MAX_MOVES", 4_000)
    some = search.play_candidates(search.caps)
    assert 0 < len(some) < len(every) / 4
    assert min(each.mean_ns for each in some) == min(each.mean_ns for each in every)


@pytest.mark.parametrize(
    ("measured", "buckets", "known"),
    [
        (None, [("a",), ("b",)], True),  # by the link's formula
        ((60, 60), [("a",), ("b",)], True),  # of 30 and 120 bytes
        ((59, 59), [("a",), ("b",)], False),  # 120 are more than twice as many
        ((61, 61), [("a",), ("b",)], False),  # 30 are less than half
        ((75, 75), [("a", "b")], True),
    ],
)
def test_transfers_far_from_those_measured_are_unknown(
    measured: tuple[int, int] | None, buckets: list[tuple[str, ...]], known: bool
) -> None:
    assert replace(search_of("sweep/cap-4").cut, measured=measured, sent={"a": 30, "b": 120}).knows(buckets) is known


def test_what_is_unknown_is_not_played_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = overlaplab.load_run(TRACES / "sweep" / "cap-4")
    monkeypatch.setattr(Recutting, "knows", lambda *_: False)
    assert best_cap_mb(run) is None
    assert not advise(run)["replayed"].any()
    refused = advice_refused(run)
    assert refused is not None
    assert "more than twice, or less than half" in refused[0]


def test_first_buckets_are_smaller_than_the_others() -> None:
    search = search_of("sweep/cap-4")
    played = search.play_candidates(search.first_caps(4.0))
    firsts = [own.caps_mb[0] for own in played]
    assert firsts == sorted(firsts)
    assert all(own.caps_mb[1] == 4.0 and own.caps_mb[0] <= 4.0 for own in played)
    assert [len(own.buckets[0]) for own in played] == list(range(1, len(played) + 1))
    smaller = search.best_first_cap(4.0, 1.0)
    assert smaller is not None
    assert smaller.caps_mb[0] < 1.0


def test_disturbed_steps_do_not_choose() -> None:
    """The last step is disturbed: it alone would have one bucket for all."""
    search = search_of("sweep/cap-4")
    steps = search.least.spans_ns.shape[1]
    chosen = [BucketSearch(search.least, np.arange(steps) == step).best_found for step in range(steps)]
    assert len({own.mean_ns for own in chosen if own is not None}) == steps


NAMES = "abcde"


def small(works: list[list[int]], sizes: list[int], other_ns: int, host_ns: int) -> Recutting:
    """Two ranks with these works before each gradient, and another collective after the second, waited for at once."""
    programs: list[list[Move]] = []
    for rank in works:
        moves: list[Move] = [End(), Work(30), Mark("backward")]
        for place, (name, ns) in enumerate(zip(NAMES, rank, strict=True)):
            moves += [Work(ns), Mark("gradient", name)]
            if place == 1 and other_ns:
                moves += [Launch("other", other_ns), Wait("other")]
        programs.append([*moves, Mark("backward_end"), Work(25), End()])
    recorded = Recorded(programs=tuple(map(tuple, programs)), gradients={}, displaced=lambda _kind, _size: 0)
    known = dict(zip(NAMES, sizes, strict=True))
    return Recutting(
        recorded=recorded,
        buckets=None,
        alone=without_buckets(recorded.programs),
        order=tuple(NAMES),
        sizes=known,
        sent=known,
        takes=lambda size: 7 + size,
        measured=None,
        host_ns=host_ns,
        displaces=lambda _size: 0,
        wake_ns=2,
    )


@pytest.mark.parametrize("host_ns", [0, 3])
@pytest.mark.parametrize("other_ns", [0, 12])
@pytest.mark.parametrize(
    ("works", "sizes"),
    [
        ([[20, 20, 20, 20, 20]] * 2, [10, 20, 30, 10, 40]),
        ([[10, 10, 10, 10, 10], [30, 5, 40, 1, 20]], [5, 50, 5, 50, 5]),
        ([[1, 1, 1, 1, 1], [2, 2, 2, 2, 2]], [40, 1, 1, 1, 1]),
    ],
)
def test_of_a_small_run_no_cutting_is_below_the_bound_nor_much_below_the_best_found(
    works: list[list[int]], sizes: list[int], other_ns: int, host_ns: int
) -> None:
    cut = small(works, sizes, other_ns, host_ns)
    least = least_steps(cut)
    assert least is not None
    search = BucketSearch(least, np.array([True]))
    spans = []
    for counts in cuttings(len(NAMES)):
        edges = np.cumsum((0, *counts)).tolist()
        buckets = tuple(tuple(NAMES[begin:end]) for begin, end in pairwise(edges))
        played = cut.spans_ns(buckets)
        assert (least.spans_ns <= played).all()
        assert least.spans_with_ns(buckets).mean() <= played.mean()
        spans.append(played.mean())
    assert search.best_found is not None
    assert search.least_ns <= min(spans) <= search.best_found.mean_ns
    if not other_ns:  # nothing else is on the link
        assert min(spans) == search.best_found.mean_ns
        assert min(spans) - cut.wake_ns <= search.least_ns


@pytest.mark.parametrize("latency", [0, 12, 24])
@pytest.mark.parametrize("works", [[[20, 20, 20, 20, 20]] * 2, [[1, 1, 1, 1, 1], [2, 2, 2, 2, 2]]])
def test_of_one_recorded_size_no_latency_is_below_the_bound(works: list[list[int]], latency: int) -> None:
    """All buckets took 24 ns: latency, bandwidth, or both."""
    sizes = [12] * 5
    recorded = replace(small(works, sizes, 0, 3), takes=lambda size: 2 * size, measured=(12, 12))
    truth = replace(recorded, takes=lambda size: latency + size * (24 - latency) // 12)
    least = least_steps(recorded)
    assert least is not None
    spans = []
    for counts in cuttings(len(NAMES)):
        edges = np.cumsum((0, *counts)).tolist()
        spans.append(truth.spans_ns(tuple(tuple(NAMES[begin:end]) for begin, end in pairwise(edges))))
    assert all((least.spans_ns <= played).all() for played in spans)
    if latency == 24:
        assert least.spans_ns.mean() >= min(played.mean() for played in spans) - recorded.wake_ns


def test_behind_a_slower_link_other_buckets_are_best() -> None:
    run = sample_run("sweep/cap-4")
    assert run.manifest is not None
    assert run.manifest.link is not None
    slower = bucket_search(run, replace(run.manifest.link, latency_us=20_000.0))
    usual = bucket_search(run, run.manifest.link)
    assert slower is not None
    assert usual is bucket_search(run)
    assert slower.best_found is not None
    assert usual is not None
    assert usual.best_found is not None
    assert len(slower.best_found.buckets) < len(usual.best_found.buckets)
    assert slower.best_found.mean_ns > usual.best_found.mean_ns


def test_without_gradients_in_buckets_there_is_nothing_to_search() -> None:
    assert find_recutting(sample_run("zero3")) is None
    assert bucket_search(sample_run("zero3")) is None
