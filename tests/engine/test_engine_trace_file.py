"""When the recorder of a trace waits for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import record


@pytest.mark.parametrize(
    ("cuda", "expected"), [(True, "step, wait, step, step, step"), (False, "step, step, step, step")]
)
def test_the_device_is_done_with_warmup_before_the_recording(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: bool, expected: str
) -> None:
    """Two steps of warm-up: between the second one and the first that is recorded, and nowhere else."""
    done: list[str] = []

    class Profiler:
        def __init__(self, **options: Any) -> None:
            """Notes alone."""

        def step(self) -> None:
            done.append("step")

    monkeypatch.setattr(record, "profile", Profiler)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    trace = record.TraceFile(tmp_path, 0, warmup=2, steps=2, cuda=cuda)
    for _ in range(4):
        trace.step()
    assert ", ".join(done) == expected
