"""Runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.traces import gloo, op, run_of, step

import overlaplab
from overlaplab import OverlaplabError, Run
from overlaplab.analyses import parse_condition, scalars
from overlaplab.findings import describe_settings, no_fastest


def run_with_steps(folder: Path, *lengths_ms: float, **manifest: Any) -> Run:
    events: list[dict[str, Any]] = []
    at = 0.0
    for number, length in enumerate(lengths_ms):
        us = 1000 * length
        events += [step(number, at, at + us), op("mm", at, at + us / 2), gloo(at + us / 4, at + us * 3 / 4)]
        at += us
    return run_of(folder, events, manifest=manifest)


def test_medians_and_spread_are_over_every_step(tmp_path: Path) -> None:
    link = {"emulated": True, "bandwidth_gbps": 1, "latency_us": 200, "world_size": 2}
    run = run_with_steps(tmp_path, 10, 12, 20, bucket_cap_mb=5, link=link)
    (row,) = overlaplab.compare([run]).to_dict("records")
    assert row == {
        "path": str(tmp_path),
        "strategy": "bucketed",
        "bucket_cap_mb": 5,
        "ranks": 1,
        "steps": 3,
        "step_ms_median": 12,
        "step_ms_iqr": 5,
        "exposed_ms_median": 3,
        "exposed_ms_iqr": 1.25,
        "exposed_wait_ms_median": 0,
        "exposed_wait_ms_iqr": 0,
        "exposed_transfer_ms_median": 3,
        "exposed_transfer_ms_iqr": 1.25,
        "comm_ms_median": 6,
        "comm_ms_iqr": 2.5,
        "compute_ms_median": 6,
        "compute_ms_iqr": 2.5,
        "overlap_ratio": 0.5,
        "fastest": False,
        "emulated": True,
        "predicted": False,
        **dict.fromkeys(("sent_bytes", "theory_sent_bytes", "memory_bytes", "theory_memory_bytes", "model")),
        **dict.fromkeys(("peak_memory_bytes", "activation_bytes", "recompute_ms")),
        "phantoms": 0,
        "spread_ms": 10,
        "recording_of": 0,
        "tier": 1,
    }


@pytest.mark.parametrize(
    ("steps", "fastest"),
    [
        (((10, 10, 11), (20, 20, 21)), [True, False]),
        (((20, 20, 21), (10, 10, 11)), [False, True]),
        (((10, 14, 18), (12, 15, 18)), [False, False]),
        (((10, 10, 10), (20, 20, 20), (10, 10, 10)), [False, False, False]),
    ],
)
def test_only_a_lead_beyond_the_spread_makes_fastest(
    tmp_path: Path, steps: tuple[tuple[float, ...], ...], fastest: list[bool]
) -> None:
    runs = [run_with_steps(tmp_path / str(i), *lengths) for i, lengths in enumerate(steps)]
    assert overlaplab.compare(runs)["fastest"].tolist() == fastest


LARGE, SMALL = ({"model": {"layers": layers, "dtype": "float32"}} for layers in (8, 2))
HALF = {"model": {"layers": 8, "dtype": "bfloat16"}}
FAST, SLOW, WIDE, SHORT = (10, 10, 10), (20, 20, 20), (5, 20, 40), (10, 10)


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([(FAST, LARGE), (SLOW, LARGE)], None),
        ([(FAST, LARGE), (SLOW, HALF)], None),
        ([(FAST, LARGE), (SLOW, {})], None),  # of a model that nobody knows
        ([(FAST, LARGE)], None),
        ([(FAST, SMALL), (SLOW, LARGE)], "different models, not comparable"),
        ([(SHORT, LARGE), (SLOW, LARGE)], "too few steps to show a difference (fewer than 3 in a run)"),
        ([(FAST, LARGE), (WIDE, LARGE)], "no clear difference"),
    ],
)
def test_why_none_is_fastest(
    tmp_path: Path, runs: list[tuple[tuple[float, ...], dict[str, Any]]], why: str | None
) -> None:
    found = [run_with_steps(tmp_path / str(i), *steps, **manifest) for i, (steps, manifest) in enumerate(runs)]
    table = overlaplab.compare(found)
    assert no_fastest(table) == why
    assert table["fastest"].tolist() == [why is None and len(runs) > 1, *[False] * (len(runs) - 1)]


def test_recordings_of_one_cap_share_their_spread(tmp_path: Path) -> None:
    runs = [
        run_with_steps(tmp_path / str(i), *steps, bucket_cap_mb=cap)
        for i, (cap, *steps) in enumerate([(5, 10, 12), (5, 10, 11), (25, 20, 20)])
    ]
    table = overlaplab.compare(runs)
    assert table["spread_ms"].tolist() == [2, 2, pd.NA]
    assert no_fastest(table) == "too few steps to show a difference (fewer than 3 in a run)"


def test_recordings_of_one_setting_are_judged_together(tmp_path: Path) -> None:
    runs = [
        run_with_steps(tmp_path / f"{strategy}-{ms}", ms, strategy=strategy)
        for strategy, lengths in (("naive", (20, 21, 22, 23)), ("bucketed", (10, 11, 12, 13)))
        for ms in lengths
    ]
    table = overlaplab.compare(runs)
    assert table["recording_of"].tolist() == [0] * 4 + [4] * 4
    assert table["tier"].tolist() == [2] * 4 + [1] * 4
    assert table["fastest"].tolist() == [False] * 4 + [True] * 4
    table = overlaplab.compare([*runs[:3], *runs[4:7]])  # three of each cannot decide
    assert table["tier"].tolist() == [1] * 6
    assert not table["fastest"].any()
    assert overlaplab.compare(runs[:4])["recording_of"].tolist() == [0, 1, 2, 3]  # nothing else to compare


def test_a_foreign_run_has_no_strategy(tmp_path: Path) -> None:
    (row,) = overlaplab.compare([run_of(tmp_path, [op("mm", 0, 5)])]).to_dict("records")
    assert row["strategy"] is None
    assert pd.isna(row["bucket_cap_mb"])
    assert pd.isna(row["overlap_ratio"])
    assert row["step_ms_median"] == 0.005


@pytest.mark.parametrize(
    ("text", "before", "after", "met"),
    [
        ("span_ns > 5%", 10, 10.4, False),
        ("span_ns > 5%", 10, 10.6, True),
        ("span_ns<-10 %", 10, 8.5, True),
        ("overlap_ratio < -5%", 10, 20, False),
    ],
)
def test_conditions(tmp_path: Path, text: str, before: float, after: float, met: bool) -> None:
    first, last = (scalars(run_with_steps(tmp_path / str(ms), ms)) for ms in (before, after))
    condition = parse_condition(text)
    change = condition.change([first], last)
    assert change is not None
    assert condition.met_by(change) is met


def test_a_ratio_is_that_of_the_sums(tmp_path: Path) -> None:
    """The mean of the two steps' ratios rises, from 0.5 to 0.95; the ratio of the sums falls, from 0.99 to 0.90."""
    first = [step(0, 0, 1000), op("mm", 0, 1000), gloo(0, 1000), step(1, 1000, 1010), gloo(1000, 1010)]
    last = [
        step(0, 0, 1000),
        op("mm", 0, 900),
        gloo(0, 1000),
        step(1, 1000, 1010),
        op("mm", 1000, 1010),
        gloo(1000, 1010),
    ]
    condition = parse_condition("overlap_ratio < -5%")
    before, after = (scalars(run_of(tmp_path / name, events)) for name, events in (("a", first), ("b", last)))
    change = condition.change([before], after)
    assert change is not None
    assert change == pytest.approx(100 * ((910 / 1010) / (1000 / 1010) - 1))
    assert condition.met_by(change)


def test_a_figure_that_was_zero_grows_without_bound(tmp_path: Path) -> None:
    first = scalars(run_of(tmp_path / "a", [op("mm", 0, 5)]))
    last = scalars(run_of(tmp_path / "b", [op("mm", 0, 5), gloo(5, 6)]))
    condition = parse_condition("exposed_comm_ns > 5%")
    assert condition.change([first], last) == float("inf")
    assert condition.change([first], first) == 0
    assert parse_condition("overlap_ratio > 5%").change([first], last) is None


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        ("exposed_comm_ns > 2ms", 2.5, True),
        ("exposed_comm_ns > 2500us", 2500, False),
        ("exposed_comm_ns<3 ms", 2.5, True),
        ("span_ns > 0.009s", 0.01, True),
        ("overlap_ratio < 0.6", 0.5, True),
        ("overlap_ratio < 0.5", 0.5, False),
        ("exposed.tail > 1ms", 2.5, True),
        ("exposed.tail < 3ms", 2.5, True),
        ("exposed.straggler-wait > 0ms", 0, False),
        ("exposed.late_launch > 0ms", 0, False),
    ],
)
def test_limits_of_one_run(tmp_path: Path, text: str, value: float, met: bool) -> None:
    """Steps of 10 ms with a collective from 2.5 to 7.5 ms, of which compute hides the first half."""
    condition = parse_condition(text)
    found = condition.value(scalars(run_with_steps(tmp_path, 10, 10)))
    assert found == pytest.approx(value)
    assert condition.met_by(found) is met
    assert not condition.is_change


def test_a_change_of_a_cause(tmp_path: Path) -> None:
    run = run_with_steps(tmp_path, 10, 20)
    first, last = (scalars(run, overlaplab.Selection(steps=[number])) for number in overlaplab.summary(run)["step"])
    assert parse_condition("exposed.tail > 5%").change([first], last) == pytest.approx(100)


@pytest.mark.parametrize(
    "text",
    [
        *("", "exposed", "span_ns > 5", "span_ns = 5%", "nothing_ns > 5%", "exposed.nothing > 5ms"),
        *("overlap_ratio > 5ms", "span_ns > 5m"),
    ],
)
def test_a_bad_condition_is_one_line(text: str) -> None:
    with pytest.raises(OverlaplabError):
        parse_condition(text)


def test_pipelines_of_other_schedules_are_other_settings(tmp_path: Path) -> None:
    stages = [{"rank": rank, "units": [f"layers.{rank}"]} for rank in range(2)]
    told = [{"schedule": name, "microbatches": 4, "stages": stages} for name in ("gpipe", "1f1b", "gpipe", "1f1b")]
    runs = [
        run_with_steps(tmp_path / str(place), 10, 11, 12, strategy="pipeline", pipeline=own)
        for place, own in enumerate(told)
    ]
    assert overlaplab.compare(runs)["recording_of"].tolist() == [0, 1, 0, 1]


def test_runs_that_a_sweep_gave_other_values_are_other_settings(tmp_path: Path) -> None:
    given = [{"lr": rate, "bucket_cap_mb": 5} for rate in (0.1, 0.2, 0.1, 0.2)]
    runs = [
        run_with_steps(tmp_path / str(place), 10, 11, 12, bucket_cap_mb=5, swept={"settings": own, "command": ["x"]})
        for place, own in enumerate(given)
    ]
    assert overlaplab.compare(runs)["recording_of"].tolist() == [0, 1, 0, 1]
    assert describe_settings(runs[0].manifest) == "cap 5 MiB, lr 0.1"
