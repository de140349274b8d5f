"""Settings that are tried: caps of runs that reduce-scatter gradients against what `predict` says of them and against
recordings of zero1, and prefetch depths.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made.traces import op, run_of, step
from msgspec.structs import replace
from samples import sample_run
from situations import LINK, SLEEP, record

import overlaplab
from overlaplab.simulate import advise, best_cap_mb, gains, remedies
from overlaplab.simulate.advice.tried import best_setting, depths_played, scattered_caps
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.answer import Question
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import mean_step_ns

ZERO1 = "course/zero1"


@pytest.mark.parametrize("first_mb", [None, 0.01])
def test_each_cap_takes_what_predict_says(first_mb: float | None) -> None:
    """A first bucket with a cap of its own keeps it."""
    run = sample_run(ZERO1)
    assert run.manifest is not None
    run = replace(run, manifest=replace(run.manifest, raw=dict(run.manifest.raw) | {"first_bucket_mb": first_mb}))
    table = advise(run)
    assert table["option"].unique().tolist() == ["cap"]
    assert len(table) > 3
    for row in table.to_dict("records"):
        predicted = predict(run, Setting(bucket_cap_mb=float(row["bucket_cap_mb"])))
        assert predicted.step_ns == row["step_ns"]
        assert len(predicted.manifest["buckets"]) == row["buckets"]


def test_all_caps_send_all_gradients_and_buckets_become_fewer() -> None:
    played = scattered_caps(sample_run(ZERO1))
    counts = [len(each.sizes) for each in played]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1
    assert len({sum(each.sizes) for each in played}) == 1


def test_the_best_is_the_shortest_but_for_a_tie() -> None:
    run = sample_run(ZERO1)
    took = {each.value: float(np.mean(each.spans_ns)) for each in scattered_caps(run)}
    best = best_setting(run, scattered_caps(run))
    assert best is not None
    assert took[best.value] <= 1.01 * min(took.values())
    table = advise(run)
    assert table[table["best"]]["bucket_cap_mb"].tolist() == [best.value]
    assert best_cap_mb(run) == best.value
    rows = remedies(run)
    assert rows[rows["remedy"] == "cap"]["setting"].unique().tolist() == [best.value]


@pytest.mark.parametrize("sample", ["bucketed", "zero3", "zero2"])  # this zero2 labels no passes of units
def test_other_runs_have_none(sample: str) -> None:
    assert scattered_caps(sample_run(sample)) == ()


def test_a_deeper_prefetch_gains_where_gathers_were_late() -> None:
    late, ahead = (sample_run(name) for name in ("zero3-serial", "zero3"))
    best = best_setting(late, depths_played(late))
    assert best is not None
    assert best.value >= 1
    gained = {run.path: _gain(run) for run in (late, ahead)}
    assert gained[late.path] > 5 * max(gained[ahead.path], 0.001)
    assert depths_played(sample_run("bucketed")) == ()


def test_a_depth_takes_as_long_as_what_if_says() -> None:
    run = sample_run("zero3-serial")
    depths = depths_played(run)
    assert len(depths) == 4
    expected = what_if.steps_by_depth(run, Question(setting=Setting()), [int(depth.value) for depth in depths])
    assert [round(mean_step_ns(run, depth.spans_ns)) for depth in depths] == expected["step_ns"].tolist()


def _gain(run: overlaplab.Run) -> float:
    """The share of a step that the best depth gains."""
    spans = overlaplab.summary(run)["span_ns"].sum()
    return max((1 - depth.spans_ns.sum() / spans for depth in depths_played(run)), default=0.0)


@pytest.mark.alone
@pytest.mark.slow
def test_the_cap_gains_what_was_said(tmp_path: Path) -> None:
    """All gradients of zero1 in one bucket, and the cap that is advised instead."""
    options = ("--strategy", "zero1", "--link", LINK, *SLEEP, "--attempts", "3")
    run = overlaplab.load_run(record(tmp_path / "one", *options, "--bucket-cap-mb", "25"))
    best = best_setting(run, scattered_caps(run))
    assert best is not None
    rows = remedies(run)
    said_ns = rows[rows["remedy"] == "cap"].drop_duplicates(["rank", "step"])["gain_ns"].mean()
    other = overlaplab.load_run(record(tmp_path / "best", *options, "--bucket-cap-mb", f"{best.value:g}"))
    before_ns, after_ns = (float(overlaplab.summary(each)["span_ns"].mean()) for each in (run, other))
    gained_ns = before_ns - after_ns
    print(f"{best.value:g} MiB: {said_ns / 1e6:.1f} ms predicted, {gained_ns / 1e6:.1f} ms recorded")
    assert abs(said_ns - gained_ns) <= max(0.2 * abs(gained_ns), 0.02 * before_ns)


def test_ranks_with_unequal_numbers_of_steps_have_no_remedies(tmp_path: Path) -> None:
    work = op("aten::mm", 10, 500)
    run = run_of(tmp_path, [step(0, 0, 1000), work], [step(0, 0, 1000), step(1, 1000, 2000), work])
    assert gains(run).empty
    assert remedies(run).empty
