"""What a loop's host does between its passes: literals in, literals out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.hosts import loop
from made.traces import event, launched, op, run_of, step
from samples import sample_run

from overlaplab.analyses import loads_in_workers
from overlaplab.events import NEXT_STEP
from overlaplab.evidence.host_work import host_work, pauses_within
from overlaplab.findings.actions.words import Case
from overlaplab.findings.actions.words import host_work as host_work_words
from overlaplab.findings.loops import Loop
from overlaplab.vocabulary import DATA_LOADING

LOADING = f"{DATA_LOADING}#_SingleProcessDataLoaderIter.__next__"


def named(name: str, start: float, end: float, tid: int = 1) -> dict[str, Any]:
    return event(name, start, end, cat="user_annotation", tid=tid)


EVENTS = [
    step(3, 0, 1000),
    named(LOADING, 0, 100),
    named("decode", 10, 60),  # within it
    named(LOADING, 0, 90, tid=5),  # a loader's own thread
    named("DistributedDataParallel.forward", 100, 300),
    named("attention", 120, 200),  # within the pass
    event("autograd::engine::evaluate_function: MulBackward0", 310, 700),
    event("engine::bucket_launch bucket=0", 600, 620),
    event("engine::launch seq=0 group=0", 605, 610),
    event("engine::comm seq=0 kind=all_reduce dtype=float32 bytes=8 group=0", 610, 690, tid=7),
    named("Optimizer.step#SGD.step", 710, 800),
    named("Optimizer.zero_grad#SGD.zero_grad", 800, 810),
    named("gloo:all_reduce", 810, 815),
    named("saving", 820, 900),
    named(f"{NEXT_STEP}#4", 905, 940),  # the project's own
    named("blink", 950, 950.5),  # half a thousandth of the step
]


def test_ranges_with_names_between_the_passes(tmp_path: Path) -> None:
    (trace,) = run_of(tmp_path, EVENTS).traces
    origin = int(trace.events["ts_ns"].min())
    times = [((work.start_ns - origin) // 1000, (work.end_ns - origin) // 1000) for work in host_work(trace)]
    assert [work.fields["name"] for work in host_work(trace)] == [DATA_LOADING, "saving"]
    assert times == [(0, 100), (820, 900)]
    assert {work.word for work in host_work(trace)} == {"host"}


def test_without_passes_a_range_that_launches_nothing_on_a_gpu_is_none(tmp_path: Path) -> None:
    events = [step(3, 0, 1000), named("model", 0, 300), *launched("gemm", 100, 110, 290, correlation=1)]
    (trace,) = run_of(tmp_path, [*events, named("saving", 820, 900)], backend="nccl").traces
    assert [work.fields["name"] for work in host_work(trace)] == ["saving"]


def test_without_passes_nothing_is_between_them(tmp_path: Path) -> None:
    (trace,) = run_of(tmp_path, [step(3, 0, 1000), named("saving", 820, 900)]).traces
    assert host_work(trace) == ()
    assert host_work(sample_run("torch-ddp").traces[0]) == ()


@pytest.mark.parametrize(
    ("iterator", "advice"),
    [
        ("_SingleProcess", "loading data in the background (num_workers of its DataLoader)"),
        ("_MultiProcessing", "loading data faster: more num_workers of its DataLoader, or less work per sample"),
    ],
)
def test_a_loader_with_workers_is_not_advised_to_have_some(tmp_path: Path, iterator: str, advice: str) -> None:
    """torch's ranges name the iterator's class (`torch/utils/data/dataloader.py`)."""
    loading = named(f"{DATA_LOADING}#{iterator}DataLoaderIter.__next__", 0, 100)
    run = run_of(tmp_path, [step(3, 0, 1000), loading])
    loop = Loop(loads_in_workers=loads_in_workers(run))
    assert host_work_words(Case(loop=loop, rows=pd.DataFrame(), what=DATA_LOADING)) == advice


@pytest.mark.parametrize(
    ("ranges", "place"),
    [
        ([named("Optimizer.step#SlowSGD.step", 490, 910)], "Optimizer.step#SlowSGD.step"),
        (
            [
                event("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 480, 920),
                event("torch::autograd::AccumulateGrad", 490, 910),
                event("engine::bucket_launch bucket=0", 500, 900),
                event("c10d::allreduce_", 500, 900),
            ],
            "AccumulateGrad",
        ),
        ([named("DistributedDataParallel.forward", 200, 910), named("tokenize#7", 500, 800)], "tokenize"),
        (
            [named("DistributedDataParallel.forward", 200, 910), named("tokenize#7", 500, 600)],
            "DistributedDataParallel.forward",
        ),
        ([named("saving", 0, 490), named("logging", 500, 600)], None),
        ([named("train", 0, 1000), named("writer", 490, 910, tid=5)], None),
    ],
    ids=[
        "named",
        "innermost of torch's",
        "innermost",
        "around most",
        "outside",
        "around the step, or on another thread",
    ],
)
def test_the_range_in_which_most_of_the_pauses_are(
    tmp_path: Path, ranges: list[dict[str, Any]], place: str | None
) -> None:
    """The host of a CPU pauses from 500 to 900 µs; the other rank does not."""
    paused = [step(3, 0, 1000), op("mm", 0, 500), *ranges, op("mm", 900, 1000)]
    assert pauses_within(run_of(tmp_path, paused, [step(3, 0, 1000), op("mm", 0, 1000)])) == place


def test_the_range_in_which_a_host_of_a_gpu_pauses(tmp_path: Path) -> None:
    """From 0 to 500 µs and from 800 to 1300."""
    updates = [named("Optimizer.step#SGD.step", start, start + 510) for start in (0, 800)]
    assert pauses_within(run_of(tmp_path / "in", [*loop(pause_us=500), *updates], backend="nccl")) == updates[0]["name"]
    assert pauses_within(run_of(tmp_path / "half", [*loop(pause_us=500), updates[0]], backend="nccl")) is None
    assert pauses_within(run_of(tmp_path / "out", loop(pause_us=500), backend="nccl")) is None
    assert pauses_within(run_of(tmp_path / "none", loop(), backend="nccl")) is None
