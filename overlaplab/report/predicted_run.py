"""A predicted run as a directory: run.json and a trace per rank, which everything that reads runs reads.

Timestamps are virtual: each trace begins at 0.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from overlaplab.errors import OverlaplabError
from overlaplab.folders import MANIFEST_NAME
from overlaplab.simulate.predictions.events import COMPUTES, LANES, LINK, Event

__all__ = ["write_run"]

_THREADS = {COMPUTES: "computes, launches and waits", LINK: "link"}


def write_run(out: Path, manifest: Mapping[str, Any], ranks: Sequence[Sequence[Event]]) -> None:
    """Write run.json and the ranks' traces to the new folder `out`, which appears when it is whole.

    Raises `OverlaplabError` where it exists or cannot be written.
    """
    if out.exists() or out.is_symlink():
        raise OverlaplabError("exists already", path=out, remedy="Name a new folder.")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        for rank, events in enumerate(ranks):
            text = "".join(_lines(rank, len(ranks), events, manifest.get("predicted")))
            (part / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode(), 6, mtime=0))
        (part / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1))
        part.rename(out)
    except OSError as error:
        raise OverlaplabError(f"cannot be written ({error.strerror or error})", path=out) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _lines(rank: int, world_size: int, events: Sequence[Event], predicted: object) -> Iterator[str]:
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world_size, "ranks": list(range(world_size))}
    job = {"backend": "predicted", "rank": rank, "world_size": world_size, "pg_config": [group]}
    head = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "distributedInfo": job}
    yield json.dumps(head | {"predicted": predicted})[:-1] + ', "traceEvents": [\n'
    yield _named("process_name", rank, 0, f"rank {rank} (predicted)")
    lanes = sorted({event.thread for event in events if event.thread >= LANES})
    for thread, name in (_THREADS | dict.fromkeys(lanes, "messages")).items():
        yield f",\n{_named('thread_name', rank, thread, name)}"
    for event in events:
        category = "user_annotation" if event.name.startswith("ProfilerStep#") else "cpu_op"
        yield (
            f',\n{{"ph":"X","cat":"{category}","name":{json.dumps(event.name)},"pid":{rank},"tid":{event.thread}'
            f',"ts":{_us(event.start_ns)},"dur":{_us(event.end_ns - event.start_ns)}}}'
        )
    yield "\n]}"


def _named(what: str, rank: int, thread: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": rank, "tid": thread, "ts": 0, "args": {"name": name}})


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
