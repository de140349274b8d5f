"""Other caps and prefetch depths of runs on GPUs, for the page What if: the figures of `predict`."""

from __future__ import annotations

import pandas as pd
import pytest
from made.ddp import ddp_ranks
from made.fsdp import fsdp
from made.traces import run_of
from samples import sample_run

from overlaplab import Run
from overlaplab.sections.what_if import what_if_parts
from overlaplab.simulate import gains
from overlaplab.simulate.predictions import device_answers, what_if
from overlaplab.simulate.predictions.answer import DEPTHS, Question, interval
from overlaplab.simulate.predictions.device import device_lanes
from overlaplab.simulate.predictions.error import gain_half_ns
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.predictions.trace_event import COMPUTES, LINK, Event
from overlaplab.simulate.programs.setting import Setting
from overlaplab.words import ms

MIB = 1 << 20
NONE_RECORDED = pd.DataFrame({"bucket_cap_mb": [], "step_ns": []}, dtype="float64")


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("ddp"), *ddp_ranks([2 * MIB]), backend="nccl")


@pytest.fixture(scope="module")
def fsdp2(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rank = fsdp(0, host_us=450, steps=2)
    return run_of(tmp_path_factory.mktemp("fsdp2"), rank, rank, backend="nccl")


@pytest.mark.parametrize(
    ("run", "what", "settings"),
    [
        ("ddp", "bucket_cap_mb", [Setting(), Setting(bucket_cap_mb=5.0), Setting(bucket_cap_mb=64.0)]),
        ("fsdp2", "prefetch", [Setting(), Setting(prefetch=2)]),
    ],
)
def test_figures_are_those_of_predict(
    run: str, what: str, settings: list[Setting], request: pytest.FixtureRequest
) -> None:
    own = request.getfixturevalue(run)
    assert device_answers.option_or_why(own) == what
    for setting in settings:
        found, expected = what_if.answer(own, Question(setting=setting)), predict(own, setting)
        assert found.step_ns == expected.step_ns
        assert interval(own, found, NONE_RECORDED) == expected.interval
        assert found.times_as_far == expected.times_as_far


def test_curves(ddp: Run, fsdp2: Run) -> None:
    caps = what_if.steps_by_cap(ddp, Question(setting=Setting()), [1.0, 64.0])
    expected = [predict(ddp, Setting(bucket_cap_mb=cap)).step_ns for cap in (1.0, 64.0)]
    assert (caps["bucket_cap_mb"].tolist(), caps["step_ns"].tolist()) == ([1.0, 64.0], expected)
    assert expected[0] < expected[1]
    depths = what_if.steps_by_depth(fsdp2, Question(setting=Setting()), DEPTHS)
    assert depths["prefetch"].tolist() == [1, 2, 3, 4]
    assert depths["step_ns"].iloc[0] < predict(fsdp2, Setting()).step_ns


def test_a_gain_is_as_certain_as_predict_says(ddp: Run) -> None:
    """By the recorded step, not by the predicted one."""
    setting = Setting(bucket_cap_mb=64.0)
    expected = predict(ddp, setting)
    parts = what_if_parts(ddp, Question(setting=setting), NONE_RECORDED, None)
    half_ns = gain_half_ns(expected.recorded_step_ns, expected.step_ns, expected.interval)
    assert half_ns != gain_half_ns(expected.step_ns, expected.step_ns, expected.interval)
    assert any(f"lies within ± {ms(half_ns)}" in note for note in parts.notes), parts.notes


def test_an_extrapolated_cap_is_as_uncertain_as_predict_says() -> None:
    """The sample has one bucket, so other caps send messages whose sizes lie far from any recorded one."""
    run = sample_run("h100/loops/one-bucket")
    advised = gains(run).set_index("remedy").loc["cap"]
    expected = predict(run, Setting(bucket_cap_mb=advised["setting"]))
    assert expected.interval.extrapolation_ns > 0
    assert advised["half_ns"] == gain_half_ns(expected.recorded_step_ns, expected.step_ns, expected.interval)


def test_a_setting_is_played_once(ddp: Run) -> None:
    question = Question(setting=Setting(bucket_cap_mb=3.0))
    assert what_if.answer(ddp, question) is what_if.answer(ddp, question)


def test_lanes_in_literals() -> None:
    """The second step, of 100 µs: a pause of 0.01 µs is drawn, and the link exposed in it; a shorter one is neither."""
    events = [
        Event(COMPUTES, "ProfilerStep#1", 0, 50_000),
        Event(COMPUTES, "predicted::a", 0, 50_000),
        Event(COMPUTES, "ProfilerStep#2", 50_000, 150_000),
        Event(COMPUTES, "predicted::a", 50_000, 70_000),
        Event(COMPUTES, "predicted::b", 70_009, 90_000),
        Event(LINK, "engine::comm seq=0 kind=all_reduce dtype=float32 bytes=4 group=0", 60_000, 120_000),
        Event(COMPUTES, "predicted::c", 90_010, 92_000),
        Event(COMPUTES, "predicted::c", 130_000, 150_000),
    ]
    assert device_lanes(events, 1).values.tolist() == [
        ["rank", "", False, 0, 40_000],
        ["rank", "", False, 40_010, 42_000],
        ["rank", "", False, 80_000, 100_000],
        ["link", "all_reduce", False, 10_000, 40_000],
        ["link", "all_reduce", False, 40_010, 42_000],
        ["link", "all_reduce", True, 40_000, 40_010],
        ["link", "all_reduce", True, 42_000, 70_000],
    ]
