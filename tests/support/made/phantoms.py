"""Runs of one rank of an emulated group of eight: its peers are phantoms, which have no traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from made.ranks import group
from made.traces import MANIFEST, write
from overlaplab import Run, load_run

PHANTOMS: dict[str, Any] = {
    "world_size": 8,
    "link": {"emulated": True, "bandwidth_gbps": 400.0, "latency_us": 10.0, "world_size": 8},
    "link_attained": True,
    "phantom_ranks": [1, 2, 3, 4, 5, 6, 7],
    "numerics_meant": False,
}


def phantom_run(folder: Path, events: list[dict[str, Any]], **manifest: Any) -> Run:
    """Rank 0's trace of these events, with the files that the engine writes beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = {"rank": 0, "world_size": 8, "backend": "emulated", "pg_config": [group("0", range(8), "default_pg")]}
    write(folder / "rank0.pt.trace.json.gz", events, distributedInfo=info)
    (folder / "run.json").write_text(json.dumps(MANIFEST | PHANTOMS | manifest))
    return load_run(folder)
