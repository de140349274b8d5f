"""Bucket readiness, from labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import event, gloo, launched, op, run_of, step
from samples import TRACES, late_gradients, sample_run

import overlaplab
from overlaplab.costs import transfer_ns
from overlaplab.findings import bucket_notes
from overlaplab.manifest import Link

BACKWARD = event("engine::backward microbatch=0 sync=1", 10, 60)
AUTOGRAD = event("autograd::engine::evaluate_function: MmBackward0", 11, 50)


def label(text: str, at: float, until: float | None = None, tid: int = 1) -> dict[str, Any]:
    return event(f"engine::{text}", at, at + 1 if until is None else until, tid=tid)


def gradient(name: str, at: float) -> dict[str, Any]:
    return label(f"gradient_ready parameter={name}", at)


def bucket(index: int, names: str, ready: float, seq: int, start: float, end: float) -> list[dict[str, Any]]:
    """A bucket of 8 bytes under an emulated link."""
    return [
        label(f"bucket_ready bucket={index} bytes=8 parameters={names}", ready),
        label(f"bucket_launch bucket={index}", ready + 1, ready + 3),
        label(f"launch seq={seq}", ready + 1.5, ready + 2.5),
        label(
            f"comm seq={seq} kind=all_reduce dtype=float32 bytes=8 group=0 link=1Gbps,200us modelled_ns=5",
            start,
            end,
            7,
        ),
    ]


def test_a_bucket_shows_which_gradient_held_it_and_what_was_exposed(tmp_path: Path) -> None:
    events = [
        step(3, 5, 100),
        BACKWARD,
        AUTOGRAD,
        gradient("head.w", 14),
        gradient("b.bias", 30),
        op("mm", 20, 45),
        *bucket(0, "b.w,b.bias", 31, 0, 35, 55),
        *bucket(1, "head.w", 40, 1, 55, 70),
    ]
    first, second = overlaplab.buckets(run_of(tmp_path, events)).to_dict("records")
    assert first == {
        "rank": 0,
        "step": 3,
        "backward_start_ns": 5_000,
        "backward_end_ns": 45_000,
        "index": 0,
        "bytes": 8,
        "parameters": ("b.w", "b.bias"),
        "gradient_ready_ns": (None, 25_000),
        "last_parameter": "b.bias",
        "ready_ns": 26_000,
        "launch_ns": 27_000,
        "start_ns": 30_000,
        "end_ns": 50_000,
        "exposed_ns": 10_000,
        "passes": 1,
        "arrivals": (None, 2),
        "shapes": (None, None),
        "gradients": 2,
        "told_by": "engine",
        "source": "engine",
    }
    assert (second["index"], second["last_parameter"], second["start_ns"]) == (1, "head.w", 50_000)
    assert second["exposed_ns"] == 15_000


def test_names_are_decoded(tmp_path: Path) -> None:
    events = [step(3, 5, 100), BACKWARD, gradient("a%2Cb%20c", 20), *bucket(0, "a%2Cb%20c", 31, 0, 35, 55)]
    (row,) = overlaplab.buckets(run_of(tmp_path, events)).to_dict("records")
    assert (row["parameters"], row["last_parameter"]) == (("a,b c",), "a,b c")


def test_the_backward_that_synchronises_counts(tmp_path: Path) -> None:
    events = [
        step(3, 0, 100),
        event("engine::backward microbatch=0 sync=0", 1, 8),
        gradient("w", 5),
        BACKWARD,
        gradient("w", 30),
        *bucket(0, "w", 31, 0, 35, 55),
    ]
    (row,) = overlaplab.buckets(run_of(tmp_path, events)).to_dict("records")
    assert (row["backward_start_ns"], row["gradient_ready_ns"]) == (10_000, (30_000,))


def test_plain_gloo_runs_collectives_in_launch_order(tmp_path: Path) -> None:
    events = [step(3, 0, 100), BACKWARD, event("c10d::broadcast_", 2, 3), gloo(2, 6)]
    for index, (at, start, end) in enumerate([(20, 25, 30), (40, 42, 70)]):
        launch = event("c10d::allreduce_", at + 1.5, at + 2)
        events += [*bucket(index, "w", at, 9, 0, 0)[:2], launch, gloo(start, end, tid=7 + index)]
    table = overlaplab.buckets(run_of(tmp_path, events))
    assert table[["start_ns", "end_ns"]].to_numpy().tolist() == [[25_000, 30_000], [42_000, 70_000]]


def test_what_the_trace_does_not_hold_is_null(tmp_path: Path) -> None:
    events = [step(3, 0, 100), BACKWARD, *bucket(0, "w", 31, 0, 35, 55)[:2], gloo(35, 55)]
    (row,) = overlaplab.buckets(run_of(tmp_path, events)).to_dict("records")
    assert (row["start_ns"], row["end_ns"], row["exposed_ns"], row["last_parameter"]) == (None, None, None, None)


def test_on_a_gpu_readiness_is_device_time(tmp_path: Path) -> None:
    comm = event("engine::comm seq=0 kind=all_reduce dtype=float32 bytes=8 group=0", 32.2, 33.5)
    events = [
        step(3, 0, 100),
        BACKWARD,
        *launched("forward_gemm", 4, 100, 200, correlation=1),
        *launched("backward_gemm", 12, 200, 300, correlation=2),
        gradient("w", 30),
        *bucket(0, "w", 31, 0, 0, 0)[:2],
        comm,
        *launched("ncclDevKernel_AllReduce", 32.5, 310, 390, stream=9, correlation=3),
        *launched("backward_gemm", 50, 300, 350, correlation=4),
    ]
    (row,) = overlaplab.buckets(run_of(tmp_path, events, backend="nccl")).to_dict("records")
    times = {key: row[key] // 1000 for key in ("ready_ns", "start_ns", "end_ns", "exposed_ns", "launch_ns")}
    assert times == {"ready_ns": 200, "start_ns": 210, "end_ns": 290, "exposed_ns": 40, "launch_ns": 32 - 100}
    assert row["gradient_ready_ns"] == (200_000,)
    assert (row["backward_start_ns"], row["backward_end_ns"]) == (100_000, 250_000)


def test_labels_mirrored_on_the_gpu_are_ignored(tmp_path: Path) -> None:
    events = [step(3, 5, 100), BACKWARD, *bucket(0, "w", 31, 0, 35, 55)]
    mirrored = [e | {"cat": "gpu_user_annotation", "ts": e["ts"] + 20} for e in events]
    assert len(overlaplab.buckets(run_of(tmp_path, [*events, *mirrored]))) == 1


@pytest.mark.parametrize(
    "name", ["bucket_ready", "bucket_ready bucket=x bytes=8 parameters=w", "gradient_ready parameter="]
)
def test_a_broken_label_is_ignored(tmp_path: Path, name: str) -> None:
    events = [step(3, 5, 100), BACKWARD, label(name, 30), *bucket(0, "w", 31, 0, 35, 55)]
    assert len(overlaplab.buckets(run_of(tmp_path, events))) == 1


def test_there_are_no_buckets_where_the_device_was_not_recorded(tmp_path: Path) -> None:
    events = [step(3, 5, 100), BACKWARD, *bucket(0, "w", 31, 0, 35, 55)]
    assert len(overlaplab.buckets(run_of(tmp_path, events, backend="nccl"))) == 0


def test_a_run_without_labels_has_no_buckets(tmp_path: Path) -> None:
    table = overlaplab.buckets(run_of(tmp_path, [step(3, 0, 9), op("mm", 1, 2)]))
    assert len(table) == 0
    assert table.dtypes.astype(str)["start_ns"] == "Int64"


@pytest.mark.parametrize(
    ("kind", "num_bytes", "world", "expected_ns"),
    [
        ("all_reduce", 125_000_000, 2, 1_000_000_000 + 400_000),
        ("all_reduce", 0, 8, 14 * 200_000),
        ("all_gather", 125_000_000, 4, 750_000_000 + 600_000),
        ("reduce_scatter", 125_000_000, 4, 750_000_000 + 600_000),
        ("all_reduce", 1_000, 1, 0),
    ],
)
def test_the_link_is_the_ring_formula(kind: str, num_bytes: int, world: int, expected_ns: int) -> None:
    link = Link(emulated=True, bandwidth_gbps=1, latency_us=200, world_size=world)
    assert transfer_ns(kind, num_bytes, link) == expected_ns


def test_the_link_has_no_model_of_other_kinds() -> None:
    with pytest.raises(ValueError, match="no model of broadcast"):
        transfer_ns("broadcast", 8, Link(emulated=True, bandwidth_gbps=1, latency_us=1, world_size=2))


def test_columns_and_dtypes(tmp_path: Path) -> None:
    table = overlaplab.buckets(run_of(tmp_path, [step(3, 5, 100), BACKWARD, *bucket(0, "w", 31, 0, 35, 55)]))
    assert table.dtypes.astype(str).to_dict() == {
        **dict.fromkeys(("rank", "step", "backward_start_ns", "backward_end_ns"), "Int64"),
        **dict.fromkeys(("index", "passes"), "int64"),
        **dict.fromkeys(("parameters", "gradient_ready_ns", "last_parameter"), "object"),
        **dict.fromkeys(("arrivals", "shapes", "told_by", "source"), "object"),
        **dict.fromkeys(("bytes", "gradients"), "Int64"),
        **dict.fromkeys(("ready_ns", "launch_ns", "start_ns", "end_ns", "exposed_ns"), "Int64"),
    }


def test_of_several_backwards_that_synchronise_the_last_is_shown(tmp_path: Path) -> None:
    """zero2 sends with every microbatch."""
    events = [
        step(3, 0, 100),
        event("engine::backward microbatch=0 sync=1", 1, 8),
        *bucket(0, "w", 3, 0, 5, 9),
        event("engine::backward microbatch=1 sync=1", 10, 60),
        gradient("w", 30),
        *bucket(0, "w", 31, 1, 35, 55),
    ]
    table = overlaplab.buckets(run_of(tmp_path, events))
    (row,) = table.to_dict("records")
    assert (row["backward_start_ns"], row["ready_ns"], row["start_ns"]) == (10_000, 31_000, 35_000)
    assert row["passes"] == 2
    assert bucket_notes(table) == (
        "up to 2 backward passes of a step sent gradients: the last one's buckets are shown",
    )


def test_no_gradient_of_a_recorded_bucket_arrived_after_it_was_ready() -> None:
    folders = [file.parent for file in TRACES.rglob("run.json") if "sweep" not in file.parts]
    tables = {folder: overlaplab.buckets(sample_run(folder)) for folder in folders}
    assert sum(map(len, tables.values())) > 1_000
    assert {folder: late for folder, table in tables.items() if (late := late_gradients(table))} == {}
