"""What the tests that need a GPU share: their marks, and how they start processes.

They run where neither overlaplab nor the engine is installed and without tests/conftest.py: see scripts/gpu_tests.py.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENDING_S = 40.0
"""How long a process that is asked to end may take; torchrun kills its ranks after 30 s."""


def limit(seconds: float) -> pytest.MarkDecorator:
    """How long a test may take. One that takes longer ends the process: no signal interrupts a wait for the GPU."""
    return pytest.mark.timeout(seconds, method="thread")


# Torch warns of prototypes and of its profiler, differently in each version: that is no failure of these tests.
GPU_TESTS = [pytest.mark.gpu, pytest.mark.filterwarnings("default"), limit(60)]
"""The `pytestmark` of a file whose tests need a GPU."""


def environment(**more: str) -> dict[str, str]:
    """For a process that imports this repository's packages, installed or not."""
    found = os.environ.get("PYTHONPATH")
    return (
        os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "engine"), *([found] if found else [])])}
        | more
    )


def run(line: Sequence[str], limit_s: float, **more: str) -> tuple[int, str]:
    """A process's exit code and what it printed, on stdout and stderr; `more` are environment variables.

    One that takes too long is asked to end, so that a launcher ends its ranks; if it does not, it is killed.
    """
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(line, env=environment(**more), stdout=output, stderr=output)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            output.write(f"\nended after {limit_s:g} s\n")
        output.seek(0)
        return process.returncode, output.read()
