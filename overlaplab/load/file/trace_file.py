"""One `torch.profiler` trace file, streamed into tables.

The file is inflated in chunks (`inflate`), cut into slices of whole events (`slices`), decoded with only the wanted
fields (`decode`; event by event where that fails, `damaged`) and gathered in columns (`gathered`), by this process or
others (`portions`), which become tables (`tables`). Memory holds some slices of the text and the tables, never the
whole text.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from overlaplab.errors import OverlaplabError
from overlaplab.events import Group, Tables
from overlaplab.intervals import Integers
from overlaplab.load.file.gathered import Gathered
from overlaplab.load.file.inflate import Source, open_file
from overlaplab.load.file.keys import base_ns, device_names, process
from overlaplab.load.file.portions import Decoders, gather, without_garbage_collection
from overlaplab.load.file.slices import NoTraceError, Slices
from overlaplab.load.file.tables import file_tables
from overlaplab.load.limits import MAX_EVENTS

_SLICES_PER_PROGRESS = 16


class NotATraceError(OverlaplabError):
    """The file can be read, and is something else; `reason` says how that shows."""

    reason = ""


class TraceFile(Tables, frozen=True, kw_only=True, eq=False):
    """The content of one file: its events, perhaps of several ranks, and the description of its process."""

    event_ranks: Integers | None
    """The rank in each event's arguments, -1 where absent; None if no event has one."""
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    groups: tuple[Group, ...]
    devices: tuple[str, ...]
    """The names in `deviceProperties`: devices that the process could see."""
    unknown_device: tuple[str, ...]
    """What names a device whose events no rule knows, such as `process 'Ascend Hardware'`."""
    warnings: tuple[str, ...]
    """What was repaired or is missing, and how often."""


def read_trace(
    path: str | Path,
    file: BinaryIO | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    decoders: Decoders | None = None,
) -> TraceFile:
    """Read a plain or gzipped trace from the path, or from a binary stream of that name.

    `decoders` decode most of it, so that this process may be free to inflate it; the tables are the same.
    `progress(bytes)` is called with how much of the file was read, now and then.

    Raises `OverlaplabError`, which names the file, if it is not a trace. If it is damaged, all undamaged events are
    read, and `warnings` says what is missing.
    """
    try:
        with open_file(Path(path)) if file is None else nullcontext(file) as stream, without_garbage_collection():
            return _read(Source(path, stream), path, progress, decoders)
    except NoTraceError as error:
        writers = "torch.profiler's export_chrome_trace or tensorboard_trace_handler"
        remedy = f"A trace is what {writers} writes; move other files away."
        refused = NotATraceError(f"not a torch.profiler trace ({error})", path=path, remedy=remedy)
        refused.reason = str(error)
        raise refused from None
    except OSError as error:
        raise OverlaplabError(error.strerror or str(error), path=path) from None


def _read(source: Source, path: object, progress: Callable[[int], None] | None, decoders: Decoders | None) -> TraceFile:
    gathered, slices = Gathered(), Slices(iter(source))
    most = MAX_EVENTS.value
    for number, _ in enumerate(gather(slices, gathered, decoders), 1):
        if gathered.columns.rows > most:
            takes = "Each takes about 65 bytes of memory."
            raise MAX_EVENTS.error(f"holds over {most:,} events", path=path, remedy=takes)
        if progress and number % _SLICES_PER_PROGRESS == 0:
            progress(source.read_bytes)
    tables = file_tables(gathered, base_ns(slices.keys, gathered.repairs))
    repairs = slices.repairs + gathered.repairs
    warnings = [f"{count} {what}" for what, count in repairs.items()]
    if not len(tables["events"]) and warnings:
        raise NoTraceError(warnings[0])
    if source.damage is not None or not slices.whole:
        why = source.damage or "the file is cut short, as by a job that was killed while it wrote"
        warnings.insert(0, f"{why}: only the whole events before that were loaded")
    return TraceFile(
        **tables,
        **process(slices.keys),
        devices=device_names(slices.keys),
        unknown_device=tuple(gathered.unknown_device),
        warnings=tuple(warnings),
    )
