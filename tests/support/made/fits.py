"""Runs whose batch is the largest that fits into a memory limit, written out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made.traces import op, run_of, step
from overlaplab import Run


def fits(
    folder: Path, strategy: str, *, batch: int, step_us: float = 1000, limit: int = 24_000_000, **manifest: Any
) -> Run:
    """Two ranks, a step each; samples of a run are 2 × `batch`."""
    own: dict[str, Any] = {
        "strategy": strategy,
        "memory_limit": limit,
        "largest_batch": True,
        "model": {"layers": 2, "batch": batch},
        "memory": [
            {"rank": rank, "parameters": 1, "gradients": 1, "optimizer": 2, "peak_allocated": limit - 10 + rank}
            for rank in range(2)
        ],
    }
    ranks = [[step(1, 0, step_us), op("mm", 0, 50)] for _ in range(2)]
    return run_of(folder, *ranks, manifest=own | manifest)
