"""`overlaplab exposed`: its document and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made.exposed import backward, bucket
from made.ranks import carried
from made.traces import event, gloo, op, run_of, step

from overlaplab.causes import Cause
from overlaplab.findings import collective_label
from overlaplab.report.page import report_page

LATE = "a" * 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rank 0 waits for rank 1 from 600 to 700 µs of a step, and 200 more are bucket 1's tail."""
    ranks = []
    for last in (600, 700):
        events = [step(3, 0, 1000), backward(0, last), op("mm", 0, last)]
        events += bucket(0, 300, 300, 300, 500) + bucket(1, last, last, last, 900)
        ranks.append([*events, op("mm", 910, 1000)])
    run_of(tmp_path / "run", *ranks, manifest={"strategy": "bucketed"})
    return tmp_path / "run"


def test_the_document_holds_each_cause(command: Any, folder: Path) -> None:
    code, out, err = command("exposed", folder, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert list(document) == [
        *("schema_version", "verdict", "advice", "bound", "worst", "diagnosis", "actions", "causes", "ranks"),
        *("emulated", "predicted", "warnings"),
    ]
    assert document["worst"] == {"rank": 0, "step": 3}
    said = document["diagnosis"]
    assert (said["rank"], said["step"], said["chosen"]) == (0, 3, "the most exposed rank")
    assert said["advice"] == document["advice"]
    assert (said["span_ns"], said["exposed_ns"], said["late_rank"], said["waited_ns"]) == (10**6, 300_000, 1, 100_000)
    assert [share["label"] for share in said["causes"]] == ["nothing left to overlap (tail)", "waited for rank 1"]
    assert set(document["causes"]) == {cause.value for cause in Cause}
    window = document["ranks"][0]["steps"][0]
    assert window["step"] == 3
    assert (window["exposed_comm_ns"], window["exposed_wait_ns"]) == (300_000, 100_000)
    assert sum(row["exposed_ns"] for row in window["causes"]) == 300_000
    assert window["causes"][0] == {
        "cause": "tail",
        "collective": 1,
        "kind": "all_reduce",
        "what": "bucket 1",
        "axis": None,
        "late_rank": None,
        "exposed_ns": 200_000,
        "start_ns": 700_000,
        "end_ns": 900_000,
    }
    assert window["causes"][1]["late_rank"] == 1
    assert window["idle"] == {
        "idle_ns": 10_000,
        "host_wait_ns": 10_000,
        "kernel_wait_ns": 0,
        "preempted_ns": 0,
        "other_ns": 0,
    }


def test_it_takes_ranks_and_steps(command: Any, folder: Path) -> None:
    document = json.loads(command("exposed", folder, "--json", "--rank", 1, "--step", 3)[1])
    assert [rank["rank"] for rank in document["ranks"]] == [1]
    code, _, err = command("exposed", folder, "--rank", 7)
    assert code == 2
    assert "rank 7: not in this run" in err


@pytest.mark.parametrize("width", [80, 120])
def test_the_verdict_comes_first_and_tables_fit(
    command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = command("exposed", folder)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("bucketed, 2 ranks, median step 1.0 ms; rank 0, step 3 (the most exposed rank)")
    assert max(map(len, lines)) <= width
    assert any(line.split()[:6] == ["0.100", "10.0", "waited", "for", "rank", "1"] for line in lines)
    assert any(line.split()[:4] == ["0.200", "20.0", "nothing", "left"] for line in lines)


def test_a_run_of_which_nothing_is_known(command: Any, tmp_path: Path) -> None:
    run_of(tmp_path, [event("cudaLaunchKernel", 0, 1, cat="cuda_runtime")])
    code, out, _ = command("exposed", tmp_path)
    assert code == 0
    assert out.startswith("Device activity was not recorded, so there is no breakdown: ")
    document = json.loads(command("exposed", tmp_path, "--json")[1])
    assert (document["worst"], document["ranks"]) == (None, [])


def test_a_median_step_without_exposed_time_has_no_list(command: Any, tmp_path: Path) -> None:
    events = [*(step(n, 100 * n, 100 * n + 100) for n in range(3)), op("mm", 0, 250), gloo(250, 280)]
    run = run_of(tmp_path, events)
    code, out, _ = command("exposed", tmp_path)
    assert code == 0
    assert "by cause" not in out
    assert "Nothing to do: no communication is exposed." in out
    assert "Nothing to do: no communication is exposed." in report_page([run])


def test_names_of_strangers_stay_text(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    named = [
        event(f"engine::gather_launch unit=%1B%5B31m{LATE} phase=forward microbatch=0 bytes=8", 9, 12),
        *carried(0, 10, 400, launch=10, kind="all_gather"),
    ]
    run_of(tmp_path, [step(0, 0, 900), op("mm", 0, 9), *named, op("mm", 500, 900)])
    code, out, _ = command("exposed", tmp_path)
    assert code == 0
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    row = {"collective": 3, "kind": None, "what": f"\x1b[31m{LATE}"}
    assert collective_label(row) == f"\N{REPLACEMENT CHARACTER}[31m{'a' * 17}…{'a' * 23}, collective 3"
