"""From a path that a user gives to a `Run`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, Tables, Trace, extent, known_of
from overlaplab.folders import MANIFEST_NAME, run_folders
from overlaplab.load.cache import Cache, is_off
from overlaplab.load.file.portions import Decoders
from overlaplab.load.file.trace_file import NotATraceError, TraceFile
from overlaplab.load.limits import MAX_TRACES
from overlaplab.load.places import Located, manifest_text, sources
from overlaplab.load.ranks import assign_ranks_by_path, find_file, names_rank, one_recording, split_ranks
from overlaplab.load.reading import Advance, read_all, read_here, work_on_each
from overlaplab.manifest import Manifest

FORMAT_VERSION = 1
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_MANIFEST = msgspec.json.Decoder(Manifest)


def load_run(
    path: str | os.PathLike[str],
    *,
    assign_ranks: Mapping[str, int] | None = None,
    recording: int | None = None,
    communication: str | None = None,
    cache: bool = True,
    executor: Executor | None = None,
    progress: Advance | None = None,
    of_each: Sequence[Callable[[Trace], object]] | None = None,
) -> Run:
    """Load a run directory, a directory of `torch.profiler` traces, or one trace file (plain or gzipped).

    `path` may be anything that fsspec opens, such as `s3://bucket/run`.
    `assign_ranks` gives ranks by file name or path, for files that do not tell theirs.
    `recording` picks one, from 1, where the same ranks were recorded several times; the default is the last.
    `communication` is a rule of your own: kernels and copies whose names match this regular expression, anywhere and in
    either case, communicate.
    `cache=False` neither reads nor writes the cache of tables, and OVERLAPLAB_NO_CACHE=1 says so for all.
    `executor` reads the files, one task each: Dask's `client.get_executor()`, or any other of `concurrent.futures`
    whose workers import overlaplab and see the path. By default large files are read by processes on this machine.
    `progress(done, files)` is called at the start and after each file; `done` has fractions while a large one is read.
    `of_each`: the `once_per_trace` functions that are wanted. Whoever reads a file computes them and drops its tables,
    which are read again where something asks for them. None: all tables stay in memory.

    Raises `OverlaplabError` naming the file, the rank and the remedy for anything that cannot be read.
    """
    where = _plain_path(path)
    _check_rule(communication)
    files = sources(where)
    if len(files) > MAX_TRACES.value:
        what = f"holds {len(files):,} files named as traces, and at most {MAX_TRACES.value:,} are opened"
        raise MAX_TRACES.error(what, path=where, remedy="Name a folder that holds one run.", enough=len(files))
    assigned_ranks = assign_ranks_by_path(files, assign_ranks or {})
    manifest = load_manifest(where)
    opening = FileOpener(
        assigned_ranks=assigned_ranks,
        device=manifest.device if manifest else None,
        communication=communication or None,
        cache=Cache() if cache and not is_off() else None,
    )
    advance = progress or (lambda done, files: None)
    nameless = (file for file in files if file.path not in assigned_ranks and not names_rank(file.name))
    strays = {file.path for file in nameless} if len(files) > 1 else set()  # may be no traces
    opened: list[FileTraces | NotATraceError]
    if of_each is None:
        contents = read_all(files, cache=opening.cache, executor=executor, optional=strays, progress=advance)
        opened = [
            content if isinstance(content, NotATraceError) else opening.ranks(file, content)
            for file, content in zip(files, contents, strict=True)
        ]
    else:
        work = partial(opening.worked_out, of_each=(extent, *of_each))
        opened = work_on_each(files, work, executor=executor, optional=strays, progress=advance)
    every_trace: list[Trace] = []
    warnings: list[str] = []
    for file, file_traces in zip(files, opened, strict=True):
        if isinstance(file_traces, NotATraceError):
            warnings.append(f"{file.name} was skipped: it is not a trace ({file_traces.reason})")
        else:
            every_trace += file_traces.traces
            warnings += file_traces.notes
    if not every_trace and isinstance(opened[0], NotATraceError):
        raise opened[0]
    traces, notes = one_recording(every_trace, recording, where)
    # Of equal length for all ranks, so that their times compare: the first moment that any of them recorded.
    origin_ns = min((span[0] for span in map(extent, traces) if span), default=0)
    return Run(
        path=where,
        manifest=manifest,
        traces=tuple(replace(trace, origin_ns=origin_ns) for trace in traces),
        warnings=(*warnings, *notes, *_missing_ranks(traces, len({t.rank for t in every_trace}), manifest)),
    )


def load_sweep(path: str | os.PathLike[str], *, cache: bool = True, progress: Advance | None = None) -> list[Run]:
    """The runs of a sweep's folder, each loaded by `load_run`; raises as it does."""
    return [load_run(folder, cache=cache, progress=progress) for folder in run_folders(path)]


def holds_trace(path: str | os.PathLike[str], file: str) -> bool:
    """Whether a run has a trace of this name or path; raises as `load_run`."""
    return find_file(sources(_plain_path(path)), file) is not None


def _check_rule(communication: str | None) -> None:
    try:
        re.compile(communication or "")
    except re.error as error:
        remedy = "As in --communication 'my_exchange|ring_send', which is searched for in kernels' names."
        what = f"--communication {communication}: not a regular expression ({error})"
        raise OverlaplabError(what, remedy=remedy) from None


def _plain_path(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path).removeprefix("file://")
    return text if "://" in text else str(Path(text))


def _missing_ranks(traces: Sequence[Trace], rank_count: int, manifest: Manifest | None) -> tuple[str, ...]:
    sizes = [manifest.world_size] if manifest else [t.world_size for t in traces if t.world_size]
    size = max([*sizes, rank_count])
    here = {trace.rank for trace in traces}
    phantoms = set(manifest.phantom_ranks) - here if manifest else set()
    trace_ranks = manifest.raw.get("trace_ranks") if manifest else None  # those with a trace; None: all
    traced = {rank for rank in trace_ranks if rank in range(size)} if isinstance(trace_ranks, list) else None
    untraced = 0 if traced is None else size - len(traced | here | phantoms)
    missing = size - len(traces) - len(phantoms) - untraced
    notes = []
    if missing > 0:
        notes.append(f"{missing} of {size - untraced} ranks {'has' if missing == 1 else 'have'} no trace here")
    if untraced > 0:
        were = "was" if untraced == 1 else "were"
        notes.append(f"{untraced} of {size} ranks {were} recorded without a trace (--trace-ranks)")
    return tuple(notes)


def load_manifest(path: str) -> Manifest | None:
    """What run.json says of the run at this path; None without one. Raises `OverlaplabError` if it cannot be read."""
    text = manifest_text(path)
    if text is None:
        return None
    file = f"{path.rstrip('/')}/{MANIFEST_NAME}"
    try:
        raw = _OBJECT.decode(text)
        manifest = replace(_MANIFEST.decode(text), raw=raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        remedy = "Remove it to open the traces without it."
        raise OverlaplabError(f"not a readable manifest ({error})", path=file, remedy=remedy) from None
    if manifest.format_version != FORMAT_VERSION:
        what = f"format_version {manifest.format_version} is not {FORMAT_VERSION}"
        raise OverlaplabError(what, path=file, remedy="Use the overlaplab that recorded it.")
    return manifest


class FileTraces(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one file."""

    traces: tuple[Trace, ...]
    notes: tuple[str, ...]
    """What a reader must know of the file, a line each."""


class FileOpener(msgspec.Struct, frozen=True, kw_only=True):
    """How the files of a run are opened; workers get a copy."""

    assigned_ranks: Mapping[str, int]
    """Ranks that the user assigned, by path."""
    device: str | None
    """The manifest's."""
    communication: str | None
    """The user's own rule, see `Trace.communication`."""
    cache: Cache | None

    def ranks(self, file: Located, content: TraceFile) -> FileTraces:
        traces, notes = split_ranks(file, content, self.assigned_ranks.get(file.path))
        return FileTraces(
            traces=tuple(replace(trace, device=self.device, communication=self.communication) for trace in traces),
            notes=tuple(f"{file.name}: {note}" for note in (*content.warnings, *notes)),
        )

    def worked_out(
        self,
        file: Located,
        progress: Callable[[float], None] | None = None,
        decoders: Decoders | None = None,
        *,
        of_each: Sequence[Callable[[Trace], object]],
    ) -> FileTraces:
        """Return the file's ranks without tables, after these functions of each trace."""
        opened = self.ranks(file, read_here(file, self.cache, progress, decoders))
        traces = (
            replace(trace, tables=partial(self._tables, file, place), precomputed=known_of(trace, of_each))
            for place, trace in enumerate(opened.traces)
        )
        return replace(opened, traces=tuple(traces))

    def _tables(self, file: Located, place: int) -> Tables:
        tables = self.ranks(file, read_here(file, self.cache)).traces[place].tables
        assert isinstance(tables, Tables)
        return tables
