"""Recording in a folder with files named like modules of this project or of Python's library.

A sweep does so in tests/cli/test_sweep_command.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("engine", "record", "comm", "labels")
TINY = ["--layers", "1", "--width", "8", "--heads", "2", "--seq", "4", "--batch", "1", "--vocab", "20"]
TINY += ["--steps", "1", "--warmup", "1", "--nproc", "1", "--device", "cpu"]
SCRIPT = """
import torch
from overlaplab import Recorder

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Recorder("run", model, warmup=1, steps=1) as recorder:
    while not recorder.done:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        recorder.step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text('raise SystemExit("shadowed")')
    return tmp_path


def expect_run(folder: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "shadowed" not in done.stdout + done.stderr
    assert sorted(file.name for file in (folder / "run").iterdir()) == ["rank0.pt.trace.json.gz", "run.json"]


def test_the_command_records_beside_any_files(folder: Path) -> None:
    """torch itself imports `profile`, by way of cProfile: neither the engine nor its ranks may find the user's."""
    (folder / "profile.py").write_text('raise SystemExit("shadowed")')
    expect_run(folder, "-m", "overlaplab", "record", "--strategy", "bucketed", "--out", "run", *TINY)


@pytest.mark.slow
def test_a_script_records_beside_any_files(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    expect_run(folder, "train.py")
