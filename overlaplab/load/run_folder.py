"""Which files make a run, and which rank each of them is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from overlaplab.errors import OverlaplabError
from overlaplab.events import Manifest, Run, Trace
from overlaplab.load.trace_file import read_trace

__all__ = ["MANIFEST_NAME", "is_trace_name", "load_run"]

FORMAT_VERSION = 1
MANIFEST_NAME = "run.json"
_RANK_IN_NAME = re.compile(r".*rank[-_ ]?(\d+)|worker(\d+)_", re.I)
"""torch's `tensorboard_trace_handler` writes the worker's name first; elsewhere it may be a machine's."""


def is_trace_name(name: str) -> bool:
    """Whether a file of this name is taken for a trace."""
    return name.endswith((".json", ".json.gz")) and not name.startswith(".") and name != MANIFEST_NAME


def load_run(path: str | Path, *, progress: Callable[[int, int], None] | None = None) -> Run:
    """Load a run directory, a directory of `torch.profiler` traces, or one trace file (plain or gzipped).

    `progress(done, files)` is called before each file and after the last.

    Raises `OverlaplabError` naming the file, the rank and the remedy for anything that cannot be read.
    """
    path = Path(path)
    try:
        files = _trace_files(path)
        manifest = _read_manifest(path / MANIFEST_NAME) if path.is_dir() else None
    except OSError as error:
        raise OverlaplabError(error.strerror or str(error), path=path) from None
    read = []
    for done, file in enumerate(files):
        if progress:
            progress(done, len(files))
        read.append(_read(file))
    if progress:
        progress(len(files), len(files))
    traces = _ranked(read)
    # Of equal length for all ranks, so that their times compare: the first moment that any of them recorded.
    origin_ns = min((int(t.events["ts_ns"].iloc[0]) for t in traces if len(t.events)), default=0)
    return Run(
        path=str(path),
        manifest=manifest,
        traces=tuple(replace(trace, origin_ns=origin_ns) for trace in traces),
        warnings=_missing_ranks(traces, manifest),
    )


def _trace_files(path: Path) -> list[Path]:
    if not path.exists():
        raise OverlaplabError("no such file or directory", path=path)
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if is_trace_name(file.name) and file.is_file())
    if not files:
        raise OverlaplabError(
            "holds no trace", path=path, remedy="Traces are files named *.json or *.json.gz, one per rank."
        )
    return files


def _read(file: Path) -> Trace:
    content = read_trace(file)
    rank = content.rank
    if rank is None and (match := _RANK_IN_NAME.match(file.name)):
        rank = int(match[match.lastindex or 0])
    return Trace(
        path=str(file),
        rank=rank,
        events=content.events,
        world_size=content.world_size,
        backend=content.backend,
    )


def _ranked(traces: list[Trace]) -> list[Trace]:
    """In order of rank; several files need a rank each."""
    if len(traces) == 1:
        return traces
    seen: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            raise OverlaplabError(
                "several files, and this one does not tell its rank",
                path=trace.path,
                remedy="Put the rank into its name, such as rank3.json.gz, or open the file alone.",
            )
        if trace.rank in seen:
            raise OverlaplabError(
                f"the same rank as {Path(seen[trace.rank].path).name}",
                path=trace.path,
                rank=trace.rank,
                remedy="Keep one recording per folder.",
            )
        seen[trace.rank] = trace
    return [seen[rank] for rank in sorted(seen)]


def _missing_ranks(traces: list[Trace], manifest: Manifest | None) -> tuple[str, ...]:
    sizes = [manifest.world_size] if manifest else [t.world_size for t in traces if t.world_size]
    missing = max(sizes, default=len(traces)) - len(traces)
    if missing <= 0:
        return ()
    return (f"{missing} of {len(traces) + missing} ranks have no trace here",)


def _read_manifest(file: Path) -> Manifest | None:
    if not file.exists():
        return None
    if not file.is_file():
        raise OverlaplabError("not a file", path=file, remedy="Remove it to open the traces without it.")
    try:
        raw = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
        manifest = msgspec.convert({**raw, "raw": raw}, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OverlaplabError(
            f"not a readable manifest ({error})", path=file, remedy="Remove it to open the traces without it."
        ) from None
    if manifest.format_version != FORMAT_VERSION:
        raise OverlaplabError(
            f"format_version {manifest.format_version} is not {FORMAT_VERSION}",
            path=file,
            remedy="Use the overlaplab that recorded it.",
        )
    return manifest
