"""What measures and records on a GPU: its arithmetic, and on a CPU the whole of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loaded_script import script

from engine.link import Kind, Link

ROOT = Path(__file__).parents[1]
GOALS = {"forward": 0.03, "backward": 0.06, "host": 0.02, "communication": 0.042, "modelled": 0.0415}


TABLE = script("benchmarks/_gpu_table.py")


@pytest.mark.parametrize(
    ("backward", "buckets", "expected"),
    [
        (0.06, [25 << 20] * 24, (230, 10)),  # 42 ms, 3.4 of them latency
        (0.010, [25 << 20] * 24, (2400, 10)),  # 7 ms, 3.4 of them latency
        (0.009, [25 << 20] * 24, (1900, 5)),  # above half of 6.3 ms, so half the latency
        (0.0001, [1 << 20] * 24, (5000, 0)),
    ],
)
def test_the_link_takes_its_share_of_the_backward_pass(
    backward: float, buckets: list[int], expected: tuple[float, float]
) -> None:
    gbps, us = TABLE.pick_link(backward, buckets, 8)
    assert (gbps, us) == expected
    link = Link(bandwidth_gbps=gbps, latency_us=us, world_size=8)
    modelled = sum(link.modelled_ns(Kind.ALL_REDUCE, nbytes, 8) for nbytes in buckets) / 1e9
    assert 0.66 < modelled / backward < 0.74


def written(out: Path, **found: dict[str, Any]) -> None:
    for name, figures in found.items():
        told = {"torch": "2", "link": "L", "link_wait": "host", "device": "a GPU"} | figures
        (out / f"{name.replace('_', '-')}.json").write_text(json.dumps(told))


def test_tables_of_what_was_measured(tmp_path: Path) -> None:
    written(
        tmp_path,
        alone=GOALS | {"buckets": [1, 2], "parameters": 3_000_000},
        ddp={"what": "A ÷ B", "ours": [0.1, 0.11, 0.12], "theirs": [0.1, 0.1, 0.1]},
        fsdp2={"what": "C ÷ D", "ours": [0.6], "theirs": [0.6]} | {"ours": [0.6, 0.6], "theirs": [0.5, 0.5]},
        curve={"caps": [1, 25], "seconds": [[0.6, 0.6, 0.7], [0.5, 0.5, 0.9]], "buckets": [9, 2]},
    )
    sample = ROOT / "traces" / "bucketed"
    (tmp_path / "bucketed").symlink_to(sample)
    text = TABLE.tables(tmp_path)
    assert text.startswith("a GPU, torch 2; one rank of an emulated group, its peers phantoms, --link-wait host\n")
    assert "| communication alone ÷ backward alone, link L, 2 buckets | 0.700 (42.00 ms; modelled 41.50 ms) |" in text
    assert "| A ÷ B | 1.100 (1.050 to 1.150, 3 pairs; 110.00 and 100.00 ms) | ≤ 1.00 |" in text
    assert "| C ÷ D | 1.200 (1.200 to 1.200, 2 pairs; 600.00 and 500.00 ms) | ≤ 1.00 |" in text
    # the bound of this sample's median step is 474 ms
    assert re.search(r"step time ÷ bound, bucketed, 25 MiB \| 1\.05\d \(500\.00 ms; bound 47\d\.\d\d ms", text)
    assert "| step time, median, ms | 600.00 | 500.00 |" in text


def test_the_plan_says_what_holds_up_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both for the parts and for the runs that are recorded."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    gpu = script("benchmarks/gpu.py")
    measuring = gpu.Measuring(tmp_path, gpu.FULL | {"link_wait": "host"}, 0.0)
    ran: list[list[str]] = []
    monkeypatch.setattr(gpu.Measuring, "_run", lambda self, name, words, alone=True: ran.append(words))
    measuring.plan["link"] = "1Gbps,1us,8"
    measuring.record("bucketed")
    assert ran[0][ran[0].index("--link-wait") + 1] == "host"
    measuring.part("alone", "alone")
    plan = script("benchmarks/_gpu_parts.py").Plan(**json.loads((tmp_path / "alone.plan").read_text()))
    assert plan.link_wait == "host"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_everything_is_measured_on_a_cpu(tmp_path: Path) -> None:
    line = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--small", "--out", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "failed" not in done.stderr
    for what in (
        *("communication alone ÷ backward alone", "bucketed ÷ torch-ddp", "zero3 ÷ torch-fsdp2", "recording on ÷ off"),
        *("removed, bucketed", "removed, zero3", "÷ bound, bucketed", "÷ bound, zero3"),
    ):
        assert len(re.findall(rf"^\| .*{what}.* \| \d+\.\d\d\d \(", done.stdout, re.M)) >= 1, what
    assert done.stdout.count("| step time, median, ms |") == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_sample_is_recorded_on_a_cpu(tmp_path: Path) -> None:
    line = ["scripts/record_gpu_samples.sh", str(tmp_path)]
    environment = os.environ | {"DEVICE": "cpu", "PYTHON": sys.executable}
    subprocess.run(line, cwd=ROOT, env=environment, check=True)
    made = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/run.json")}
    assert sorted(made) == [
        *("bucketed-cap-100", "bucketed-cap-25", "bucketed-cap-5", "naive", "per-param"),
        *("torch-ddp", "torch-fsdp2", "zero1", "zero2", "zero3"),
    ]
    for name, manifest in made.items():
        assert manifest["world_size"] == manifest["link"]["world_size"] == 8
        assert manifest["numerics_meant"] is False
        assert manifest["model"]["layers"] == (32 if name in ("zero1", "zero2", "zero3", "torch-fsdp2") else 8)
        assert (tmp_path / name / "rank0.pt.trace.json.gz").exists()


def test_samples_that_grow_too_large_are_told(tmp_path: Path) -> None:
    """With an interpreter that records nothing but a file: three steps are too large, two are not, or both are."""
    python = tmp_path / "python"
    sizes = 'case "$*" in *"$LARGE"*) size=300;; *) size=299;; esac'
    python.write_text(f'#!/bin/sh\nmkdir -p "$4"\n{sizes}\nhead -c $size /dev/zero >"$4/run.json"\n')
    python.chmod(0o755)

    def recorded(large: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"DEVICE": "cpu", "PYTHON": str(python), "MOST": "300", "LARGE": large}
        line = ["scripts/record_gpu_samples.sh", str(tmp_path / "out")]
        return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)

    assert recorded("--steps 3").returncode == 0
    assert "naive: 2 steps, 299 bytes" in recorded("--steps 3").stdout
    assert recorded("zero3").returncode == 1
    assert recorded("zero3").stderr.splitlines() == ["failed: zero3"]
