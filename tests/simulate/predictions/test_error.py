"""How far predictions may be off."""

from __future__ import annotations

import json
from itertools import combinations
from math import hypot, pi, sqrt
from pathlib import Path
from statistics import NormalDist, fmean, stdev

import pytest
from msgspec.structs import replace
from samples import sample_run

from overlaplab.events import Run
from overlaplab.manifest import Link, Manifest
from overlaplab.simulate.player import End, Launch
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.error import (
    DIFFERENCES_MISS,
    REPEATS_DIFFER,
    Interval,
    extrapolations,
    gain_half_ns,
    interval,
    measured_steps,
    prediction_interval,
    recorded_caps,
    repeats_deviation,
)
from overlaplab.simulate.predictions.what_if import steps_by_cap
from overlaplab.simulate.programs.setting import Setting

SWEEP = Path(__file__).parents[3] / "traces" / "sweep"


def _sweep() -> list[list[float]]:
    by_cap: dict[float, list[float]] = {}
    for file in SWEEP.glob("*/run.json"):
        run = json.loads(file.read_text())
        by_cap.setdefault(run["bucket_cap_mb"], []).append(fmean(row["took_ns"] for row in run["link_steps"]))
    return list(by_cap.values())


def test_the_sample_sweeps_own_repeats_widen_the_prior() -> None:
    pairs = [pair for times in _sweep() for pair in combinations(times, 2)]
    assert len(pairs) == 24
    assert fmean(2 * abs(a - b) / (a + b) for a, b in pairs) == pytest.approx(0.056, abs=0.001)
    assert repeats_deviation(_sweep()) > 1.5 * repeats_deviation()


def test_the_parts_add_up_as_squares() -> None:
    found = interval(200.0, [100.0, 110.0, 90.0], [101.0, 111.0, 91.0])
    assert found.steps_ns == round(4.303 * 10 / sqrt(3) * 2)  # Student's t with two degrees of freedom
    assert found.recordings_ns == round(1.96 * sqrt(2) * 200 * REPEATS_DIFFER * sqrt(pi) / 2)
    assert found.model_ns == 4  # off by 1 in the mean and 1 in each step, at twice the step
    assert found.half_ns == round(hypot(found.steps_ns, found.recordings_ns, found.model_ns))


def test_a_single_step_has_no_spread() -> None:
    assert interval(100.0, [100.0], [100.0]).steps_ns == 0


def test_repeats_that_agree_narrow_the_interval_and_others_widen_it() -> None:
    prior = repeats_deviation()
    assert prior == pytest.approx(REPEATS_DIFFER * sqrt(pi) / 2)
    assert repeats_deviation([[100.0]]) == prior
    calm, wild = [[100.0, 100.0, 100.0, 100.0]] * 4, [[80.0, 120.0] * 2] * 4
    assert repeats_deviation(calm) == pytest.approx(prior / 2)  # the prior weighs 4, they weigh 12
    own = stdev(wild[0]) / 100
    assert repeats_deviation(wild) == pytest.approx(sqrt((4 * prior**2 + 12 * own**2) / 16))


def test_students_t_meets_its_table_beyond_it() -> None:
    """With 11 steps (10 degrees of freedom) by the table, with 12 by the expansion: no jump."""
    steps = [100e6, 104e6] * 6
    by_table = interval(fmean(steps[:11]), steps[:11], steps[:11]).steps_ns * sqrt(11) / stdev(steps[:11])
    by_expansion = interval(fmean(steps), steps, steps).steps_ns * sqrt(12) / stdev(steps)
    assert by_table > by_expansion > NormalDist().inv_cdf(0.975)


def test_what_a_setting_extrapolates() -> None:
    link = Link(emulated=True, bandwidth_gbps=1.0, latency_us=500.0, world_size=2)
    manifest = Manifest(format_version=1, world_size=2, link=link)
    near, far = ([Launch("a", 1, bytes=size), End()] for size in (1000, 250))
    assert extrapolations(manifest, Setting(), near, near) == {}
    asked = Setting(ranks=5, link=replace(link, bandwidth_gbps=0.4, latency_us=1000.0))
    assert extrapolations(manifest, asked, near, far) == {"bandwidth": 2.5, "ranks": 2.5}, "the link's formula tells T"
    without_link = Manifest(format_version=1, world_size=2)
    assert extrapolations(without_link, Setting(ranks=5), near, far) == {"bytes": 4.0, "ranks": 2.5}


def test_gains_do_not_depend_on_how_recordings_differ() -> None:
    sure = Interval(steps_ns=10**6, recordings_ns=10**8, model_ns=3_000_000)
    assert gain_half_ns(10**8, 10**8, sure) == round(hypot(3e6, NormalDist().inv_cdf(0.975) * DIFFERENCES_MISS * 1e8))
    assert gain_half_ns(10**8, 5 * 10**7, sure) > gain_half_ns(10**8, 10**8, sure), (
        "the model's share of a shorter step"
    )


def test_predicted_differences_miss_recorded_ones_by_what_is_said() -> None:
    """Of traces/sweep: from each cap's first recording to the mean of the others' four."""
    runs = {file.name: sample_run(file) for file in sorted(SWEEP.iterdir())}
    manifests = [run.manifest for run in runs.values() if run.manifest]
    means = recorded_caps(manifests[0], manifests).groupby("bucket_cap_mb")["step_ns"].mean()
    missed = [row for cap in means.index for row in _missed(runs[f"cap-{cap:g}"], cap, dict(means))]
    assert len(missed) == 12
    assert sqrt(fmean(miss**2 for miss in missed)) == pytest.approx(DIFFERENCES_MISS, abs=0.001)


def _missed(run: Run, own: float, means: dict[float, float]) -> list[float]:
    """The predicted less the recorded difference between the run's cap and each other, as shares of its step."""
    table = steps_by_cap(run, Question(setting=Setting()), [cap for cap in means if cap != own])
    step_ns = fmean(measured_steps(run))
    return [row["step_ns"] / step_ns - means[row["bucket_cap_mb"]] / means[own] for row in table.to_dict("records")]


def test_recorded_caps_are_told_by_run_json_alone() -> None:
    own = sample_run("sweep/cap-1").manifest
    other = sample_run("sweep/cap-4").manifest
    assert own is not None
    assert other is not None
    naive = replace(own, raw=own.raw | {"strategy": "naive"})
    table = recorded_caps(own, [own, other, naive, replace(own, link_steps=None, machine=None)])
    assert table["bucket_cap_mb"].tolist() == [1.0, 4.0]
    expected = [fmean(measured_steps(sample_run(f"sweep/{name}"))) for name in ("cap-1", "cap-4")]
    assert table["step_ns"].tolist() == pytest.approx(expected, rel=0.005)
    assert recorded_caps(Manifest(format_version=1, world_size=2), []).empty


def test_what_is_extrapolated_widens_the_interval_and_the_gains() -> None:
    """By 1.4 % of the predicted step for each doubling."""
    run = sample_run("sweep/cap-1")
    measured = measured_steps(run)
    caps = recorded_caps(run.manifest, []) if run.manifest else None
    assert caps is not None
    near, far = (
        prediction_interval(run, 1e9, measured, caps, beyond) for beyond in ({}, {"ranks": 8.0, "latency": 4.0})
    )
    assert near.extrapolation_ns == 0
    assert far.extrapolation_ns == pytest.approx(1.96 * 0.014 * (3 + 2) * 1e9, rel=1e-3)
    assert far.half_ns**2 == pytest.approx(near.half_ns**2 + far.extrapolation_ns**2, rel=1e-6)
    assert gain_half_ns(1e9, 1e9, far) > gain_half_ns(1e9, 1e9, near)
