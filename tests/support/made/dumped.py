"""Flight Recorder dumps of given collectives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overlaplab.load.flight_recorder import FlightDumps, load_dumps

MS = 1_000_000


def dump_entry(sequence: int, at_ms: int, kind: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """A collective of the default group, as gloo's dumps have it."""
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": sequence,
        "profiling_name": f"gloo:{kind}",
        "time_created_ns": at_ms * MS,
        "state": "scheduled",
        "is_p2p": False,
        "retired": True,
    } | more


def write_dumps(
    folder: Path, *ranks: Sequence[dict[str, Any]], members: Sequence[dict[str, list[int]]] | None = None
) -> Path:
    """A JSON file per rank; `members`: of each, the ranks of the groups that it is in, by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, entries in enumerate(ranks):
        groups = {name: {"ranks": str(of_group)} for name, of_group in members[rank].items()} if members else {}
        document = {"version": "2.10", "pg_config": groups, "entries": entries}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return folder


def dumps_of_a_stopped_rank(folder: Path) -> FlightDumps:
    """Rank 1 is late by 5 ms, and has not launched the third collective."""
    ranks = [[dump_entry(n, 10 * n) for n in (1, 2, 3)], [dump_entry(n, 10 * n + 5) for n in (1, 2)]]
    return load_dumps(write_dumps(folder, *ranks))
