"""The least time of a step, from recorded computation and the link's T."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made import gpu as made_gpu
from made.phantoms import phantom_run
from made.traces import event, gloo, launched, op, run_of, step
from made.zero3 import USE, sizes, zero3_events
from samples import sample_run, unlabelled

import overlaplab
from overlaplab.costs import transfer_ns
from overlaplab.manifest import Link
from overlaplab.selection import Selection
from overlaplab.simulate.bound import bound

SAMPLES = Path(__file__).parents[2] / "traces"
TEN = Link(emulated=True, bandwidth_gbps=1e9, latency_us=5, world_size=2)
"""An all-reduce takes 10 µs, a gather or a reduce-scatter 5."""


def bucket(number: int, ready: float, launch: float, done: float) -> list[dict[str, Any]]:
    return [
        event(f"engine::bucket_ready bucket={number} bytes=64 parameters=w{number}", ready, ready + 1),
        event(f"engine::bucket_launch bucket={number}", launch, launch + 1),
        event(f"engine::bucket_done bucket={number}", done, done + 1),
    ]


BUCKETS = [
    step(3, 0, 120),
    op("forward", 0, 20),
    event("engine::backward microbatch=0 sync=1", 22, 60),
    op("backward", 24, 34),
    *bucket(0, 34, 34, 62),
    op("backward", 36, 40),
    *bucket(1, 40, 40, 72),
    op("backward", 42, 58),
    *bucket(2, 58, 58, 82),
    op("adamw", 90, 100),
]
"""It computes for 30, 4, 16 and 10 µs; the buckets are launched after 30, 34 and 50 µs of computation."""

PLAYED = ["found_ns", "least_ns"]


def test_buckets_on_the_cpu(tmp_path: Path) -> None:
    """They end at 40, 50 and 60; then 10 µs of the optimizer."""
    table = bound(run_of(tmp_path, BUCKETS), link=TEN)
    numbers = {"span_ns": 120_000, "compute_ns": 60_000, "transfer_ns": 30_000, "bound_ns": 70_000}
    numbers |= {"half_bound_ns": 70_000, "half_transfer_ns": 30_000}  # on this link latency is all
    told = {"rank": 0, "step": 3, **numbers, "waits_known": True, "bytes_explain": True}
    assert table.drop(columns=["any_cap_ns", *PLAYED]).to_dict("records") == [told]
    assert table[["any_cap_ns", *PLAYED]].isna().all(axis=None)  # without run.json no size is known
    assert table.dtypes.astype(str).to_dict() == {
        **dict.fromkeys(("rank", "step", "any_cap_ns", "half_bound_ns", "half_transfer_ns", *PLAYED), "Int64"),
        **dict.fromkeys(("span_ns", "compute_ns", "transfer_ns", "bound_ns"), "int64"),
        **dict.fromkeys(("waits_known", "bytes_explain"), "bool"),
    }


def test_the_link_of_the_manifest_serves(tmp_path: Path) -> None:
    link = {"emulated": True, "bandwidth_gbps": 1e9, "latency_us": 5, "world_size": 2}
    run = run_of(tmp_path / "linked", BUCKETS, manifest={"link": link})
    assert bound(run)["bound_ns"].tolist() == [70_000]


def test_without_a_link_or_what_was_measured_there_is_none(tmp_path: Path) -> None:
    assert bound(run_of(tmp_path, BUCKETS)).empty


CALLS = [event("c10d::allreduce_", at + 0.2, at + 0.8) for at in (34, 40, 58)]
"""What launches the buckets on plain gloo."""


def test_without_a_link_transfers_are_as_measured(tmp_path: Path) -> None:
    """Launched at 30, 34 and 50 of 60 µs of computation; on gloo's thread they take 4, 2 and 7."""
    measured = [*BUCKETS, *CALLS, gloo(35, 39), gloo(41, 43), gloo(59, 66)]
    table = bound(run_of(tmp_path, measured))
    assert table[["transfer_ns", "bound_ns", "waits_known"]].to_numpy().tolist() == [[13_000, 67_000, True]]


def test_collectives_at_the_same_time_share_the_link(tmp_path: Path) -> None:
    """Gloo's threads run them side by side: of two that end at 43 and 45 the second takes only what is left, 2 µs."""
    measured = [*BUCKETS, *CALLS, gloo(35, 43), gloo(41, 45, tid=8), gloo(59, 66)]
    assert bound(run_of(tmp_path, measured))["transfer_ns"].tolist() == [8_000 + 2_000 + 7_000]


def test_waiting_for_a_rank_is_no_transfer(tmp_path: Path) -> None:
    """Of two ranks the second arrives 3 µs later at each."""
    first, second = (
        [*BUCKETS, *CALLS, gloo(35 + late, 39), gloo(41 + late, 45), gloo(59 + late, 66)] for late in (0, 3)
    )
    both = bound(run_of(tmp_path, first, second))
    assert both[["transfer_ns", "waits_known"]].to_numpy().tolist() == [[1_000 + 1_000 + 4_000, True]] * 2


def ddp_step(*, sizes: tuple[int, ...] = (16, 16, 16), extra: str | None = None) -> list[dict[str, Any]]:
    """Gradients after 30, 40 and 50 µs of computation; one all-reduce of 30 µs for all; 10 of the optimizer."""
    accumulate = "torch::autograd::AccumulateGrad"
    events = [
        step(3, 0, 200),
        event("DistributedDataParallel.forward", 0, 20, cat="user_annotation"),
        op("forward", 0, 20),
    ]
    for number, size in enumerate(sizes):
        at = 20 + 20 * number
        events += [
            op("backward", at, at + 10),
            event(f"autograd::engine::evaluate_function: {accumulate}", at + 10, at + 19),
            event(accumulate, at + 11, at + 12, **{"Input Dims": [[size]], "Input type": ["float"]}),
        ]
    sent = {"Input Dims": [[sum(sizes)]], "Input type": ["float"]}
    events += [event("c10d::allreduce_", 74, 75), gloo(76, 106) | {"args": sent}, op("adamw", 120, 130)]
    if extra:
        events += [event(f"c10d::{extra}_", 76.5, 77), gloo(107, 110, kind=extra)]
    return events


@pytest.mark.parametrize(
    ("sizes", "any_cap_ns"),
    [
        ((16, 16, 16), 70_000),  # 10 µs each, the last from 50 on, then the optimizer
        ((8, 8, 32), 80_000),  # the last takes 20
    ],
)
def test_buckets_of_ddp_without_labels(tmp_path: Path, sizes: tuple[int, ...], any_cap_ns: int) -> None:
    table = bound(run_of(tmp_path, ddp_step(sizes=sizes))).drop(columns=PLAYED)
    assert table.to_dict("records") == [
        {
            "rank": 0,
            "step": 3,
            "span_ns": 200_000,
            "compute_ns": 60_000,
            "transfer_ns": 30_000,
            "bound_ns": 90_000,
            "any_cap_ns": any_cap_ns,
            "half_bound_ns": 75_000,
            "half_transfer_ns": 15_000,
            "waits_known": True,
            "bytes_explain": True,
        }
    ]


RECORDED_LOOP = [
    event("engine::gradient_ready parameter=w0", 30, 30.1),
    event("engine::gradient_ready parameter=w1", 50, 50.1),
    event("engine::gradient_ready parameter=w2", 70, 70.1),
    event("engine::bucket_ready bucket=0 bytes=192 parameters=w0,w1,w2", 72, 73),
    event("engine::bucket_launch bucket=0", 74, 75.5),
]
"""What the Recorder adds to `ddp_step`: labels of gradients and buckets, none of passes and waits."""


@pytest.mark.parametrize(("elements", "any_cap_ns"), [((16, 16, 16), 70_000), ((8, 8, 32), 80_000)])
def test_ddp_in_a_recorded_loop_waits_for_its_buckets(
    tmp_path: Path, elements: tuple[int, ...], any_cap_ns: int
) -> None:
    """The optimizer begins when the last bucket is there: the numbers are those of the same step without labels."""
    events = sorted([*ddp_step(), *RECORDED_LOOP], key=lambda each: each["ts"])
    parameters = [
        {"name": f"w{number}", "shape": [count], "dtype": "float32", "bytes": 4 * count}
        for number, count in enumerate(elements)
    ]
    table = bound(run_of(tmp_path, events, manifest={"parameters": parameters}))
    assert table[["compute_ns", "bound_ns", "any_cap_ns"]].to_numpy().tolist() == [[60_000, 90_000, any_cap_ns]]


def test_no_bound_where_a_wait_is_unknown(tmp_path: Path) -> None:
    """Without autograd's ranges nobody knows when the loop waited for its bucket."""
    events = [own for own in [*ddp_step(), *RECORDED_LOOP] if "autograd" not in own["name"]]
    assert bound(run_of(tmp_path, sorted(events, key=lambda each: each["ts"]))).empty


def test_fsdp2_by_its_own_ranges_on_a_gpu(tmp_path: Path) -> None:
    """The root is gathered at 150 µs and copied out at 158. A gather, 150 µs, begins when the one before is copied out:
    at 158, 316, 474 and 632. Computation waits for each, is at 832 after layer 1's backward pass and at 1240 after the
    root's, whose reduction takes 100, and the optimizer 50.
    """
    run = run_of(tmp_path, made_gpu.fsdp2(), backend="nccl")
    assert bound(run)["bound_ns"].tolist() == [1_390_000, 1_390_000]


def test_fsdp2_on_a_cpu_behind_its_link() -> None:
    table = bound(sample_run("torch-fsdp2"))
    assert len(table) == 6
    assert (table["compute_ns"] < table["bound_ns"]).all()
    assert (table["bound_ns"] < table["span_ns"]).all()
    assert table["any_cap_ns"].isna().all()  # it has no buckets


def test_a_step_that_exchanges_more_than_gradients_has_no_bound(tmp_path: Path) -> None:
    assert bound(run_of(tmp_path / "none", ddp_step(extra="alltoall"))).empty
    assert len(bound(run_of(tmp_path / "buffers", ddp_step(extra="broadcast")))) == 1


def test_absent_ranks_leave_open_whether_time_is_waiting(tmp_path: Path) -> None:
    run_of(tmp_path, ddp_step(), ddp_step())
    (tmp_path / "rank1.pt.trace.json.gz").unlink()
    table = bound(overlaplab.load_run(tmp_path))
    assert table[["waits_known", "bytes_explain"]].to_numpy().tolist() == [[False, True]]


def test_a_step_whose_waits_are_known_is_known_after_one_whose_are_not(tmp_path: Path) -> None:
    """The second rank's trace begins with the second step."""
    later = [step(4, 200, 400), *(each | {"ts": each["ts"] + 200} for each in ddp_step()[1:])]
    table = bound(run_of(tmp_path, [*ddp_step(), *later], later), Selection(ranks=[0]))
    assert table["waits_known"].tolist() == [False, True]


def test_times_that_no_line_through_bytes_explains(tmp_path: Path) -> None:
    """The same bytes take 30 µs, and 120 in the next step; with both ranks it would be known who waited."""
    slower = [
        own | {"ts": own["ts"] + 200} | ({"dur": 120} if own["name"].startswith("gloo") else {})
        for own in ddp_step()[1:]
    ]
    both = [*ddp_step(), step(4, 200, 400), *slower]
    run_of(tmp_path, both, both)
    assert bound(overlaplab.load_run(tmp_path))["bytes_explain"].tolist() == [True] * 4
    (tmp_path / "rank1.pt.trace.json.gz").unlink()
    assert bound(overlaplab.load_run(tmp_path))["bytes_explain"].tolist() == [False, False]


def test_ddp_without_labels_against_its_labels(tmp_path: Path) -> None:
    """The same trace, read by its labels and without them."""
    sample = SAMPLES / "torch-ddp-gloo"
    labelled, plain = bound(sample_run(sample)), bound(overlaplab.load_run(unlabelled(sample, tmp_path)))
    assert len(plain) == len(labelled) == 4
    assert plain["transfer_ns"].tolist() == labelled["transfer_ns"].tolist()
    assert (plain["bound_ns"] - labelled["bound_ns"]).abs().max() < 100_000  # the label and the pass end µs apart


def any_cap(tmp_path: Path, events: list[dict[str, Any]], link: Link, elements: list[int]) -> list[int | None]:
    parameters = [
        {"name": f"w{number}", "shape": [count], "dtype": "float32", "bytes": 4 * count}
        for number, count in enumerate(elements)
    ]
    table = bound(run_of(tmp_path, events, manifest={"parameters": parameters}), link=link)
    return [None if pd.isna(value) else int(value) for value in table["any_cap_ns"]]


def arrival(number: int, at: float) -> dict[str, Any]:
    return event(f"engine::gradient_ready parameter=w{number}", at, at + 0.1)


BY_BYTES = Link(emulated=True, bandwidth_gbps=0.0512, latency_us=0, world_size=2)
"""64 bytes take 10 µs."""


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (TEN, 70_000),  # 50 of compute, the last bucket's 10, 10 of the optimizer: the others are hidden
        (BY_BYTES, 70_000),  # 30, 34 and 50 ready, each takes 10
    ],
)
def test_any_cap_with_a_gradient_per_bucket(tmp_path: Path, link: Link, expected: int) -> None:
    assert any_cap(tmp_path, BUCKETS, link, [16, 16, 16]) == [expected]


SINGLE = [
    step(3, 0, 120),
    op("forward", 0, 20),
    event("engine::backward microbatch=0 sync=1", 22, 60),
    op("backward", 24, 34),
    arrival(0, 34),
    op("backward", 36, 40),
    arrival(1, 40),
    op("backward", 42, 58),
    arrival(2, 58),
    event("engine::bucket_ready bucket=0 bytes=192 parameters=w0,w1,w2", 58, 59),
    event("engine::bucket_launch bucket=0", 58, 59),
    event("engine::bucket_done bucket=0", 95, 96),
    op("adamw", 100, 110),
]
"""Gradients are ready at 30, 34 and 50 µs of computation, and leave together."""


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([16, 16, 16], 70_000),  # cut into three: the last starts at 50, takes 10, and the optimizer 10
        ([1, 1, 46], 88_750),  # the last is nearly all of it, and takes 28.75
        ([46, 1, 1], 70_000),  # the link is busy from 30 on, for 30
    ],
)
def test_any_cap_cuts_what_left_together(tmp_path: Path, elements: list[int], expected: int) -> None:
    assert any_cap(tmp_path, SINGLE, BY_BYTES, elements) == [expected]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([*SINGLE, event("engine::backward microbatch=1 sync=1", 70, 80)], id="two passes send"),
        pytest.param([*SINGLE, event("engine::bucket_ready bucket=1 bytes=8 parameters=other", 59, 60)], id="unknown"),
    ],
)
def test_any_cap_is_null_where_it_cannot_be_told(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    assert any_cap(tmp_path, sorted(events, key=lambda each: each["ts"]), BY_BYTES, [16, 16, 16]) == [None]


@pytest.mark.parametrize("sample", ["naive", "per-param", "bucketed", "torch-ddp", "sweep/cap-25", "sweep/cap-0.25"])
def test_any_cap_lies_between_computation_and_what_was_launched(sample: str) -> None:
    table = bound(sample_run(sample))
    assert (table["compute_ns"] < table["any_cap_ns"]).all()
    assert (table["any_cap_ns"] < table["bound_ns"]).all()


def test_on_a_gpu_what_counts_is_what_was_issued_before(tmp_path: Path) -> None:
    """The host runs ahead: 20 + 10 µs are issued at the launch. Idle time, other streams and overlap do not count."""
    events = [
        step(3, 0, 30),
        step(4, 30, 60),
        *launched("gemm", 1, 100, 120, correlation=1),
        *launched("gemm", 2, 110, 130, correlation=2),  # overlaps the one before
        event("engine::backward microbatch=0 sync=1", 3, 12),
        *launched("copy_in", 4, 150, 199, stream=9, correlation=3),
        *bucket(0, 5, 6, 13),
        *launched("gemm", 8, 140, 144, correlation=4),
        *launched("Memset (Device)", 9, 145, 146, correlation=5, cat="gpu_memset"),
        *launched("ncclDevKernel_AllReduce", 7, 150, 199, stream=9, correlation=6),
        *launched("adamw", 20, 200, 203, correlation=7),
        *launched("gemm", 31, 300, 350, correlation=8),
        *bucket(0, 32, 33, 35),
        *launched("adamw", 40, 360, 370, correlation=9),
    ]
    table = bound(run_of(tmp_path, events, backend="nccl"), link=TEN)
    assert table[["step", "span_ns", "compute_ns", "bound_ns"]].to_numpy().tolist() == [
        [3, 200_000, 38_000, 43_000],  # computes 30, launches, computes 5, waits until 40, computes 3
        [4, 70_000, 60_000, 70_000],  # computes 50, launches, waits until 60, computes 10
    ]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 9])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_zero3_against_its_rule(tmp_path: Path, prefetch: int, microbatches: int) -> None:
    link = Link(emulated=True, bandwidth_gbps=1, latency_us=3, world_size=4)
    run = run_of(tmp_path, zero3_events(4, prefetch, microbatches=microbatches))
    expected = by_rule(4, prefetch, microbatches, link)
    assert bound(run, link=link)["bound_ns"].tolist() == [expected, expected]


def test_reduce_scatters_are_due_after_the_backward_pass(tmp_path: Path) -> None:
    """The engine waits for one in the middle of the backward pass, to hold less memory; the bound does not."""
    events = [
        step(3, 0, 100),
        event("engine::backward microbatch=0 sync=1", 0, 40),
        op("backward", 1, 11),
        event("engine::scatter_launch unit=a microbatch=0 bytes=64", 12, 13),
        event("engine::wait", 14, 20),
        event("engine::scatter_done unit=a microbatch=0", 19, 20),
        op("backward", 21, 24),
        op("adamw", 50, 57),
    ]
    # computes 10, launches 5, computes 3, waits 2, computes 7
    assert bound(run_of(tmp_path, events), link=TEN)["bound_ns"].tolist() == [22_000]


def test_what_the_engine_writes_on_a_gpu(tmp_path: Path) -> None:
    """Buckets of 300 µs, launched at 800 and 1200 of 1200, 50 of the optimizer; then ZeRO-3 with 150 each."""
    link = Link(emulated=True, bandwidth_gbps=1e9, latency_us=150, world_size=2)
    run = phantom_run(tmp_path / "bucketed", made_gpu.bucketed(), device="cuda")
    assert bound(run, link=link)["bound_ns"].tolist() == [1_550_000, 1_550_000]
    assert overlaplab.summary(run)["span_ns"].tolist() == [1_560_000, 1_559_000]  # 1 µs between kernels
    run = phantom_run(tmp_path / "zero3", made_gpu.zero3(1), device="cuda", strategy="zero3")
    # forward to 700; head to 910, its scatter to 1060, then the gather of layer 0; layer 1 to 1120 (its scatter from
    # 1210 to 1360) and 10 of the head's shard; layer 0 from 1210 to 1420 and 10; the embedding to 1640, its scatter to
    # 1790 beside 10 of layer 0's shard, then 10 of its own, and 50
    assert bound(run, link=link)["bound_ns"].tolist() == [1_850_000, 1_850_000]


def by_rule(layers: int, prefetch: int, microbatches: int, link: Link) -> int:
    """Before a unit computes, the gathers of it and of the next ones are launched; it waits for its own."""
    now = free = 0
    last = {f"layers.{layers - 1}", "head"}
    for _ in range(microbatches):
        forward = ["embedding", *(f"layers.{i}" for i in range(layers)), "head"]
        there: dict[tuple[str, str], int] = {}
        for phase, units in (("forward", forward), ("backward", forward[:0:-1])):
            for i, unit in enumerate(units):
                for ahead in units[i : i + prefetch + 1]:
                    kept = phase == "backward" and ahead in last
                    if not kept and (ahead, phase) not in there:
                        free = max(now, free) + transfer_ns("all_gather", sizes(ahead), link)
                        there[ahead, phase] = free
                now = max(now, there.get((unit, phase), 0)) + (USE[phase] * sizes(unit) // 400_000 - 1) * 1000
                if phase == "backward":
                    free = max(now, free) + transfer_ns("reduce_scatter", sizes(unit), link)
        free = max(now, free) + transfer_ns("reduce_scatter", sizes("embedding"), link)
    return max(now, free) + 2_000_000


def test_no_rows_without_labels_or_where_gathers_cross_steps(tmp_path: Path) -> None:
    bare = run_of(tmp_path / "bare", [step(3, 0, 100), op("mm", 10, 20)])
    assert bound(bare, link=TEN).empty
    crossing = run_of(tmp_path / "zero1", BUCKETS, manifest={"strategy": "zero1"})
    assert bound(crossing, link=TEN).empty
    told = {"strategy": "of my own", "traits": {"gathers": "updated_parameters"}}
    assert bound(run_of(tmp_path / "told", BUCKETS, manifest=told), link=TEN).empty
    assert len(bound(run_of(tmp_path / "untold", BUCKETS, manifest={"strategy": "of my own"}), link=TEN)) == 1


def test_ranks_and_steps_are_chosen_as_elsewhere(tmp_path: Path) -> None:
    run = sample_run("bucketed")
    assert bound(run, Selection(ranks=[1], steps=[3]))[["rank", "step"]].to_numpy().tolist() == [[1, 3]]
    assert bound(run, Selection(ranks=[1], skip_steps=2))["step"].tolist() == [4]
    with pytest.raises(overlaplab.OverlaplabError):
        bound(run, Selection(ranks=[7]))


@pytest.mark.parametrize("sample", ["naive", "per-param", "bucketed", "torch-ddp", "zero3", "zero3-serial"])
def test_no_recorded_step_beats_it_and_none_is_far_from_it(sample: str) -> None:
    """On the CPU a step also takes what lies between operators, and what waiting for the other rank costs."""
    table = bound(sample_run(sample))
    assert len(table) == 6
    assert (table["compute_ns"] < table["bound_ns"]).all()
    assert (table["bound_ns"] <= table["span_ns"]).all()
    assert (table["span_ns"] / table["bound_ns"]).median() < 1.2
