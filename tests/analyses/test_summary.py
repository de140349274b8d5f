"""The breakdown of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made.traces import event, gloo, launched, op, run_of, step

import overlaplab
from overlaplab import OverlaplabError
from overlaplab.analyses import PARTS
from overlaplab.findings import run_warnings
from overlaplab.intervals import total, union
from overlaplab.selection import Selection


def test_each_moment_counts_once_in_the_order_compute_communication_memory_idle(tmp_path: Path) -> None:
    events = [
        step(5, 0, 30),
        *launched("gemm", 0, 0, 40, correlation=1),
        *launched("ncclDevKernel_A", 1, 30, 60, stream=5, correlation=2),
        *launched("Memset (Device)", 2, 35, 70, stream=6, correlation=3, cat="gpu_memset"),
        *launched("gemm", 3, 90, 100, correlation=4),
    ]
    (row,) = overlaplab.summary(run_of(tmp_path, events)).to_dict("records")
    nothing = {
        "exposed_wait_ns": None,
        "exposed_transfer_ns": None,
        "preempted_ns": None,
        "damaged": False,
        "step_kind": 0,
    }
    assert row == nothing | {
        "rank": 0,
        "step": 5,
        "start_ns": 0,
        "span_ns": 100_000,
        "compute_ns": 50_000,
        "comm_ns": 30_000,
        "overlapped_ns": 10_000,
        "compute_only_ns": 40_000,
        "exposed_comm_ns": 20_000,
        "memory_only_ns": 10_000,
        "idle_ns": 20_000,
        "overlap_ratio": pytest.approx(1 / 3),
    }


def test_time_is_cut_at_the_borders_of_steps(tmp_path: Path) -> None:
    events = [step(1, 0, 10), step(2, 10, 30), op("mm", 5, 12), gloo(8, 25), op("mm", 40, 50)]
    run = run_of(tmp_path, events)
    table = overlaplab.summary(run)
    assert table["compute_ns"].tolist() == [5000, 2000]
    assert table["comm_ns"].tolist() == [2000, 15000]
    assert table["overlapped_ns"].tolist() == [2000, 2000]
    (total,) = overlaplab.totals(run).to_dict("records")
    assert (total["comm_ns"], total["overlapped_ns"], total["overlap_ratio"]) == (17000, 4000, pytest.approx(4 / 17))
    assert total["outside_ns"] == 20_000


def test_what_no_step_holds_is_outside(tmp_path: Path) -> None:
    """The only step launched no compute on the main stream."""
    events = [
        step(1, 0, 10),
        *launched("gemm", 20, 30, 60, correlation=1),
        *launched("ncclX", 21, 60, 90, correlation=2),
    ]
    (total,) = overlaplab.totals(run_of(tmp_path, events)).to_dict("records")
    assert (total["outside_ns"], total["span_ns"], total["overlap_ratio"]) == (60_000, 0, None)


def test_no_communication_has_no_ratio(tmp_path: Path) -> None:
    assert overlaplab.summary(run_of(tmp_path, [op("mm", 0, 5)]))["overlap_ratio"].tolist() == [pd.NA]


def test_ranks_and_steps_are_selected(tmp_path: Path) -> None:
    events = [step(1, 0, 10), step(2, 10, 30), op("mm", 5, 12)]
    run = run_of(tmp_path, events, events)
    assert len(overlaplab.summary(run)) == 4
    assert overlaplab.summary(run, Selection(ranks=[1]))["rank"].tolist() == [1, 1]
    assert overlaplab.summary(run, Selection(steps=[2]))["step"].tolist() == [2, 2]
    assert overlaplab.summary(run, Selection(skip_steps=1))["step"].tolist() == [2, 2]
    assert overlaplab.totals(run, Selection(skip_steps=1))["compute_ns"].tolist() == [2000, 2000]
    with pytest.raises(OverlaplabError, match=r"rank 7: not in this run. It holds 0, 1"):
        overlaplab.summary(run, Selection(ranks=[7]))
    with pytest.raises(OverlaplabError, match=r"rank 0: no step 9. It holds 1, 2"):
        overlaplab.summary(run, Selection(steps=[9]))
    with pytest.raises(OverlaplabError, match=r"rank 0: no step is left after skipping 2. It holds 2"):
        overlaplab.summary(run, Selection(skip_steps=2))


def test_missing_ranks_and_steps_are_errors(tmp_path: Path) -> None:
    host_only = run_of(tmp_path / "a", [event("cudaLaunchKernel", 0, 1, cat="cuda_runtime")])
    assert "device activity was not recorded" in run_warnings(host_only)[0]
    assert len(overlaplab.summary(host_only)) == len(overlaplab.totals(host_only)) == 0
    silent = run_of(tmp_path / "b", [op("mm", 0, 9)], [gloo(0, 3)])
    assert run_warnings(silent) == ("rank 0: no communication recognised among 2 ranks; most time is in aten::mm",)
    missed = run_of(tmp_path / "c", [gloo(0, 3)], manifest={"link_attained": False})
    assert run_warnings(missed)[0].startswith("link not attained")


def test_one_warning_says_why_nothing_is_shown(tmp_path: Path) -> None:
    """As of a picture of a pipeline's schedule, which is a trace, but none of torch.profiler's."""
    schedule = [event("F0", 0, 5, cat="forward"), event("B0", 5, 9, cat="backward"), event("F1", 9, 12, cat="forward")]
    nothing = "counts as compute, communication or memory: "
    run = run_of(tmp_path / "a", schedule, schedule)
    said = "of 6 events none is a kernel, a copy or an operator that computes (categories: forward, backward)"
    assert run_warnings(run) == (f"nothing that was recorded {nothing}{said}",)
    assert overlaplab.summary(run).empty
    run = run_of(tmp_path / "b", [op("mm", 0, 9), gloo(0, 3)], [event("F0", 0, 5, cat="")])
    said = "of 1 event none is a kernel, a copy or an operator that computes (category: (none))"
    assert run_warnings(run) == (f"nothing that was recorded on rank 1 {nothing}{said}",)
    counters = [event("memory", 0, 1) | {"ph": "C"}]
    said = "there are no events with a time and a duration"
    assert run_warnings(run_of(tmp_path / "c", counters)) == (f"nothing that was recorded {nothing}{said}",)


def test_what_the_autograd_profiler_exports_has_no_categories(tmp_path: Path) -> None:
    with torch.autograd.profiler.profile() as profiled:
        torch.ones(64, 64) @ torch.ones(64, 64)
    told = profiled.function_events
    path = tmp_path / "legacy.json"
    told.export_chrome_trace(str(path))
    run = overlaplab.load_run(path)
    (row,) = overlaplab.summary(run).to_dict("records")
    ranges = [(e.time_range.start * 1000, e.time_range.end * 1000) for e in told if e.name.startswith("aten::")]
    assert row["compute_ns"] == pytest.approx(total(union(*np.array(ranges).round().astype(np.int64).T)), abs=100)
    assert run_warnings(run) == ()


def test_kernels_of_the_autograd_profiler_are_told_by_their_process(tmp_path: Path) -> None:
    uncategorised = [
        {"ph": "X", "name": "aten::mm", "pid": "CPU functions", "tid": 1, "ts": 0, "dur": 9, "args": {}},
        {"ph": "X", "name": "sgemm", "pid": "CUDA functions", "tid": 0, "ts": 5, "dur": 20, "args": {}},
        {"ph": "X", "name": "ncclAllReduceRingLLKernel", "pid": "CUDA functions", "tid": 0, "ts": 15, "dur": 30},
    ]
    (row,) = overlaplab.summary(run_of(tmp_path, uncategorised)).to_dict("records")
    assert (row["compute_ns"], row["comm_ns"], row["overlapped_ns"]) == (20_000, 30_000, 10_000)


spans = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30)), max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans, spans, spans, st.integers(20, 80))
def test_the_identities_hold_to_the_nanosecond(
    tmp_path: Path,
    compute: list[tuple[int, int]],
    comm: list[tuple[int, int]],
    memory: list[tuple[int, int]],
    border: int,
) -> None:
    """Against counting every microsecond of the trace separately."""
    events: list[dict[str, Any]] = [step(0, 0, 40), step(1, 40, 80)]
    named = {"gemm": compute, "ncclDevKernel": comm, "Memset (Device)": memory}
    correlation = 0
    for name, chosen in named.items():
        cat = "gpu_memset" if name.startswith("Memset") else "kernel"
        for start, length in chosen:
            correlation += 1
            events += launched(name, 1, start, start + length, correlation=correlation, cat=cat)
    events += launched("gemm", 1, 0, 1, correlation=998) + launched("gemm", 41, border, 140, correlation=999)
    at = {name: {t for start, n in chosen for t in range(start, start + n)} for name, chosen in named.items()}
    at["gemm"] |= {0, *range(border, 140)}
    table = overlaplab.summary(run_of(tmp_path, events))
    assert (table["span_ns"] == table[list(PARTS)].sum(axis=1)).all()
    for row, window in zip(table.to_dict("records"), [set(range(border)), set(range(border, 140))], strict=True):
        computing, talking, copying = (at[name] & window for name in named)
        expected = {
            "span_ns": window,
            "compute_ns": computing,
            "comm_ns": talking,
            "overlapped_ns": computing & talking,
            "compute_only_ns": computing - talking,
            "exposed_comm_ns": talking - computing,
            "memory_only_ns": copying - computing - talking,
            "idle_ns": window - computing - talking - copying,
        }
        assert {key: row[key] for key in expected} == {key: 1000 * len(moments) for key, moments in expected.items()}
