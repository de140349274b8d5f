"""What probes a GPU: its arithmetic, and that it says so where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loaded_script import script

ROOT = Path(__file__).parents[2]
PROBE = script("scripts/gpu_probe.py")


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    line = [sys.executable, "scripts/gpu_probe.py", "--out", str(tmp_path / "out")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        line, cwd=ROOT, env=environment | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "gpu_probe.py: this machine has no GPU\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("stamps", "steps"),
    [
        ([0, 32, 32, 96, 1000, 1064], [32, 64, 904]),
        ([5], []),
        ([7, 7, 7], []),
        ([1_024, 0, 2_048], [1_024]),
        ([0, 1, 3, 6, 10, 15, 21], [1, 2, 3, 4, 5]),
    ],
)
def test_the_steps_of_a_timer(stamps: list[int], steps: list[int]) -> None:
    assert PROBE.timer_steps(stamps) == steps


def on_device(category: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": "one", "ts": ts, "dur": dur}


@pytest.mark.parametrize("category", ["kernel", "gpu_memcpy"])
def test_excess_is_from_the_first_events_start_to_the_seconds_end(category: str) -> None:
    """In µs; the second collective comes first."""
    events = [
        on_device(category, 300.0, 1.5),
        on_device(category, 440.0, 2.5),
        on_device("cuda_runtime", 0.0, 900.0),
        on_device(category, 100.0, 1.5),
        on_device(category, 101.5, 138.0),
        {"ph": "X", "name": "without a category", "ts": 0.0, "dur": 1.0},
    ]
    assert PROBE.excess_ns(events, 140_000) == [-500, 2_500]
    with pytest.raises(ValueError, match="shorter"):
        PROBE.excess_ns(events[:-2], 140_000)


@pytest.mark.parametrize(
    ("current", "excess", "edges"),
    [(1_500, [-40, 0, 30], 1_500), (1_500, [700, 760, 9_000], 2_300), (1_500, [-1_460, -1_440], 0), (0, [149], 100)],
)
def test_the_edges_take_in_the_excess(current: int, excess: list[int], edges: int) -> None:
    assert PROBE.edges_ns(current, excess) == edges


@pytest.mark.parametrize(
    ("slowdowns", "told"),
    [
        (
            {"kernel": [1.0, 1.02], "host": [1.001, 0.999]},
            "kernel 1.020, host 1.001; --link-wait host disturbs computation less",
        ),
        (
            {"kernel": [1.001], "host": [1.04]},
            "kernel 1.001, host 1.040; --link-wait kernel disturbs computation less",
        ),
        ({"kernel": [1.004], "host": [1.0]}, "kernel 1.004, host 1.000; neither disturbs computation less"),
        ({"kernel": [1.01]}, "kernel 1.010; there is nothing to compare it with"),
    ],
)
def test_the_verdict_goes_by_the_worst_slowdown(slowdowns: dict[str, list[float]], told: str) -> None:
    assert PROBE.verdict(slowdowns) == f"worst slowdown beside the link: {told}"


def failing(probe: Any, name: str) -> None:
    """whether others still run"""
    raise RuntimeError("no\nsuch thing")


def finding(probe: Any, name: str) -> None:
    """something"""
    probe.edges = 1_700
    probe.slowdowns[name] = [1.0]


def test_a_section_that_fails_keeps_no_other_from_running(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    probe = PROBE.Probe(tmp_path / "out")
    probe.run(failing, "host")
    probe.run(finding, "kernel")
    assert probe.end() == 1
    out, err = capfd.readouterr()
    assert [line for line in out.splitlines() if not line.endswith(" s)")] == [
        "== failing host: whether others still run",
        "failing host failed: RuntimeError: no such thing",
        "== finding kernel: something",
        "worst slowdown beside the link: kernel 1.000; there is nothing to compare it with",
        "failed: failing host",
        "EDGES_NS=1700",
    ]
    assert "Traceback" in err
    assert (tmp_path / "out" / "probe.txt").read_text() == out


def test_a_section_that_hangs_ends_with_what_was_found() -> None:
    code = (
        "from loaded_script import script; import threading, time\n"
        "probe = script('scripts/gpu_probe.py').Probe(); probe.edges = 1_700\n"
        "def hanging(probe):\n  'for ever'\n  threading.Timer(0.1, probe.give_up).start(); time.sleep(600)\n"
        "probe.run(hanging)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests" / "support")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["== hanging: for ever", "failed: hanging (took too long)", "EDGES_NS=1700"]


def test_nothing_found_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert PROBE.Probe().end() == 0
    assert capfd.readouterr().out == "EDGES_NS=unknown\n"
