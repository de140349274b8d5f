"""Collectives of several ranks written out by hand: times in µs, as in `made.traces`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made.traces import event, write
from overlaplab import Run, load_run


def carried(
    seq: int,
    start: float,
    end: float,
    *,
    launch: float | None = None,
    kind: str = "all_reduce",
    num_bytes: int = 8,
    group: str = "0",
    dtype: str = "float32",
) -> list[dict[str, Any]]:
    """A collective of an emulated link from `start` to `end`, launched at `launch` (None: before the recording)."""
    label = f"engine::comm seq={seq} kind={kind} dtype={dtype} bytes={num_bytes} group={group}"
    found = [event(label, start, end, tid=7, cat="user_annotation")]
    if launch is not None:
        found.append(event(f"engine::launch seq={seq}", launch, launch + 0.5, cat="user_annotation"))
    return found


def carried_all(spans: Sequence[tuple[float, float]], **more: Any) -> list[dict[str, Any]]:
    """Collectives 0, 1, 2 … with these starts and ends, each launched when it started."""
    found = []
    for seq, (start, end) in enumerate(spans):
        found += carried(seq, start, end, launch=start, **more)
    return found


def group(name: str, ranks: Sequence[int], description: str = "") -> dict[str, Any]:
    """A process group as in `distributedInfo.pg_config`."""
    return {"pg_name": name, "pg_desc": description, "pg_size": len(ranks), "ranks": list(ranks)}


def groups_of(folder: Path, *ranks: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> Run:
    """A run with these events and process groups per rank."""
    folder.mkdir(exist_ok=True)
    for rank, (events, groups) in enumerate(ranks):
        info = {"rank": rank, "world_size": len(ranks), "backend": "gloo", "pg_config": groups}
        write(folder / f"rank{rank}.json", events, distributedInfo=info)
    return load_run(folder)
