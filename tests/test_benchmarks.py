"""Benchmarks run: each once, with tiny sizes; what they print is a ratio of every pair."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = "--layers 1 --width 16 --seq 4 --batch 2 --pairs 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "lines"),
    [
        ("commands.py", f"{ROOT} --only schedule --pairs 1", ["schedule"]),
        ("zero3_cost.py", f"{TINY} --checkpointing all", ["step time", "peak memory"]),
    ],
)
def test_a_benchmark_prints_its_ratios(script: str, options: str, lines: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}", *options.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'engine'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if " pairs; medians " in line]
    assert [line.partition(",")[0].partition(":")[0] for line in printed] == lines
