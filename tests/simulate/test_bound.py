"""The least time of a step, from recorded computation and the link's T."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_gpu
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_phantoms import phantom_run
from made_traces import event, launched, op, run_of, step
from made_zero3 import USE, sizes, zero3_events

import overlaplab
from overlaplab.costs import transfer_ns
from overlaplab.manifest import Link
from overlaplab.selection import Selection
from overlaplab.simulate.bound import Compute, Launch, Move, Wait, bound, finish_ns

SAMPLES = Path(__file__).parents[2] / "traces"
TEN = Link(emulated=True, bandwidth_gbps=1e9, latency_us=5, world_size=2)
"""An all-reduce takes 10 µs, a gather or a reduce-scatter 5."""


@pytest.mark.parametrize(
    ("moves", "finish"),
    [
        ([], 0),
        ([Compute(7)], 7),
        ([Launch(5)], 0),  # nobody waits for it
        ([Launch(5), Wait(0), Compute(1)], 6),
        ([Launch(5), Compute(7), Wait(0)], 7),  # hidden
        ([Launch(5), Launch(5), Compute(7), Wait(1), Wait(0)], 10),  # one after the other
        ([Compute(3), Launch(5), Compute(1), Launch(5), Compute(1), Wait(0), Compute(2), Wait(1)], 13),
        ([Compute(3), Launch(5), Compute(9), Launch(5), Wait(1)], 17),  # the link stood idle
    ],
)
def test_moves_are_played_in_order(moves: list[Move], finish: int) -> None:
    assert finish_ns(moves) == finish


def test_nothing_waits_for_what_is_not_launched() -> None:
    with pytest.raises(IndexError):
        finish_ns([Wait(0), Launch(5)])


def by_ticks(moves: list[Move]) -> int:
    """Two machines, one nanosecond at a time: what computes, and the link with its queue."""
    left = [move.ns if isinstance(move, Compute) else 0 for move in moves]
    queue: list[list[int]] = []  # of each collective its number, and what is left of it
    ended: set[int] = set()
    launches = place = tick = 0
    while True:
        while queue and not queue[0][1]:
            ended.add(queue.pop(0)[0])
        if place == len(moves):
            return tick
        move = moves[place]
        if left[place] or (isinstance(move, Wait) and move.number not in ended):
            tick += 1
            left[place] -= bool(left[place])
            if queue:
                queue[0][1] -= 1
            continue
        place += 1
        if isinstance(move, Launch):
            queue.append([launches, move.transfer_ns])
            launches += 1


@given(st.data())
def test_against_two_machines_that_tick(data: st.DataObject) -> None:
    moves: list[Move] = []
    launches = 0
    for _ in range(data.draw(st.integers(0, 12))):
        match data.draw(st.sampled_from(["compute", "launch", "wait"])):
            case "compute":
                moves.append(Compute(data.draw(st.integers(0, 6))))
            case "launch":
                moves.append(Launch(data.draw(st.integers(0, 6))))
                launches += 1
            case "wait" if launches:
                moves.append(Wait(data.draw(st.integers(0, launches - 1))))
    assert finish_ns(moves) == by_ticks(moves)


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
"""It computes 30, 4, 16 and 10 µs; the buckets are launched at 30, 34 and 50 of them."""


def test_buckets_on_the_cpu(tmp_path: Path) -> None:
    """They end at 40, 50 and 60; then 10 µs of the optimizer."""
    table = bound(run_of(tmp_path, BUCKETS), link=TEN)
    assert table.to_dict("records") == [
        {"rank": 0, "step": 3, "span_ns": 120_000, "compute_ns": 60_000, "transfer_ns": 30_000, "bound_ns": 70_000}
    ]
    assert table.dtypes.astype(str).to_dict() == dict.fromkeys(("rank", "step"), "Int64") | dict.fromkeys(
        ("span_ns", "compute_ns", "transfer_ns", "bound_ns"), "int64"
    )


def test_the_link_of_the_manifest_serves(tmp_path: Path) -> None:
    link = {"emulated": True, "bandwidth_gbps": 1e9, "latency_us": 5, "world_size": 2}
    run = run_of(tmp_path / "linked", BUCKETS, manifest={"link": link})
    assert bound(run)["bound_ns"].tolist() == [70_000]
    with pytest.raises(overlaplab.OverlaplabError, match="no link to reckon with"):
        bound(run_of(tmp_path / "bare", BUCKETS))


def test_on_a_gpu_what_counts_is_what_was_issued_before(tmp_path: Path) -> None:
    """The host runs ahead: at the launch 20 + 10 µs are issued. Idle time, other streams and doubled time are out."""
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
    """The engine waits for one in the middle of it, to hold less memory; the bound does not."""
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
    run = overlaplab.load_run(SAMPLES / "bucketed")
    assert bound(run, Selection(ranks=[1], steps=[3]))[["rank", "step"]].to_numpy().tolist() == [[1, 3]]
    assert bound(run, Selection(ranks=[1], skip_steps=2))["step"].tolist() == [4]
    with pytest.raises(overlaplab.OverlaplabError):
        bound(run, Selection(ranks=[7]))


@pytest.mark.parametrize("sample", ["naive", "per-param", "bucketed", "torch-ddp", "zero3", "zero3-serial"])
def test_no_recorded_step_beats_it_and_none_is_far_from_it(sample: str) -> None:
    """On the CPU a step also takes what lies between operators, and what waiting for the other rank costs."""
    table = bound(overlaplab.load_run(SAMPLES / sample))
    assert len(table) == 6
    assert (table["compute_ns"] < table["bound_ns"]).all()
    assert (table["bound_ns"] <= table["span_ns"]).all()
    assert (table["span_ns"] / table["bound_ns"]).median() < 1.2
