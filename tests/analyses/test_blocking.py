"""Which exposed communication was waited for: made steps in which an all-reduce is exposed for 99 µs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made.syncs import COMMUNICATION, COMPUTE, WAITS, computing, reduced, synchronize, wait
from made.traces import gloo, launched, op, run_of, step
from pandas.testing import assert_frame_equal
from typer.testing import CliRunner

from overlaplab import Run, blocking, exposed, summary
from overlaplab.analyses import idle
from overlaplab.cli import app
from overlaplab.findings import run_warnings
from overlaplab.sections.run_tables import RunTables

LATER = wait(240, 16, COMPUTE, on=COMMUNICATION, recorded_by=5)
"""The optimizer waits for the all-reduce, which was over long before."""
BLOCKING = [*reduced(), *WAITS, *computing(22, 161, 200)]
HOST_IS_LATE = [*reduced(), *computing(170, 176, 200), *LATER, *computing(242, 250, 300, 17)]
NO_FIELDS = [*reduced(resolved=False), *wait(20, 6, COMPUTE), *computing(22, 161, 200)]


def unsynced(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in events if each["cat"] != "cuda_sync"]


def parts(folder: Path, events: list[dict[str, Any]]) -> list[list[int]]:
    table = blocking(run_of(folder, events, backend="nccl"))
    assert (table.filter(like="_ns").iloc[:, 1:].sum(axis=1) == table["exposed_comm_ns"]).all()
    return (table[["blocking_ns", "not_blocking_ns", "unresolved_ns"]] // 1000).to_numpy().tolist()


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(BLOCKING, [99, 0, 0], id="the next kernel waits for it"),
        pytest.param(HOST_IS_LATE, [0, 99, 0], id="the host launches late, and nothing waits for it"),
        pytest.param(NO_FIELDS, [0, 0, 99], id="the fields are missing"),
        pytest.param(
            [*reduced(), *wait(98, 6, COMPUTE, on=COMMUNICATION, recorded_by=5), *computing(100, 161, 200)],
            [60, 39, 0],
            id="from its launch on it waits",
        ),
        pytest.param(
            [*reduced(), *synchronize(70, 162, 6, COMMUNICATION), *computing(170, 176, 200)],
            [90, 9, 0],
            id="the host waits for it before it launches",
        ),
        pytest.param(
            [*reduced(), *synchronize(70, 162, 6, COMPUTE), *computing(170, 176, 200)],
            [0, 99, 0],
            id="the host waits for something else",
        ),
        pytest.param(
            [*reduced(), *wait(90, 6, COMPUTE), *computing(100, 161, 200)],
            [0, 39, 60],
            id="this wait is unknown, and before it is told there is none",
        ),
        pytest.param(reduced(), [0, 0, 99], id="nothing computes afterwards"),
    ],
)
def test_exposed_time_by_what_waited(tmp_path: Path, events: list[dict[str, Any]], expected: list[int]) -> None:
    assert parts(tmp_path, events) == [expected]


def test_a_rank_on_a_cpu_is_unresolved(tmp_path: Path) -> None:
    table = blocking(run_of(tmp_path, [step(3, 0, 100), op("mm", 0, 10), gloo(20, 50)]))
    assert table.to_dict("records") == [
        {"rank": 0, "step": 3, "exposed_comm_ns": 30_000}
        | {"blocking_ns": 0, "not_blocking_ns": 0, "unresolved_ns": 30_000}
    ]


def said(run: Run) -> str | None:
    found = RunTables(run=run).diagnosis
    assert found is not None
    assert (found.blocks_nothing in found.remarks) is (found.blocks_nothing is not None)
    return found.blocks_nothing


def test_what_blocks_nothing_is_said_and_blamed_nowhere(tmp_path: Path) -> None:
    run = run_of(tmp_path / "late", HOST_IS_LATE, backend="nccl")
    assert said(run) == "0.099 ms of the exposed communication blocked nothing: no kernel waited for it."
    assert exposed(run)["cause"].tolist() == ["compute gap"]
    assert exposed(run_of(tmp_path / "times", unsynced(HOST_IS_LATE), backend="nccl"))["cause"].tolist() == ["blocking"]
    assert said(run_of(tmp_path / "blocking", BLOCKING, backend="nccl")) is None
    assert said(run_of(tmp_path / "unknown", NO_FIELDS, backend="nccl")) is None
    document = json.loads(CliRunner().invoke(app, ["exposed", str(tmp_path / "late"), "--json"]).output)
    assert document["diagnosis"]["blocks_nothing"] == said(run)
    assert document["ranks"][0]["steps"][0]["blocking"] == {
        "blocking_ns": 0,
        "not_blocking_ns": 99_000,
        "unresolved_ns": 0,
    }


def test_a_late_rank_is_not_blamed_for_what_nothing_waited_for(tmp_path: Path) -> None:
    """The other rank arrives at 150 µs."""
    late = [*computing(10, 20, 149, 1), *launched("ncclDevKernel_AllReduce", 16, 150, 160, stream=20, correlation=4)]
    ranks = [[*events, step(4, 400, 410)] for events in (HOST_IS_LATE, [step(3, 0, 400), op("forward", 0, 10), *late])]
    run = run_of(tmp_path / "exact", *ranks, backend="nccl")
    assert summary(run)["exposed_wait_ns"].tolist() == [89_000, 0]
    assert exposed(run).query("rank == 0")["cause"].tolist() == ["compute gap"]
    by_times = exposed(run_of(tmp_path / "times", *map(unsynced, ranks), backend="nccl")).query("rank == 0")
    assert by_times["cause"].tolist() == ["straggler wait", "blocking"]


def test_missing_fields_are_warned_of(tmp_path: Path) -> None:
    """But of a Recorder's run, which asks for them by itself."""
    run = run_of(tmp_path / "none", NO_FIELDS)
    assert [warning for warning in run_warnings(run) if "cuda_sync" in warning] == [
        "cuda_sync events do not say what streams waited for, as CUDA 12.9 and later lose it (pytorch #195068): whether"
        " anything waited for exposed communication is not known"
    ]
    for quiet in (run_of(tmp_path / "all", BLOCKING), run_of(tmp_path / "own", NO_FIELDS, manifest={"device": "cuda"})):
        assert not any("cuda_sync" in warning for warning in run_warnings(quiet))


@pytest.mark.parametrize("events", [BLOCKING, HOST_IS_LATE, NO_FIELDS])
def test_sync_events_count_as_nothing(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    runs = (run_of(tmp_path / name, own, backend="nccl") for name, own in (("a", events), ("b", unsynced(events))))
    first, second = runs
    assert_frame_equal(summary(first), summary(second))
    assert_frame_equal(idle(first), idle(second))
    assert_frame_equal(exposed(first).drop(columns="cause"), exposed(second).drop(columns="cause"))
