"""What a loop's host does between its passes: literals in, literals out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.traces import event, launched, run_of, step
from samples import sample_run

from overlaplab.analyses import loads_in_workers
from overlaplab.evidence.host_work import host_work
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
