"""A predicted run as a directory: run.json and a trace per rank, which everything that reads runs reads.

Timestamps are virtual: each trace begins at 0.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from overlaplab.errors import OverlaplabError
from overlaplab.folders import MANIFEST_NAME
from overlaplab.load.cut import whole_folder
from overlaplab.manifest import Mesh
from overlaplab.report.threads import us_text
from overlaplab.simulate.predictions.trace_event import BY_HAND, COMPUTES, LANES, LINK, Event

_WORLD = {"pg_name": "0", "pg_desc": "default_pg"}
"""The group of all ranks."""
_THREADS = {COMPUTES: "computes, launches and waits", LINK: "link"}


def write_run(out: Path, manifest: Mapping[str, Any], ranks: Sequence[Sequence[Event]]) -> None:
    """Write run.json and the ranks' traces to the new folder `out`, which appears when it is whole.

    Raises `OverlaplabError` where it exists or cannot be written.
    """
    if out.exists() or out.is_symlink():
        raise OverlaplabError("exists already", path=out, remedy="Name a new folder.")
    size = int(manifest["world_size"])
    with whole_folder(out) as part:
        for rank, events in enumerate(ranks):
            groups = [_WORLD | {"pg_size": size, "ranks": list(range(size))}, *_groups(rank, manifest)]
            text = "".join(_lines(rank, groups, events, manifest.get("predicted")))
            (part / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode(), 6, mtime=0))
        (part / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1))


def _groups(rank: int, manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rank's group along each axis of a mesh of several, named as `played_events` names it."""
    mesh = Mesh(**manifest["mesh"]) if manifest.get("mesh") else None
    if mesh is None or mesh.is_one_axis:
        return
    coordinates = mesh.coordinates(rank)
    for axis in coordinates:
        members = [
            other
            for other in range(mesh.size)
            if all(place == coordinates[name] for name, place in mesh.coordinates(other).items() if name != axis)
        ]
        if len(members) > 1:
            name = "-".join(map(str, members))
            yield {"pg_name": name, "pg_desc": axis, "pg_size": len(members), "ranks": members}


def _lines(rank: int, groups: Sequence[Mapping[str, Any]], events: Sequence[Event], predicted: object) -> Iterator[str]:
    """The text of a rank's trace; its first group is that of all ranks."""
    job = {"backend": "predicted", "rank": rank, "world_size": groups[0]["pg_size"], "pg_config": groups}
    head = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "distributedInfo": job}
    yield json.dumps(head | {"predicted": predicted})[:-1] + ', "traceEvents": [\n'
    yield _metadata_event("process_name", rank, 0, f"rank {rank} (predicted)")
    lanes = sorted({event.thread for event in events if event.thread >= LANES})
    hops = {BY_HAND: "hops"} if any(event.thread == BY_HAND for event in events) else {}
    for thread, name in (_THREADS | hops | dict.fromkeys(lanes, "messages")).items():
        yield f",\n{_metadata_event('thread_name', rank, thread, name)}"
    for event in events:
        category = "user_annotation" if event.name.startswith("ProfilerStep#") else "cpu_op"
        yield (
            f',\n{{"ph":"X","cat":"{category}","name":{json.dumps(event.name)},"pid":{rank},"tid":{event.thread}'
            f',"ts":{us_text(event.start_ns)},"dur":{us_text(event.end_ns - event.start_ns)}}}'
        )
    yield "\n]}"


def _metadata_event(what: str, rank: int, thread: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": rank, "tid": thread, "ts": 0, "args": {"name": name}})
