"""Edits of runs on GPUs, against steps that were made that way; and runs of which ranks are missing."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from made import gpu as made_gpu
from made.ddp import ddp_ranks
from made.fsdp import fsdp
from made.hosts import loop
from made.traces import event, launched, run_of, step
from msgspec.structs import replace

import overlaplab
from overlaplab import OverlaplabError, Run
from overlaplab.analyses import slowdowns
from overlaplab.evidence.dependencies import longest_wait
from overlaplab.manifest import Link
from overlaplab.sections.run_tables import RunTables
from overlaplab.simulate import gains
from overlaplab.simulate.advice.tried import replayed_spans_ns
from overlaplab.simulate.predictions.device import predict_device
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import recorded_spans_ns
from overlaplab.words import to_ms

Event = dict[str, Any]
MIB = 1 << 20


def played_us(run: Run, name: str, value: str | None = None) -> list[list[float]]:
    """Each rank's steps with an edit."""
    spans = predict_device(run, Setting(edits=((name, value),))).predicted_ns
    return [[ns / 1000 for ns in rank] for rank in spans]


def test_launching_in_no_time_leaves_the_device_alone(tmp_path: Path) -> None:
    slow = run_of(tmp_path, loop(), backend="nccl")
    assert recorded_spans_ns(slow).tolist() == [[300_000, 280_000]]
    assert played_us(slow, "no-launch-overhead") == [[100, 100]]


def test_launching_in_no_time_keeps_pauses_and_data_loading(tmp_path: Path) -> None:
    """What is left of the second step is its loading and its pause, before which all kernels are done."""
    slow = run_of(tmp_path, loop(load_us=200, pause_us=500), backend="nccl")
    (first, second) = played_us(slow, "no-launch-overhead")[0]
    assert first == pytest.approx(200 + 500 + 10, abs=15)
    assert second == pytest.approx(100, abs=15)
    assert played_us(slow, "no-pause")[0][0] == pytest.approx(300 + 200, abs=15)
    assert played_us(slow, "without-host-work", "enumerate(DataLoader)")[0][0] == pytest.approx(300 + 500, abs=15)


def test_a_host_that_does_not_wait_runs_ahead(tmp_path: Path) -> None:
    """Launching takes 1 µs per kernel, so but for `.item()` the device would have no gap."""
    waiting = run_of(tmp_path / "item", loop(op_us=8, item=True), backend="nccl")
    free = run_of(tmp_path / "free", loop(op_us=8), backend="nccl")
    assert longest_wait(waiting) == "aten::item"
    assert longest_wait(free) is None
    took = recorded_spans_ns(free).sum()
    assert sum(played_us(waiting, "no-device-waits")[0]) == pytest.approx(took / 1000, abs=4)
    assert recorded_spans_ns(waiting).sum() > took
    with pytest.raises(OverlaplabError, match="the host does not wait for its device"):
        predict_device(free, Setting(edits=(("no-device-waits", None),)))


def accumulating(events: list[Event], update: str = "engine::optimizer") -> list[Event]:
    """Two passes forward and backward, and one optimizer step, of events with two steps each."""
    updates, steps = (
        sorted((each for each in events if each["name"].startswith(name)), key=lambda each: each["ts"])
        for name in (update, "ProfilerStep")
    )
    others = [each for each in events if each not in (*updates[::2], *steps)]
    pairs = enumerate(zip(steps[::2], steps[1::2], strict=True))
    return [*others, *(step(3 + number, a["ts"], b["ts"] + b["dur"]) for number, (a, b) in pairs)]


def test_gradients_are_sent_once_per_step(tmp_path: Path) -> None:
    """Each pass waits for 300 µs of its last bucket after the backward pass; the first no longer does."""
    events = accumulating(made_gpu.bucketed(steps=2))
    run = run_of(tmp_path, events, events, backend="nccl")
    recorded = recorded_spans_ns(run)[0] / 1000
    (own, *_), _ = played_us(run, "last-pass")
    exposed = overlaplab.summary(run)["exposed_comm_ns"].to_numpy() / 1000
    assert recorded[0] - own == pytest.approx(exposed[0] / 2, abs=20)
    once = run_of(tmp_path / "once", made_gpu.bucketed(), made_gpu.bucketed(), backend="nccl")
    with pytest.raises(OverlaplabError, match="no step sends its gradients in several backward passes"):
        predict_device(once, Setting(edits=(("last-pass", None),)))


def test_copies_into_buckets_that_fall_away_may_have_been_slowed_down(tmp_path: Path) -> None:
    how: dict[str, Any] = {"slowdown": 1, "slow_copies": True, "steps": 8, "backward_us": (100, 100), "at_once": 2}
    ranks = [accumulating(events, "Optimizer.step#AdamW.step") for events in ddp_ranks([MIB // 2], **how)]
    run = run_of(tmp_path, *ranks, backend="nccl")
    assert slowdowns(run).set_index("name").loc["mul", "slowdown"] > 0
    recorded = recorded_spans_ns(run)[0] / 1000
    assert (recorded - played_us(run, "last-pass")[0] > 0).all()


@pytest.mark.parametrize("host_us", [10, 450])
@pytest.mark.parametrize("ahead", [0, 1])
def test_units_that_stay_gathered_are_not_gathered_again(tmp_path: Path, ahead: int, host_us: int) -> None:
    made = {stays: fsdp(ahead, host_us=host_us, steps=2, stays=stays) for stays in (False, True)}
    freed, kept = (run_of(tmp_path / str(stays), *[rank] * 2, backend="nccl") for stays, rank in made.items())
    took_us = recorded_spans_ns(kept).ravel() / 1000
    assert [*chain(*played_us(freed, "keep-gathered"))] == pytest.approx(took_us, abs=3)
    assert recorded_spans_ns(freed).sum() / 1000 > took_us.sum()


def broadcasting(inside: str, *, sends: bool) -> list[Event]:
    """One rank's events: in a range of the host perhaps a broadcast of 100 µs, for which 300 µs of computation wait."""
    gpu = made_gpu.Gpu()
    for _ in range(2):
        with gpu.step():
            gpu.run("gemm", 50)
            with gpu.range(inside):
                if sends:
                    given = {"Input Dims": [[[1_000]]], "Input type": ["TensorList"]}
                    with gpu.range("c10d::broadcast_", cat="cpu_op", **given):
                        gpu.run("ncclDevKernel_Broadcast_RING_LL", 100, made_gpu.GATHERS)
                    gpu.wait(made_gpu.COMPUTE, gpu.end(made_gpu.GATHERS))
                gpu.run("gemm", 300)
    return gpu.events


@pytest.mark.parametrize(
    ("inside", "edit", "other"),
    [
        ("DistributedDataParallel.forward", "without-buffers", "whole-optimizer"),
        ("Optimizer.step#ZeroRedundancyOptimizer.step", "whole-optimizer", "without-buffers"),
    ],
)
def test_broadcasts_of_buffers_or_of_updated_parameters(tmp_path: Path, inside: str, edit: str, other: str) -> None:
    made = {sends: broadcasting(inside, sends=sends) for sends in (False, True)}
    without, sending = (run_of(tmp_path / str(sends), *[rank] * 2, backend="nccl") for sends, rank in made.items())
    took_us = recorded_spans_ns(without).ravel() / 1000
    assert [*chain(*played_us(sending, edit))] == pytest.approx(took_us, abs=3)
    with pytest.raises(OverlaplabError, match=f"edit {other} does not apply"):
        played_us(sending, other)


@pytest.mark.parametrize("backward_us", [200, 3])
def test_what_sending_costs_the_host_falls_away_too(tmp_path: Path, backward_us: int) -> None:
    """With kernels of 3 µs the host is what takes time: each gradient is copied in, launched and copied back."""

    def made(name: str, silent: int) -> Run:
        how: dict[str, Any] = {"backward_us": (backward_us, backward_us), "forward_us": 3, "steps": 2, "silent": silent}
        ranks = [accumulating(events, "Optimizer.step#AdamW.step") for events in ddp_ranks([2 * MIB], **how)]
        return run_of(tmp_path / name, *ranks, backend="nccl")

    (truth, *_), _ = recorded_spans_ns(made("silent", 1))
    (found, *_), _ = played_us(made("sends", 0), "last-pass")
    recorded = recorded_spans_ns(made("sends", 0))[0, 0] / 1000
    assert found == pytest.approx(truth / 1000, abs=40)
    assert recorded - found > 200


def test_other_buckets_and_fewer_passes_are_not_played_together(tmp_path: Path) -> None:
    ranks = [accumulating(events, "Optimizer.step#AdamW.step") for events in ddp_ranks([2 * MIB], steps=2)]
    run = run_of(tmp_path, *ranks, backend="nccl")
    with pytest.raises(OverlaplabError, match="with other buckets, fewer passes that send are not played"):
        predict_device(run, Setting(bucket_cap_mb=4.0, edits=(("last-pass", None),)))


def test_half_the_bytes_behind_another_link(tmp_path: Path) -> None:
    """Its T is that of the asked link alone: 20 µs and 1 µs for each 100,000 bytes."""
    run = run_of(tmp_path / "recorded", *ddp_ranks([2 * MIB]), backend="nccl")
    halved = ddp_ranks([2 * MIB], transfer=lambda num_bytes: 20 + num_bytes // 200_000)
    truth = recorded_spans_ns(run_of(tmp_path / "halved", *halved, backend="nccl"))
    link = Link(emulated=True, bandwidth_gbps=800.0, latency_us=10.0, world_size=2)
    prediction = predict_device(run, Setting(link=link, edits=(("half-bytes", None),)))
    assert prediction.predicted_ns.tolist() == truth.tolist()


def test_half_the_bytes_of_one_size_may_gain_nothing(tmp_path: Path) -> None:
    """Without a link, as their T may be latency alone."""
    one_size, two_sizes = (run_of(tmp_path / str(cap), *ddp_ranks([cap * MIB]), backend="nccl") for cap in (1000, 2))
    halved = Setting(edits=(("half-bytes", None),))
    gain_ns, half_ns = gains(one_size).set_index("remedy").loc["half_the_bytes", ["gain_ns", "half_ns"]]
    assert 0 < gain_ns == predict_device(one_size, halved).transfers_ns < half_ns
    assert predict_device(two_sizes, halved).transfers_ns == 0
    link = Link(emulated=True, bandwidth_gbps=800.0, latency_us=10.0, world_size=2)
    assert predict_device(one_size, replace(halved, link=link)).transfers_ns == 0


@pytest.mark.parametrize(("edit", "value", "even_us"), [("balance", "1", 200), ("even-work", None, 260)])
def test_slowed_kernels_are_as_long_as_an_edit_makes_them(
    tmp_path: Path, edit: str, value: str | None, even_us: int
) -> None:
    """The first rank's recorded ones are slowed down while it waits for the second, so that not all of it is gained."""
    how: dict[str, Any] = {"slowdown": 1, "steps": 8, "at_once": 2}
    uneven, even = (
        run_of(tmp_path / str(each), *ddp_ranks([2 * MIB], backward_us=each, **how), backend="nccl")
        for each in ((200, 320), (even_us, even_us))
    )
    assert slowdowns(uneven)["slowdown"].max() > 0
    recorded_us, truth_us = (recorded_spans_ns(each).mean() / 1000 for each in (uneven, even))
    found_us = sum(chain(*played_us(uneven, edit, value))) / 16
    assert 0.6 < (recorded_us - found_us) / (recorded_us - truth_us) < 1


@pytest.fixture
def alone(tmp_path: Path) -> Run:
    """The second rank's trace of two, of which the first is late."""
    ranks = ddp_ranks([2 * MIB], backward_us=(330, 200))
    run = run_of(tmp_path, *ranks, backend="nccl")
    return replace(run, traces=run.traces[1:])


def test_where_ranks_are_missing_collectives_last_as_recorded(alone: Run) -> None:
    assert replayed_spans_ns(alone).tolist() == recorded_spans_ns(alone).tolist()
    without = predict_device(alone, Setting(edits=(("no-launch-overhead", None),)))
    assert sum(without.predicted_ns[0]) <= sum(without.recorded_ns[0])
    for edit in ("balance", "even-work", "half-bytes"):
        with pytest.raises(OverlaplabError, match=f"edit {edit} does not apply"):
            predict_device(alone, Setting(edits=((edit, None),)))
    with pytest.raises(OverlaplabError, match="when all ranks had come to a bucket's all-reduce is not known"):
        predict_device(alone, Setting(bucket_cap_mb=1.0))


def test_every_screen_says_that_ranks_are_missing(tmp_path: Path) -> None:
    rank = loop()
    rank.append(event("c10d::allreduce_", 5, 7, **{"Input Dims": [[1_000]], "Input type": ["float"]}))
    rank += launched("ncclDevKernel_AllReduce_Sum_f32", 6, 9, 40, stream=9, correlation=9)
    run_of(tmp_path, rank, rank, backend="nccl")
    (tmp_path / "rank1.pt.trace.json.gz").unlink()
    one = overlaplab.load_run(tmp_path)
    found = RunTables(run=one).diagnosis
    assert found is not None
    assert found.advice.endswith(
        "1 rank has no trace here: collectives are taken to last as long as recorded, waiting included."
    )


def test_the_gains_are_the_edits(tmp_path: Path) -> None:
    """What `gains` tells is what `predict --edit` plays, to the digit."""
    events = loop(op_us=8, item=True, load_us=200, pause_us=500)
    begun = [each["ts"] for each in events if each["name"].startswith("ProfilerStep#")]
    update = (event("Optimizer.step#SGD.step", at + 200, at + 700, cat="user_annotation") for at in begun)
    run = run_of(tmp_path, [*events, *update], backend="nccl")
    edits = {
        "launch_overhead": ("no-launch-overhead", None),
        "no_pause": ("no-pause", None),
        "device_waits": ("no-device-waits", None),
        "host_work": ("without-host-work", "enumerate(DataLoader)"),
    }
    table = gains(run).set_index("remedy")
    for remedy, (name, value) in edits.items():
        spans = played_us(run, name, value)[0]
        assert to_ms(table.loc[remedy, "step_ns"]) == pytest.approx(sum(spans) / len(spans) / 1000)
    assert table.loc["device_waits", "what"] == "aten::item"
    assert table.loc["host_work", "what"] == "enumerate(DataLoader)"
    assert table.loc["no_pause", "what"] == "Optimizer.step#SGD.step"


def test_what_is_not_played_of_gpus_is_one_line(tmp_path: Path) -> None:
    run = run_of(tmp_path, loop(), backend="nccl")
    with pytest.raises(
        OverlaplabError, match=r"edit async is not played of runs on GPUs. Of these are played: balance"
    ):
        predict_device(run, Setting(edits=(("async", None),)))
    with pytest.raises(OverlaplabError, match="no edit is called nonsense"):
        predict_device(run, Setting(edits=(("nonsense", None),)))
