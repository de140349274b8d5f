"""Lanes are called by what runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made.traces import event, gloo, launched, op, run_of, step

from overlaplab import Run
from overlaplab.causes import Cause
from overlaplab.timeline.marks import CAUSE_MARKS, MarkKind
from overlaplab.timeline.timeline import timeline_events


def names_of(run: Run) -> list[str]:
    lanes = timeline_events(run).lanes
    return [label.removeprefix("rank 0 ") for label in lanes.loc[lanes["kind"] == "stream", "label"]]


def label(text: str, start: float, end: float, tid: object) -> dict[str, Any]:
    return event(text, start, end, cat="user_annotation", tid=tid)


def test_threads_whose_names_lie_are_told_by_what_they_do(tmp_path: Path) -> None:
    events = [
        label("ProfilerStep#0", 0, 200, "pt_gloo_runner"),
        op("mm", 0, 20, tid="pt_gloo_runner"),
        label("autograd::engine::evaluate_function: MmBackward0", 20, 90, "main"),
        op("mm", 20, 90, tid="main"),
        label("engine::comm seq=0 kind=all_reduce bytes=4", 30, 100, "autograd"),
        {**gloo(30, 60), "tid": "a"},
        {**gloo(60, 90), "tid": "b"},
        op("copy_", 120, 125, tid="loader"),
    ]
    assert names_of(run_of(tmp_path, events)) == ["autograd", "main", "compute", "link", "gloo 1", "gloo 2"]


def test_without_steps_the_thread_that_computes_most_is_main(tmp_path: Path) -> None:
    assert names_of(run_of(tmp_path, [op("mm", 0, 9, tid=1), op("mm", 0, 50, tid=2)])) == ["main", "compute"]


def test_streams_tell_what_they_carry(tmp_path: Path) -> None:
    events = [
        step(0, 0, 400),
        *launched("ncclDevKernel_looks_like_nothing_else", 1, 300, 310, stream=9, correlation=9),
        *launched("gemm", 5, 20, 80, correlation=1),
        *launched("ncclDevKernel_AllReduce", 6, 30, 90, stream=20, correlation=2),
        *launched("void vllm::cross_device_reduce_1stage<float, 2>(int)", 7, 90, 99, stream=21, correlation=3),
        *launched("Memcpy HtoD (Pinned -> Device)", 8, 90, 99, stream=22, correlation=4, cat="gpu_memcpy"),
    ]
    assert sorted(names_of(run_of(tmp_path, events, backend="nccl"))) == [
        "stream 20 (NCCL)",
        "stream 21 (communication)",
        "stream 22 (copies)",
        "stream 7 (compute)",
        "stream 9 (NCCL)",
    ]


def test_every_cause_is_a_mark() -> None:
    assert {mark.value for mark in CAUSE_MARKS} == set(Cause)
    assert MarkKind.EXPOSED not in CAUSE_MARKS
