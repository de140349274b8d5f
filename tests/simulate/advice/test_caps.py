"""Every cap that makes a difference: against trying many caps one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import sample_run

import overlaplab
from overlaplab.findings import advice_refused
from overlaplab.manifest import LinkStep, MachineStep, Manifest
from overlaplab.simulate.advice import caps
from overlaplab.simulate.advice.caps import (
    MIB,
    best_cap,
    cap_for,
    cap_ranges,
    caps_played,
    disturbed,
    first_caps_played,
    recutting,
)
from overlaplab.simulate.advice.depths import best_depth, depths_played
from overlaplab.simulate.changes import assign
from overlaplab.simulate.player import play

SAMPLES = Path(__file__).parents[3] / "traces"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_between_two_cliffs_all_caps_give_the_same_buckets(sizes: list[int]) -> None:
    order = list(range(len(sizes)))
    found = [own.buckets for own in cap_ranges(order, dict(enumerate(sizes)))]
    tried = [assign(order, dict(enumerate(sizes)), [cap]) for cap in range(1, sum(sizes) + 2)]
    distinct = [tuple(map(tuple, buckets)) for buckets in tried]
    assert found == [one for place, one in enumerate(distinct) if place == 0 or one != distinct[place - 1]]
    assert len(found[-1]) == 1


@given(st.lists(st.integers(1, 1 << 22), min_size=1, max_size=6))
def test_the_cap_of_a_range_gives_its_buckets(sizes: list[int]) -> None:
    """As the engine and DDP read it: a number of MiB, its bytes rounded down."""
    order = list(range(len(sizes)))
    for own in cap_ranges(order, dict(enumerate(sizes))):
        given_cap = int(float(f"{own.cap_mb:.17g}") * MIB)
        assert tuple(map(tuple, assign(order, dict(enumerate(sizes)), [given_cap]))) == own.buckets


@pytest.mark.parametrize(
    ("least", "most", "cap"),
    [
        (MIB - 1, MIB, 1.0),
        (int(1.05 * MIB), int(1.126 * MIB), 1.1),
        (int(1.121 * MIB), int(1.126 * MIB), 1.125),
        (int(6.58 * MIB), int(13.16 * MIB), 10.0),
        (1, 1, 1 / MIB),
    ],
)
def test_a_cap_has_the_fewest_digits(least: int, most: int, cap: float) -> None:
    assert cap_for(least, most) == pytest.approx(cap, rel=1e-9)


def test_the_sweeps_recordings_agree_on_the_best_cap() -> None:
    """Whatever cap was recorded: 1.2 MiB, where six buckets of about a layer become five, a cliff of 2 %."""
    for name in ("cap-0.25", "cap-1", "cap-4", "cap-25"):
        run = sample_run(f"sweep/{name}")
        best = best_cap(run, caps_played(run))
        assert best is not None
        assert best.caps_mb == (1.2,)
        assert len(best.buckets) == 5


def test_a_played_cap_takes_as_long_as_its_programs() -> None:
    run = sample_run("sweep/cap-4")
    cut = recutting(run)
    assert cut is not None
    own = caps_played(run)[20]
    played = play(cut.programs(cut.cut(*own.caps_mb)))
    assert own.spans_ns.tolist() == [played.spans_ns(rank) for rank in range(2)]


def test_where_all_caps_would_take_long_the_best_are_still_played(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SAMPLES / "sweep" / "cap-25"
    every = overlaplab.load_run(folder)
    best = best_cap(every, caps_played(every))
    monkeypatch.setattr(caps, "_MOST_MOVES", 4_000)
    some = overlaplab.load_run(folder)
    assert 0 < len(caps_played(some)) < len(caps_played(every)) / 4
    assert best is not None
    assert best.caps_mb in [own.caps_mb for own in caps_played(some)]


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
    cut = recutting(sample_run("sweep/cap-4"))
    assert cut is not None
    assert replace(cut, measured=measured, sent={"a": 30, "b": 120}).knows(buckets) is known


def test_what_is_unknown_is_not_played_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = overlaplab.load_run(SAMPLES / "sweep" / "cap-4")
    monkeypatch.setattr(caps.Recutting, "knows", lambda *_: False)
    assert caps_played(run) == ()
    refused = advice_refused(run)
    assert refused is not None
    assert "more than twice, or less than half" in refused[0]


def test_first_buckets_are_smaller_than_the_others() -> None:
    run = sample_run("sweep/cap-4")
    played = first_caps_played(run, 4.0)
    firsts = [own.caps_mb[0] for own in played]
    assert firsts == sorted(firsts)
    assert all(own.caps_mb[1] == 4.0 and own.caps_mb[0] <= 4.0 for own in played)
    assert [len(own.buckets[0]) for own in played] == list(range(1, len(played) + 1))


def test_a_deeper_prefetch_gains_where_gathers_were_late() -> None:
    late, ahead = (sample_run(name) for name in ("zero3-serial", "zero3"))
    best = best_depth(late)
    assert best is not None
    assert best.prefetch >= 1
    gained = {run.path: _gain(run) for run in (late, ahead)}
    assert gained[late.path] > 5 * max(gained[ahead.path], 0.001)
    assert best_depth(sample_run("bucketed")) is None


def _gain(run: overlaplab.Run) -> float:
    """Of a step, by the best depth."""
    spans = overlaplab.summary(run)["span_ns"].sum()
    return max((1 - own.spans_ns.sum() / spans for own in depths_played(run)), default=0.0)


def test_disturbed_steps_do_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    run = overlaplab.load_run(SAMPLES / "sweep" / "cap-4")
    first, second = (np.array([[own] * 5, [own] * 5]) for own in (100, 90))
    first[:, 4] = 1
    played = [caps.CapPlayed(caps_mb=(cap,), buckets=(("a",),), spans_ns=own) for cap, own in ((1, first), (2, second))]
    chosen = []
    for steps in ([True] * 5, [True] * 4 + [False]):
        monkeypatch.setattr(caps, "undisturbed_steps", lambda _, steps=steps: np.array(steps))
        chosen.append(best_cap(run, played))
    assert [own.caps_mb for own in chosen if own is not None] == [(1,), (2,)]


def test_steps_are_disturbed_by_other_processes_and_by_a_late_link() -> None:
    busy = [MachineStep(rank=0, step=step, took_ns=100, cores=2, busy=step == 4) for step in (3, 4, 5)]
    late = [
        LinkStep(rank=0, step=step, modelled_ns=100, occupied_ns=own, latest_ns=0) for step, own in ((3, 101), (5, 120))
    ]
    manifest = Manifest(format_version=1, world_size=1, machine=tuple(busy), link_steps=tuple(late))
    assert disturbed(manifest) == {4, 5}
    assert disturbed(None) == set()
