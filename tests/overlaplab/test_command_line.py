"""The command line as scripts use it: JSON, exit codes, one line for what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_traces import event, gloo, op, run_of, step

from overlaplab.cli import main

SUMMARY_KEYS = [
    "step",
    "start_ns",
    "span_ns",
    "compute_ns",
    "comm_ns",
    "overlapped_ns",
    "compute_only_ns",
    "exposed_comm_ns",
    "exposed_wait_ns",
    "exposed_transfer_ns",
    "memory_only_ns",
    "idle_ns",
    "overlap_ratio",
]
BUCKET_KEYS = [
    "index",
    "bytes",
    "parameters",
    "gradient_ready_ns",
    "last_parameter",
    "ready_ns",
    "launch_ns",
    "start_ns",
    "end_ns",
    "exposed_ns",
]
COMPARE_KEYS = [
    "path",
    "strategy",
    "bucket_cap_mb",
    "ranks",
    "steps",
    "step_ms",
    "exposed_ms",
    "comm_ms",
    "compute_ms",
    "overlap_ratio",
]

EVENTS = [
    step(3, 0, 100),
    op("mm", 0, 60),
    event("engine::backward microbatch=0 sync=1", 10, 60),
    event("engine::gradient_ready parameter=w", 29, 30),
    event("engine::bucket_ready bucket=0 bytes=8 parameters=w,v", 30, 31),
    event("engine::bucket_launch bucket=0", 31, 33),
    event("engine::launch seq=0", 31, 32),
    event("engine::comm seq=0 kind=all_reduce", 40, 80, tid=7),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run_of(tmp_path / "run", EVENTS, EVENTS, manifest={"strategy": "bucketed"})
    return tmp_path / "run"


def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[Any, str, str]:
    monkeypatch.setattr(sys, "argv", ["overlaplab", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *arguments: call(capsys, monkeypatch, *arguments)


def test_summary_json(command: Any, folder: Path) -> None:
    code, out, _ = command("summary", folder, "--json")
    document = json.loads(out)
    assert code == 0
    assert list(document) == ["run", "warnings", "ranks"]
    assert document["run"]["strategy"] == "bucketed"
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    first = document["ranks"][0]
    assert list(first) == ["rank", "outside_ns", "steps", "total"]
    assert list(first["steps"][0]) == list(first["total"]) == SUMMARY_KEYS
    assert first["steps"][0] | {"step": None, "start_ns": None} == first["total"]
    assert first["total"]["overlap_ratio"] == 0.5
    assert first["total"]["exposed_wait_ns"] is None


def test_buckets_json(command: Any, folder: Path) -> None:
    _, out, _ = command("buckets", folder, "--json", "--rank", 1)
    (rank,) = json.loads(out)["ranks"]
    (found,) = rank["steps"]
    assert list(found) == ["step", "backward_start_ns", "backward_end_ns", "buckets"]
    (bucket,) = found["buckets"]
    assert list(bucket) == BUCKET_KEYS
    assert bucket["gradient_ready_ns"] == [29_000, None]
    assert (bucket["parameters"], bucket["last_parameter"], bucket["exposed_ns"]) == (["w", "v"], "w", 20_000)


def test_compare_json(command: Any, folder: Path, tmp_path: Path) -> None:
    run_of(tmp_path / "slow", [step(3, 0, 300), op("mm", 0, 60)])
    _, out, _ = command("compare", folder, tmp_path / "slow", "--json")
    document = json.loads(out)
    assert [list(row) for row in document["runs"]] == [list(document["runs"][0])] * 2
    assert set(COMPARE_KEYS) <= set(document["runs"][0])
    assert document["runs"][0]["step_ms"] == {"median": 0.1, "iqr": 0.0}
    assert document["runs"][1]["overlap_ratio"] is None
    assert document["fastest"] == str(folder)


def test_fail_if_exits_with_one(command: Any, folder: Path, tmp_path: Path) -> None:
    run_of(tmp_path / "worse", [step(3, 0, 100), op("mm", 0, 30), gloo(40, 90)])
    code, out, err = command("compare", folder, tmp_path / "worse", "--json", "--fail-if", "exposed_comm_ns > 5%")
    assert code == 1
    assert json.loads(out)["fastest"] is None
    assert "exposed_comm_ns changed by +150.0 %" in err
    assert command("compare", tmp_path / "worse", folder, "--fail-if", "exposed_comm_ns > 5%")[0] == 0


def test_a_run_without_steps_or_device_activity(command: Any, tmp_path: Path) -> None:
    run_of(tmp_path, [event("cudaLaunchKernel", 0, 1, cat="cuda_runtime")])
    _, out, _ = command("summary", tmp_path, "--json")
    document = json.loads(out)
    assert document["ranks"] == [{"rank": 0, "outside_ns": None, "steps": [], "total": None}]
    assert "device activity was not recorded" in document["warnings"][0]
    assert command("summary", tmp_path)[0] == command("buckets", tmp_path)[0] == 0
    assert command("compare", tmp_path, tmp_path)[0] == 0


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for name in ("summary", "buckets"):
        code, out, _ = command(name, folder)
        assert code == 0
        assert max(map(len, out.splitlines())) <= width
        assert "…" not in "".join(line for line in out.splitlines() if "0.1" in line)


def test_markup_and_escapes_in_a_trace_stay_text(command: Any, tmp_path: Path) -> None:
    name = "[red]%1B[31mw"
    events = [
        e
        | {
            "name": str(e["name"])
            .replace("parameters=w,v", f"parameters={name}")
            .replace("parameter=w", f"parameter={name}")
        }
        for e in EVENTS
    ]
    run_of(tmp_path, events)
    _, out, _ = command("buckets", tmp_path)
    assert "[red]" in out
    assert "\x1b" not in out
    hostile = [op("m\x1b[31mRED\x1b]0;owned\x07", 0, 9)]
    run_of(tmp_path / "silent", hostile, [gloo(0, 3)], manifest={"strategy": "x\x1b[31m[red]y"})
    _, out, _ = command("summary", tmp_path / "silent")
    assert "[red]y" in out
    assert "RED" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["summary", "absent"], "absent: no such file or directory"),
        (["summary", "RUN", "--rank", "5"], "rank 5: not in this run. It holds 0, 1"),
        (["summary", "RUN", "--step", "9"], "no step 9"),
        (["summary", "RUN", "--skip-steps", "-1"], "--skip-steps"),
        (["summary"], "RUN"),
        (["nothing"], "nothing"),
        (["compare", "RUN", "RUN", "--fail-if", "x"], "--fail-if"),
        (["app", "absent"], "absent: not a directory"),
        (["app", "a" * 300], "File name too long"),
        (["summary", "a" * 300], "File name too long"),
        (["compare", "RUN"], "only one run"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(command: Any, folder: Path, arguments: list[str], says: str) -> None:
    code, out, err = command(*(str(folder) if a == "RUN" else a for a in arguments))
    assert code == 2
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_the_installed_command_prints_only_the_document(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "overlaplab", "summary", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["ranks"]


def test_record_hands_everything_to_the_engine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "overlaplab", "record", "--strategy", "no-such", "--out", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no-such" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x").exists()
