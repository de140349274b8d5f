"""Gains on GPUs, against runs that are made by the rules of torch's DDP with another cap, pace or link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.ddp import ddp_ranks, transfer_us
from made.fsdp import fsdp
from made.traces import run_of
from samples import sample_run

import overlaplab
from overlaplab.simulate import advise, gains, remedies
from overlaplab.simulate.advice import tried
from overlaplab.simulate.advice.remedies import device_remedies
from overlaplab.simulate.advice.tried import device_settings
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting

MIB = 1 << 20


def made(folder: Path, cap_mb: float = 2.0, **how: Any) -> overlaplab.Run:
    return run_of(folder, *ddp_ranks([int(cap_mb * MIB)], **how), backend="nccl")


def mean_ns(run: overlaplab.Run) -> float:
    """Of the steps but the first, whose beginning depends on when the profiler began."""
    table = overlaplab.summary(run)
    return float(table[table["step"] > table["step"].min()]["span_ns"].mean())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> overlaplab.Run:
    return made(tmp_path_factory.mktemp("ddp"), 4.0)  # two sizes, so that others are known


def test_advice_is_played_and_right(run: overlaplab.Run, tmp_path: Path) -> None:
    table = advise(run)
    assert table["replayed"].all()
    caps = table[table["option"] == "cap"]
    assert 1 < len(caps) <= 5
    (best,) = caps[caps["best"]].to_dict("records")
    assert best["step_ns"] == predict(run, Setting(bucket_cap_mb=best["bucket_cap_mb"])).step_ns
    recorded = mean_ns(run) - mean_ns(made(tmp_path, best["bucket_cap_mb"]))
    assert recorded > 0
    assert best["gain_ns"] == pytest.approx(recorded, rel=0.2)
    every = [mean_ns(made(tmp_path / f"{cap}", cap)) for cap in (0.3, 1.0, 2.0, 3.0, 4.0)]
    assert mean_ns(run) - best["gain_ns"] <= min(every) * 1.02


def test_a_late_rank_and_half_the_bytes(tmp_path: Path) -> None:
    slow = made(tmp_path / "slow", backward_us=(200, 320))
    gains = {each.name: (each.before_ns - each.after_ns)[:, 1:].mean() for each in device_remedies(slow)}
    balanced, halved = (
        mean_ns(slow) - mean_ns(own)
        for own in (
            made(tmp_path / "balanced", backward_us=(200, 200)),
            made(tmp_path / "halved", backward_us=(200, 320), transfer=lambda size: transfer_us(size // 2)),
        )
    )
    assert gains["balance"] == pytest.approx(balanced, rel=0.2)
    assert gains["half_the_bytes"] == pytest.approx(halved, rel=0.2, abs=0.02 * mean_ns(slow))
    table = remedies(slow)
    assert {"balance", "half_the_bytes", "cap"} <= set(table["remedy"])
    assert set(table.loc[table["remedy"] == "balance", "setting"]) == {1.0}


def test_depths_of_fsdp2(tmp_path: Path) -> None:
    rank = fsdp(0, host_us=450, steps=2)
    run = run_of(tmp_path, rank, rank, backend="nccl")
    table = advise(run)
    assert table["prefetch"].tolist() == [1, 2, 3, 4]
    assert table["replayed"].all()
    best = table[table["best"]].iloc[0]
    assert best["gain_ns"] > 0
    remedy = gains(run).set_index("remedy").loc["prefetch"]
    assert remedy["setting"] == best["prefetch"]
    assert (remedy["gain_ns"], remedy["half_ns"]) == (best["gain_ns"], best["half_ns"])


def test_what_would_take_long_is_not_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tried, "_MAX_STRETCHES", 10)
    large = made(tmp_path)
    assert device_settings(large) == ()
    assert [*device_remedies(large)] == []
    assert not advise(large)["replayed"].any()


def test_without_a_bound_caps_of_all_sizes_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a bucket for each of six gradients to one for all."""
    monkeypatch.setattr(tried, "sendable_gradients", lambda *_: None)
    monkeypatch.setattr(tried, "_MAX_DEVICE_CAPS", 3)
    counts = [len(each.sizes) for each in device_settings(made(tmp_path, 4.0))]
    assert (counts[0], counts[-1], len(counts)) == (6, 1, 3)


def test_runs_on_cpus_are_no_devices() -> None:
    assert device_settings(sample_run("sweep/cap-1")) == ()
    assert [*device_remedies(sample_run("sweep/cap-1"))] == []
