"""From one file's content to the traces of its ranks: with their tables, or with what is wanted of these alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from overlaplab.events import Tables, Trace, known_of
from overlaplab.load.cache import Cache
from overlaplab.load.file import TraceFile
from overlaplab.load.places import Located
from overlaplab.load.ranks import split_ranks
from overlaplab.load.reading import read_here


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTraces:
    """The ranks of one file."""

    traces: tuple[Trace, ...]
    notes: tuple[str, ...]
    """What a reader must know of the file, a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOpener:
    """How the files of a run are opened; workers get a copy."""

    assigned_ranks: Mapping[str, int]
    """Ranks that the user assigned, by path."""
    device: str | None
    """The manifest's."""
    communication: str | None
    """The user's own rule, see `Trace.communication`."""
    cache: Cache | None

    def ranks(self, file: Located, content: TraceFile) -> FileTraces:
        """The traces of the file's ranks."""
        traces, notes = split_ranks(file, content, self.assigned_ranks.get(file.path))
        return FileTraces(
            traces=tuple(replace(trace, device=self.device, communication=self.communication) for trace in traces),
            notes=tuple(f"{file.name}: {note}" for note in (*content.warnings, *notes)),
        )

    def worked_out(
        self,
        file: Located,
        progress: Callable[[float], None] | None = None,
        *,
        of_each: Sequence[Callable[[Trace], object]],
    ) -> FileTraces:
        """Return the file's ranks without tables, after these functions of each trace."""
        opened = self.ranks(file, read_here(file, self.cache, progress))
        traces = (
            replace(trace, tables=partial(self._tables, file, place), precomputed=known_of(trace, of_each))
            for place, trace in enumerate(opened.traces)
        )
        return replace(opened, traces=tuple(traces))

    def _tables(self, file: Located, place: int) -> Tables:
        tables = self.ranks(file, read_here(file, self.cache)).traces[place].tables
        assert isinstance(tables, Tables)
        return tables
