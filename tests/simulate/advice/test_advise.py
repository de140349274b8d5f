"""What settings gain: of recorded runs by playing all ranks, of others by the bound."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from made.traces import event, gloo, op, run_of, step
from msgspec.structs import replace
from samples import sample_run, sample_tables

import overlaplab
from overlaplab.simulate import advise, best_cap_mb, can_try_buckets, gains
from overlaplab.simulate.advice.advise import OPTIONS
from overlaplab.simulate.advice.tried import played_gain_half_ns
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.answer import Question, interval
from overlaplab.simulate.predictions.error import gain_half_ns, measured_steps, recorded_caps
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.buckets import find_recutting
from overlaplab.simulate.programs.setting import Setting
from overlaplab.words import size_exact

SAMPLES = Path(__file__).parents[3] / "traces"


@pytest.mark.parametrize("name", ["bucketed", "torch-ddp", "naive", "sweep/cap-1", "zero3-serial"])
def test_each_option_has_one_best_setting_whose_range_holds_its_gain(name: str) -> None:
    run = overlaplab.load_run(SAMPLES / name)
    begun = time.process_time()
    table = advise(run)
    assert time.process_time() - begun < 5  # of processor time, which load does not change much
    assert set(table["option"]) <= set(OPTIONS)
    assert (table.groupby("option")["best"].sum() == 1).all()
    assert (table["low_ns"] <= table["gain_ns"]).all()
    assert (table["gain_ns"] <= table["high_ns"]).all()
    before = table["gain_ns"] + table["step_ns"]
    assert before.to_numpy() == pytest.approx(overlaplab.summary(run)["span_ns"].mean(), abs=2)
    for option, own in table.groupby("option"):
        best = own[own["best"]]["gain_ns"].iloc[0]
        assert best >= own["gain_ns"].max() - 0.03 * before.iloc[0], option


@pytest.mark.parametrize("name", ["bucketed", "torch-ddp", "zero3"])
def test_the_best_cap_alone_is_that_of_the_table(name: str) -> None:
    run = sample_run(name)
    table = advise(run)
    best = table.loc[(table["option"] == "cap") & table["best"] & table["replayed"], "bucket_cap_mb"].tolist()
    assert [best_cap_mb(run)] == (best or [None])


@pytest.mark.parametrize("first_mb", [1000, "nearly all"])
def test_where_the_first_bucket_holds_everything_a_smaller_one_is_advised(first_mb: Any) -> None:
    """No other cap changes anything then."""
    run = sample_run("bucketed")
    cut = find_recutting(run)
    assert cut is not None
    assert run.manifest is not None
    if first_mb == "nearly all":  # closes with the last gradient
        first_mb = (sum(cut.sizes.values()) - 1) / (1 << 20)
    held = replace(run, manifest=replace(run.manifest, raw=dict(run.manifest.raw) | {"first_bucket_mb": first_mb}))
    table = advise(held)
    assert can_try_buckets(held)
    assert set(table["option"]) == {"first_bucket", "buckets"}
    assert table[table["best"]]["first_bucket_mb"].min() < 4


def test_a_list_of_caps_gives_its_buckets() -> None:
    run = sample_run("bucketed")
    cut = find_recutting(run)
    assert cut is not None
    own = advise(run)
    (row,) = own[(own["option"] == "buckets") & own["best"]].to_dict("records")
    buckets = cut.cut(*(int(cap * (1 << 20)) for cap in row["caps_mb"]))
    sizes = tuple(sum(cut.sizes[name] for name in names) for names in buckets)
    assert sizes == row["bucket_sizes"]
    assert len(sizes) == row["buckets"]
    caps = own[own["option"] == "cap"]
    assert row["gain_ns"] > caps["gain_ns"].max()


def test_a_deeper_prefetch_holds_its_units_more() -> None:
    run = sample_run("zero3-serial")
    table = advise(run)
    assert run.manifest is not None
    largest = sorted((unit.bytes for unit in run.manifest.units), reverse=True)
    assert table["prefetch"].tolist() == [1, 2, 3, 4]
    assert table["memory_bytes"].tolist() == np.cumsum(largest[:4]).tolist()


@pytest.mark.parametrize("name", ["zero3-serial", "torch-fsdp2"])
def test_an_action_says_what_memory_it_takes(name: str) -> None:
    """Gathering ahead holds the largest units; two units as one hold twice what the largest two hold more than one."""
    run = sample_run(name)
    rows = gains(run).set_index("remedy")
    units = [unit.bytes for unit in run.manifest.units] if run.manifest else []
    if name == "zero3-serial":
        depth = int(rows.loc["prefetch", "setting"])
        assert rows.loc["prefetch", "memory_bytes"] == sum(sorted(units)[-depth:])
    else:
        assert rows.loc["larger_units", "setting"] == 2
        most = max(first + second for first, second in pairwise(units))
        assert rows.loc["larger_units", "memory_bytes"] == 2 * (most - max(units))
    assert rows.loc["half_the_bytes", "memory_bytes"] == 0


def test_the_recommendation_says_what_memory_it_takes() -> None:
    diagnosis = sample_tables("zero3-serial").diagnosis
    assert diagnosis is not None
    first = diagnosis.actions[0]
    assert first.memory_bytes
    assert f"It takes up to {size_exact(first.memory_bytes)} more memory on each rank." in diagnosis.advice


def test_names_are_texts_or_none_beside_others() -> None:
    """pandas makes NaN of None in a column that holds texts as well."""
    what = gains(sample_run("h100/torch-fsdp2"))["what"].tolist()
    assert {type(each) for each in what} == {str, type(None)}


def ddp_step() -> list[dict[str, Any]]:
    """Gradients of 64 bytes after 30, 40, 50 and 60 µs of computation; two at a time are sent, in 20 µs."""
    accumulate = "torch::autograd::AccumulateGrad"
    events = [
        step(3, 0, 200),
        event("DistributedDataParallel.forward", 0, 20, cat="user_annotation"),
        op("forward", 0, 20),
    ]
    for at in (20, 40, 60, 80):
        events += [
            op("backward", at, at + 10),
            event(f"autograd::engine::evaluate_function: {accumulate}", at + 10, at + 18),
            event(accumulate, at + 11, at + 12, **{"Input Dims": [[16]], "Input type": ["float"]}),
        ]
    sent = {"Input Dims": [[32]], "Input type": ["float"]}
    for at in (54, 94):
        events += [event("c10d::allreduce_", at, at + 1), gloo(at + 2, at + 22) | {"args": sent}]
    return sorted([*events, op("adamw", 120, 130)], key=lambda own: float(own["ts"]))


def test_a_strangers_ddp_is_played(tmp_path: Path) -> None:
    """The last bucket ends at 116. Sent one by one, in 11 µs each, it ends at 105: a launch takes the host 2 µs."""
    table = advise(run_of(tmp_path, ddp_step()))
    caps = table[table["option"] == "cap"]
    assert caps[["buckets", "gain_ns", "step_ns"]].to_numpy().tolist() == [
        [4, 11_000, 189_000],
        [2, 0, 200_000],
        [2, 7_000, 193_000],
        [1, -13_000, 213_000],
    ]
    assert table["replayed"].all()


def test_where_a_strangers_ddp_is_not_played_it_is_what_the_bound_leaves(tmp_path: Path) -> None:
    """30 µs are exposed. Sent one by one the last ends 10 µs after the backward pass, by two 20, all at once 40."""
    nobody_launched = gloo(1, 2, tid=8, kind="broadcast")
    run = run_of(tmp_path, sorted([*ddp_step(), nobody_launched], key=lambda own: float(own["ts"])))
    table = advise(run)
    caps = table[table["option"] == "cap"]
    assert caps[["buckets", "gain_ns", "step_ns"]].to_numpy().tolist() == [
        [4, 20_000, 180_000],
        [2, 10_000, 190_000],
        [2, 0, 200_000],
        [1, -10_000, 210_000],
    ]
    assert caps[caps["best"]]["bucket_cap_mb"].tolist() == [6e-05]  # 62 bytes
    (best,) = table[table["option"] == "buckets"].to_dict("records")
    assert (best["gain_ns"], best["bucket_sizes"]) == (20_000, (64, 64, 64, 64))
    assert not table["replayed"].any()


@pytest.mark.parametrize("name", ["zero2", "torch-fsdp2"])
def test_where_nothing_can_be_told_there_are_no_rows(name: str) -> None:
    run = sample_run(name)
    assert advise(run).empty
    assert can_try_buckets(run)


def test_the_same_gain_is_as_certain_here_as_in_what_if_and_predict() -> None:
    """One interval of a gain: by the recorded mean step, whatever is asked for."""
    run = sample_run("bucketed")
    measured_ns, half_ns = fmean(measured_steps(run)), played_gain_half_ns(run)
    assert set(advise(run)["half_ns"]) == {half_ns}
    assert half_ns == pytest.approx(1.96 * 0.033 * measured_ns, rel=1e-3)
    predicted = predict(run, Setting(bucket_cap_mb=2.0))
    assert gain_half_ns(predicted.recorded_step_ns, predicted.step_ns, predicted.interval) == pytest.approx(
        half_ns, rel=1e-3
    )
    answer = what_if.answer(run, Question(setting=Setting(bucket_cap_mb=2.0)))
    sure = interval(run, answer, recorded_caps(run.manifest, [])) if run.manifest else None
    assert sure is not None
    assert gain_half_ns(measured_ns, answer.mean_ns, sure) == pytest.approx(half_ns, rel=1e-3)


def test_edits_are_as_certain_in_the_table_of_gains_as_in_predict() -> None:
    """What the model is off is a share of the step, and counts by the recorded one."""
    run = sample_run("h100/loops/norms")
    halves = gains(run).set_index("remedy")["half_ns"]
    for remedy, edit in (("device_waits", "no-device-waits"), ("no_pause", "no-pause")):
        predicted = predict(run, Setting(edits=((edit, None),)))
        half_ns = gain_half_ns(predicted.recorded_step_ns, predicted.step_ns, predicted.interval)
        assert half_ns == pytest.approx(halves[remedy], abs=1000), edit
