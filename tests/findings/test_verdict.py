"""The verdict on a run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from made_traces import event, launched, op, run_of

import overlaplab
from overlaplab.analyses import idle
from overlaplab.findings import other_problem, verdict

MS = 1_000_000


@pytest.mark.parametrize("comm", [0, 30])
def test_the_verdict_names_its_denominators(comm: int) -> None:
    table = pd.DataFrame(
        {
            "rank": pd.array([0, 0, 5], dtype="Int64"),
            "step": pd.array([1, 2, 1], dtype="Int64"),
            "span_ns": [100 * MS, 120 * MS, 100 * MS],
            "comm_ns": [comm * MS] * 3,
            "overlapped_ns": [20 * MS if comm else 0, 20 * MS if comm else 0, 5 * MS if comm else 0],
            "exposed_comm_ns": [10 * MS if comm else 0, 10 * MS if comm else 0, 25 * MS if comm else 0],
            "exposed_wait_ns": pd.array([0, 0, 20 * MS], dtype="Int64"),
            "exposed_transfer_ns": pd.array([10 * MS, 10 * MS, 5 * MS], dtype="Int64"),
            "compute_ns": [90 * MS] * 3,
            "idle_ns": [0] * 3,
            "memory_only_ns": [0] * 3,
        }
    )
    start = "Foreign traces, 2 ranks, median step 100.0 ms"
    expected = f"{start}. It has no communication."
    if comm:
        expected = (
            f"{start}, worst rank 5 (step 1): 25.0 ms exposed (25\u00a0% of its step): 20.0 waiting for other ranks,"
            " 5.0 transfer. 50\u00a0% of communication time, over all ranks and steps, is hidden."
        )
    assert verdict(table, None) == expected
    assert "nothing to show" in verdict(table.iloc[:0], None)


def test_the_verdict_says_what_the_problem_is_where_communication_is_not(tmp_path: Path) -> None:
    events = launched("gemm", 0, 0, 10, correlation=1) + launched("gemm", 88, 90, 100, correlation=2)
    run = run_of(tmp_path / "idle", events)
    sentence = verdict(overlaplab.summary(run), None, overlaplab.exposed(run), idle(run))
    assert sentence == (
        "Foreign traces, 1 rank, median step 0.10 ms. It has no communication."
        " 80\u00a0% of the step time is idle, since the host launches too slowly."
    )
    events = [op("mm", 0, 97), event("gloo:all_reduce", 96, 98, cat="user_annotation", tid=7), op("mm", 98, 100)]
    busy = run_of(tmp_path / "busy", events)
    assert other_problem(overlaplab.summary(busy), None, None) == (
        "Communication is not the problem: for 99\u00a0% of the step time the ranks compute."
    )
    events = [op("mm", 0, 50), event("gloo:all_reduce", 40, 100, cat="user_annotation", tid=7)]
    assert other_problem(overlaplab.summary(run_of(tmp_path / "exposed", events)), None, None) is None
