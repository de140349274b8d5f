"""Small traces written out by hand: events in µs, as a trace file holds them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from overlaplab import Run, load_run


def event(name: str, start: float, end: float, *, cat: str = "cpu_op", tid: object = 1, **args: Any) -> dict[str, Any]:
    """A complete event from `start` to `end` µs."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": start, "dur": end - start, "args": args}


def step(number: int, start: float, end: float) -> dict[str, Any]:
    return event(f"ProfilerStep#{number}", start, end, cat="user_annotation")


def op(name: str, start: float, end: float, tid: int = 1) -> dict[str, Any]:
    return event(f"aten::{name}", start, end, tid=tid)


def gloo(start: float, end: float, tid: int = 7, kind: str = "all_reduce") -> dict[str, Any]:
    return event(f"gloo:{kind}", start, end, cat="user_annotation", tid=tid)


def launched(
    name: str,
    host: float,
    start: float,
    end: float,
    *,
    stream: int = 7,
    correlation: int,
    cat: str = "kernel",
    tid: int = 1,
) -> list[dict[str, Any]]:
    """A device event from `start` to `end` µs, and the runtime call at `host` that launched it."""
    return [
        event("cudaLaunchKernel", host, host + 1, cat="cuda_runtime", tid=tid, correlation=correlation),
        event(name, start, end, cat=cat, tid=stream, stream=stream, device=0, correlation=correlation),
    ]


def document(events: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, **keys, "traceEvents": events, "traceName": "made by hand"}


def write(path: Path, events: list[dict[str, Any]], **keys: Any) -> Path:
    """Write a trace, gzipped where the name says so."""
    text = json.dumps(document(events, **keys)).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def run_of(
    folder: Path, *ranks: list[dict[str, Any]], backend: str = "gloo", manifest: dict[str, Any] | None = None
) -> Run:
    """A loaded run with these events per rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, events in enumerate(ranks):
        info = {"rank": rank, "world_size": len(ranks), "backend": backend}
        write(folder / f"rank{rank}.pt.trace.json.gz", events, distributedInfo=info)
    if manifest is not None:
        (folder / "run.json").write_text(json.dumps(MANIFEST | {"world_size": len(ranks)} | manifest))
    return load_run(folder)


MANIFEST: dict[str, Any] = {
    "format_version": 1,
    "strategy": "bucketed",
    "device": "cpu",
    "backend": "gloo",
    "world_size": 1,
    "bucket_cap_mb": 25.0,
    "link": None,
}
