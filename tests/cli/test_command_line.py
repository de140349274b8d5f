"""The command line as scripts use it: JSON, exit codes, one line for what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made.traces import event, gloo, op, run_of, step, write
from samples import TRACES, sample_run

from overlaplab.sections.run_tables import RunTables
from overlaplab.words import visible_line

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
    "preempted_ns",
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

SCHEDULE_KEYS = [
    "unit",
    "layer",
    "microbatch",
    "phase",
    "gather_launch_ns",
    "gather_start_ns",
    "gather_end_ns",
    "first_use_ns",
    "free_ns",
    "wait_ns",
    "bytes",
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


def unit_events(unit: str, phase: str, seq: int, at: float) -> list[dict[str, Any]]:
    """A gather of 2 MB in 9 µs."""
    where = f"unit={unit} phase={phase} microbatch=0"
    return [
        event(f"engine::gather_launch {where} bytes=2000000", at, at + 2),
        event(f"engine::launch seq={seq}", at + 1, at + 2),
        event(f"engine::comm seq={seq} kind=all_gather bytes=2000000", at + 2, at + 5, tid=7),
        event(f"engine::gather_wait {where}", at + 3, at + 6),
        event(f"engine::first_use {where}", at + 6, at + 6),
        event(f"engine::last_use {where}", at + 8, at + 8),
        event(f"engine::free {where} bytes=2000000", at + 9, at + 9),
    ]


SHARDED = [
    step(3, 0, 50),
    step(4, 50, 100),
    *(e for shift in (0, 50) for e in unit_events("layers.0", "forward", shift, shift + 1)),
    *(e for shift in (0, 50) for e in unit_events("layers.0", "backward", shift + 1, shift + 11)),
    *unit_events("embedding", "forward", 9, 21),
    event("engine::scatter_launch unit=layers.0 microbatch=0 bytes=8", 40, 41),
]


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    run_of(tmp_path / "sharded", SHARDED, SHARDED, manifest={"strategy": "zero3"})
    return tmp_path / "sharded"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run_of(tmp_path / "run", EVENTS, EVENTS, manifest={"strategy": "bucketed"})
    return tmp_path / "run"


def test_summary_json(command: Any, folder: Path) -> None:
    code, out, _ = command("summary", folder, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["schema_version"] == 2
    assert list(document) == ["schema_version", "run", "warnings", "ranks", "predicted", "delays"]
    assert document["run"]["strategy"] == "bucketed"
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    first = document["ranks"][0]
    assert list(first) == ["rank", "outside_ns", "steps", "total"]
    (step,) = first["steps"]
    assert (list(step), list(first["total"])) == ([*SUMMARY_KEYS, "damaged", "step_kind"], SUMMARY_KEYS)
    assert step | {"step": None, "start_ns": None} == first["total"] | {"damaged": False, "step_kind": 0}
    assert first["total"]["overlap_ratio"] == 0.5
    assert (first["total"]["exposed_wait_ns"], first["total"]["exposed_transfer_ns"]) == (
        0,
        first["total"]["exposed_comm_ns"],
    )


def test_buckets_json(command: Any, folder: Path) -> None:
    _, out, _ = command("buckets", folder, "--json", "--rank", 1)
    (rank,) = json.loads(out)["ranks"]
    (found,) = rank["steps"]
    assert list(found) == ["step", "backward_start_ns", "backward_end_ns", "passes", "gradients", "buckets"]
    (bucket,) = found["buckets"]
    assert [key for key in bucket if key in BUCKET_KEYS] == BUCKET_KEYS
    assert bucket["gradient_ready_ns"] == [29_000, None]
    assert (bucket["parameters"], bucket["last_parameter"], bucket["exposed_ns"]) == (["w", "v"], "w", 20_000)


def test_schedule_json(command: Any, sharded: Path) -> None:
    _, out, _ = command("schedule", sharded, "--json", "--rank", 1)
    document = json.loads(out)
    (rank,) = document["ranks"]
    first, second = rank["steps"]
    assert (rank["rank"], first["step"], second["step"]) == (1, 3, 4)
    contract = ("microbatches", "gathers", "frees", "layer_gathers", "layer_frees", "peak_gathered_bytes")
    assert [first[key] for key in contract] == [1, 3, 3, 2, 2, 2_000_000]
    more = ("forward_layer_gathers", "backward_layer_gathers", "peak_ns", "peak_layers", "wait_ns")
    assert [first[key] for key in more] == [1, 1, 1_000, 1, 6_000]
    assert [event["unit"] for event in first["events"]] == ["layers.0", "layers.0", "embedding"]
    assert [key for key in first["events"][0] if key in SCHEDULE_KEYS] == SCHEDULE_KEYS
    assert first["events"][2]["layer"] is None
    assert [scatter["launch_ns"] for scatter in first["scatters"]] == [40_000]
    assert [(kind["kind"], kind["count"]) for kind in first["volume"]] == [("all_gather", 3)]
    assert (second["gathers"], second["scatters"]) == (2, [])
    assert (document["volume_theory"], document["memory"], document["emulated"]) == (None, [], False)


def test_schedule_in_words(command: Any, sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = command("schedule", sharded)
    assert [line.split() for line in out.splitlines() if " = " in line and line.startswith(" ")] == [
        [rank, step, "2", "=", "1", "+", "1", "2", in_all, "2.00", "1", "0.001", waited]
        for rank in "01"
        for step, in_all, waited in (("3", "3", "0.006"), ("4", "2", "0.004"))
    ]
    _, out, _ = command("schedule", sharded, "--rank", 0, "--step", 3)
    assert "rank 0, step 3: 2 gathers of 1 layer = 1 forward + 1 backward, 2 freed; 3" in out
    assert [line.split()[:3] for line in out.splitlines() if " fwd " in line or " bwd " in line] == [
        ["layers.0", "fwd", "0"],
        ["layers.0", "bwd", "0"],
        ["embedding", "fwd", "0"],
    ]
    assert out.count("0.002 ms") == out.count("longer than") == 3  # why each was waited for


def test_a_run_that_gathers_nothing_says_so(command: Any, folder: Path) -> None:
    code, out, _ = command("schedule", folder)
    assert code == 0
    assert "no gathers were found" in out
    _, out, _ = command("schedule", folder, "--json")
    document = json.loads(out)
    counts = [(step["gathers"], step["events"]) for rank in document["ranks"] for step in rank["steps"]]
    assert set(map(str, counts)) == {"(0, [])"}
    assert all(step["volume"] for rank in document["ranks"] for step in rank["steps"])
    assert "no gathers were found" in document["warnings"][-1]


def test_compare_shows_what_was_sent_and_held(
    command: Any, sharded: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    _, out, _ = command("compare", sharded, folder)
    (row,) = [line.split() for line in out[out.index("sent MB") :].splitlines() if "sharded" in line]
    assert row[-4:] == ["2.50", "–", "–", "–"]
    _, out, _ = command("compare", sharded, folder, "--json")
    keys = ("sent_bytes", "theory_sent_bytes", "memory_bytes", "theory_memory_bytes")
    assert [[run[key] for key in keys] for run in json.loads(out)["runs"]] == [[2_500_000, *[None] * 3], [None] * 4]


def test_compare_json(command: Any, folder: Path, tmp_path: Path) -> None:
    more = [step(number, at, at + 100) for number, at in ((4, 100), (5, 200))]
    run_of(folder, EVENTS + more, EVENTS + more, manifest={"strategy": "bucketed"})
    run_of(tmp_path / "slow", [*(step(n, 300 * n, 300 * n + 300) for n in range(3)), op("mm", 0, 60)])
    _, out, _ = command("compare", folder, tmp_path / "slow", "--json")
    document = json.loads(out)
    assert [list(row) for row in document["runs"]] == [list(document["runs"][0])] * 2
    assert set(COMPARE_KEYS) <= set(document["runs"][0])
    assert document["runs"][0]["step_ms"] == {"median": 0.1, "iqr": 0.0}
    assert document["runs"][1]["overlap_ratio"] is None
    assert document["fastest"] == str(folder)


def test_folders_that_cannot_be_looked_into_are_named(command: Any, folder: Path, tmp_path: Path) -> None:
    (folder.parent / "aside").symlink_to(tmp_path / "moved away")
    code, _, err = command("compare", folder.parent, folder, "--json")
    assert code == 0
    assert err.startswith(f"overlaplab: {folder.parent}/aside was left out: a link to {tmp_path}/moved away: No such")


def test_one_line_says_the_cause_and_the_advice_of_summary(command: Any, folder: Path) -> None:
    code, line, _ = command("summary", TRACES / "torch-ddp", "--line")
    diagnosis = RunTables(run=sample_run("torch-ddp")).diagnosis
    assert diagnosis is not None
    assert (code, line.count("\n")) == (0, 1)
    assert line.startswith(
        "Rank 1, step 3 (the most exposed rank, its median step by exposed time): 12 % of the step is"
    )
    assert line.endswith(visible_line(f": {diagnosis.headline} {diagnosis.advice}") + "\n")
    assert visible_line(diagnosis.advice) in " ".join(command("summary", TRACES / "torch-ddp")[1].split())
    assert command("summary", folder / "missing", "--line")[:2] == (2, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("summary RUN --line --json", "--line goes without --json. Leave one of them out."),
        ("summary RUN --line --all", "--line goes without --all. Leave one of them out."),
        ("export RUN --perfetto - --inductor-estimates x", "--perfetto - goes without --inductor-estimates."),
        ("sweep --strategy ring --out x --bucket-cap-mb 1 -- true {bucket_cap_mb}", "--strategy is for overlaplab rec"),
        ("advise RUN --repeats 5", "--repeats goes with --verify."),
        ("advise RUN --out x", "--out goes with --verify."),
    ],
)
def test_options_that_would_do_nothing_are_refused(command: Any, folder: Path, words: str, says: str) -> None:
    code, out, err = command(*(str(folder) if word == "RUN" else word for word in words.split()))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"overlaplab: {says}")


def test_fail_if_exits_with_one(command: Any, folder: Path, tmp_path: Path) -> None:
    run_of(tmp_path / "worse", [step(3, 0, 100), op("mm", 0, 30), gloo(40, 90)])
    code, out, err = command("compare", folder, tmp_path / "worse", "--json", "--fail-if", "exposed_comm_ns > 5%")
    assert code == 1
    assert json.loads(out)["fastest"] is None
    assert json.loads(out)["no_fastest"].startswith("too few steps")
    assert "exposed_comm_ns changed by +150.0 %" in err
    code, out, _ = command("compare", tmp_path / "worse", folder, "--fail-if", "exposed_comm_ns > 5%")
    assert code == 0
    assert "none is fastest: too few steps to show a difference" in " ".join(out.split())


def test_every_fail_if_counts(command: Any, folder: Path, tmp_path: Path) -> None:
    """20 µs of each step are exposed in the first run, 50 in the last."""
    run_of(tmp_path / "worse", [step(3, 0, 100), op("mm", 0, 30), gloo(40, 90)])

    def failed(*conditions: str) -> tuple[int, list[str]]:
        given = [word for condition in conditions for word in ("--fail-if", condition)]
        code, _, err = command("compare", folder, tmp_path / "worse", "--json", *given)
        return code, err.splitlines()

    more, less, cause = "exposed_comm_ns > 5%", "exposed_comm_ns > 60us", "exposed.blocking > 25us"
    kept = "overlaplab: ok: exposed_comm_ns is 50us, and may not be > 60us"
    changed = "exposed_comm_ns changed by +150.0 %, from 0.020 ms to 0.050 ms (means)"
    grown = f"overlaplab: failed: {changed}, and may not be > 5%"
    assert failed(less) == (0, [kept])
    assert failed(more, less) == (1, [grown, kept])
    assert failed(less, cause, more) == (
        1,
        [kept, "overlaplab: failed: exposed.blocking is 30us, and may not be > 25us", grown],
    )
    assert failed(more, "nothing > 5%")[0] == 2


def test_a_run_without_steps_or_device_activity(command: Any, tmp_path: Path) -> None:
    run_of(tmp_path, [event("cudaLaunchKernel", 0, 1, cat="cuda_runtime")])
    _, out, _ = command("summary", tmp_path, "--json")
    document = json.loads(out)
    assert document["ranks"] == [{"rank": 0, "outside_ns": None, "steps": [], "total": None}]
    assert "device activity was not recorded" in document["warnings"][0]
    assert command("summary", tmp_path)[0] == command("buckets", tmp_path)[0] == 0
    assert command("compare", tmp_path, tmp_path)[0] == 0


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(
    command: Any, folder: Path, sharded: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    one = ("--rank", 0, "--step", 3)
    for line in [("summary", folder), ("buckets", folder), ("schedule", sharded), ("schedule", sharded, *one)]:
        code, out, _ = command(*line)
        assert code == 0
        assert max(map(len, out.splitlines())) <= width
        assert "…" not in "".join(line for line in out.splitlines() if "0.1" in line)


def test_summary_shows_the_wait_where_it_is_known(command: Any, tmp_path: Path) -> None:
    """Rank 1 arrives 40 ms later, and neither computes meanwhile."""
    label = "engine::comm seq={} kind=all_reduce dtype=float32 bytes=400 group=default_pg"

    def rank(late_us: float) -> list[dict[str, Any]]:
        carried = [
            event(label.format(seq), at + late_us, at + 100_000, cat="user_annotation", tid=7)
            for seq, at in enumerate((20_000, 220_000, 420_000))
        ]
        return [step(1, 0, 600_000), op("mm", 0, 10_000), *carried]

    run_of(tmp_path / "both", rank(0), rank(40_000))
    alone = write(tmp_path / "alone.json", rank(0), distributedInfo={"rank": 0, "world_size": 2, "backend": "gloo"})
    rows = [line.split() for line in command("summary", tmp_path / "both")[1].splitlines()]
    assert ["rank", "step", "step", "ms", "alone", "hidden", "exposed", "wait", "memory", "idle", "overlap"] in rows
    assert ["0", "1", "600.0", "10.0", "0.0", "300.0", "120.0", "0.0", "290.0", "0", "%"] in rows
    assert ["1", "1", "600.0", "10.0", "0.0", "180.0", "0.0", "0.0", "410.0", "0", "%"] in rows
    rows = [line.split() for line in command("summary", alone)[1].splitlines()]
    assert ["rank", "step", "step", "ms", "alone", "hidden", "exposed", "memory", "idle", "overlap"] in rows


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
