"""Kinds of steps, and from which step on a training has gone otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from made.watched import MS, eventful, step, write_watched

from overlaplab import analyses
from overlaplab.analyses.watched.changes import change_points
from overlaplab.analyses.watched.kinds import is_periodic, periodic_steps
from overlaplab.load.watched import load_watched


def noisy(count: int, seed: int = 0, spread: float = 0.05) -> npt.NDArray[np.float64]:
    return 100.0 * np.exp(np.random.default_rng(seed).normal(0, spread, count))


def differ(a: float, b: float) -> bool:
    return abs(b / a - 1) >= 0.1


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_change_and_single_long_steps_are_none(seed: int) -> None:
    values = noisy(500, seed, spread=0.3)
    values[np.random.default_rng(seed).choice(500, 5)] *= 20
    assert change_points(values, 20, 1e-6, differ) == []


@pytest.mark.parametrize("seed", range(5))
def test_changes_are_where_they_were_made(seed: int) -> None:
    values = noisy(1000, seed)
    values[300:] *= 1.3
    values[700:] *= 0.6
    assert change_points(values, 20, 1e-6, differ) == pytest.approx([300, 700], abs=3)


def test_a_change_too_small_to_matter_is_none() -> None:
    values = noisy(1000, spread=0.01)
    values[500:] *= 1.05
    assert change_points(values, 20, 1e-6, lambda a, b: abs(b / a - 1) >= 0.02) == pytest.approx([500], abs=3)
    assert change_points(values, 20, 1e-6, differ) == []


def test_the_cut_is_pettitts() -> None:
    """Against the definition: the sum over all pairs, before and after, of whether the later one is larger."""
    values = np.array([3.0, 1, 2, 2, 5, 9, 9, 8, 7, 9, 2, 8])

    def strength(place: int) -> float:
        return abs(float(np.sign(values[place:, None] - values[None, :place]).sum()))

    def cuts(shortest: int, max_chance: float) -> list[int]:
        return change_points(values, shortest, max_chance, lambda before, after: True)

    assert cuts(5, 2.0) == [max(range(5, 8), key=strength)]  # whose parts are too short for another
    assert max(range(2, 11), key=strength) in cuts(2, 2.0)
    assert cuts(7, 2.0) == cuts(2, 1e-9) == []


def spans(values: Any) -> pd.Series[Any]:
    return pd.Series(np.asarray(values, float))


def test_steps_that_are_longer_at_regular_distances_are_a_kind() -> None:
    values = noisy(1000)
    values[99::100] += 80
    values[7::250] += 300
    assert sorted(periodic_steps(spans(values))) == [(100, 99), (250, 7)]


def test_long_steps_by_chance_are_none() -> None:
    for seed in range(20):
        values = noisy(1000, seed)
        values[np.random.default_rng(seed).choice(1000, 30, replace=False)] *= 3
        assert periodic_steps(spans(values)) == []


def test_a_kind_begins_with_its_first_step() -> None:
    assert is_periodic(np.arange(8), [(3, 4)]).tolist() == [False] * 4 + [True, False, False, True]


def test_ordinary_steps_begin_with_the_first_of_them() -> None:
    times = spans([30 * MS if step % 10 == 0 else 10 * MS for step in range(100)])
    assert analyses.watched_kinds(times)["first_step"].tolist() == [1, 0]


def test_kinds_changes_and_late_ranks_of_a_training(tmp_path: Path) -> None:
    watched = load_watched(eventful(tmp_path))
    steps = analyses.watched_steps(watched)
    times, bursts = analyses.watched_step_times(steps), analyses.watched_bursts(watched, steps)
    late = analyses.watched_late(watched, times)
    kinds = analyses.watched_kinds(times)
    assert kinds["period"].tolist() == [pd.NA, 100]
    assert kinds["steps"].tolist() == [1980, 20]
    assert kinds["extra_ns"][1] == pytest.approx(60 * MS, rel=0.2)
    changes = analyses.watched_changes(bursts, late, times, kinds)
    assert changes["change"].tolist() == ["step time", "late rank", "step time"]
    assert changes["step"].tolist() == pytest.approx([1200, 1240, 1600], abs=3)
    assert changes["since_step"].tolist()[1] == 1142
    assert changes["rank"].tolist() == [pd.NA, 1, pd.NA]
    assert changes["after_ns"].tolist() == pytest.approx([58 * MS, 8 * MS, 73 * MS], rel=0.02)
    assert changes["exposed_before_ns"].tolist()[2] == 14 * MS  # half of the ranks 18, the other half 10
    ranks = analyses.watched_ranks(steps, bursts, late)
    assert ranks["late_share"].tolist() == [0.0, 24 / 60]
    assert ranks["late_median_ns"].isna().tolist() == [True, False]
    assert ranks["late_median_ns"][1] == pytest.approx(8 * MS, rel=0.02)
    assert ranks["exposed_gradients_ns"].tolist() == [10 * MS, 10 * MS]
    assert ranks["exposed_gathers_ns"].isna().all()


def test_profiled_steps_are_no_change(tmp_path: Path) -> None:
    cells = [cell for n in range(200) for cell in step(n, 10 * MS if n < 100 else 50 * MS, flags=0 if n < 100 else 2)]
    watched = load_watched(write_watched(tmp_path, cells))
    steps = analyses.watched_steps(watched)
    times, bursts = analyses.watched_step_times(steps), analyses.watched_bursts(watched, steps)
    late = analyses.watched_late(watched, times)
    kinds = analyses.watched_kinds(times)
    assert analyses.watched_changes(bursts, late, times, kinds).empty
    assert kinds["steps"].tolist() == [100]


def test_of_nothing_there_are_empty_tables(tmp_path: Path) -> None:
    watched = load_watched(write_watched(tmp_path, []))
    steps = analyses.watched_steps(watched)
    times, bursts = analyses.watched_step_times(steps), analyses.watched_bursts(watched, steps)
    late = analyses.watched_late(watched, times)
    kinds = analyses.watched_kinds(times)
    for table in (steps, late, kinds, analyses.watched_changes(bursts, late, times, kinds)):
        assert table.empty
    assert analyses.watched_series(times, kinds, bursts).empty
    assert analyses.watched_strip(watched, late, [0]).empty
    assert analyses.watched_ranks(steps, bursts, late).empty
