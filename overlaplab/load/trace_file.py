"""One `torch.profiler` trace file, streamed into a table of events.

A trace is a JSON object whose `traceEvents` array holds nearly all of it. The file is inflated in chunks; each chunk
is cut at the last place where whole events end, decoded with only the wanted fields, and appended to columns, so that
memory holds a chunk of text and the table, never the whole text. A cut is right exactly if what lies before it decodes
as whole events, so text that only looks like a boundary cannot fool it.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import re
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.errors import OverlaplabError
from overlaplab.events import EVENT_COLUMNS

__all__ = ["TraceFile", "read_trace"]

CHUNK_BYTES = 1 << 20
EXACT_FLOAT_US = 2**43
"""Below this many µs a float's fraction still tells ns; DESIGN.md's times are exact, so above it text is read."""

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_ATTEMPTS = 8
"""How many boundaries are tried before more of the file is read; all but the last lie inside an event's arguments."""

_TEXT_COLUMNS = ("name", "category", "phase", "pid", "tid")


class _Arguments(msgspec.Struct):
    stream: float | int | str | None = None
    device: float | int | str | None = None
    correlation: float | int | str | None = None


_NO_ARGUMENTS = _Arguments()


class _Event(msgspec.Struct):
    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: int | float = 0
    dur: int | float = 0
    pid: int | str = ""
    tid: int | str = ""
    args: _Arguments | None = None


class _ExactEvent(_Event):
    ts: Decimal = Decimal(0)  # type: ignore[assignment]
    dur: Decimal = Decimal(0)  # type: ignore[assignment]


class _DistributedInfo(msgspec.Struct):
    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None


class _Head(msgspec.Struct):
    distributedInfo: _DistributedInfo | None = None  # noqa: N815 (the file's spelling)
    baseTimeNanoseconds: int | None = None  # noqa: N815


class _Tail(_Head):
    traceEvents: list[_Event] = []  # noqa: N815


class _ExactTail(_Head):
    traceEvents: list[_ExactEvent] = []  # noqa: N815


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """What one file holds: its events (columns of `EVENT_COLUMNS`), and what it says of its process."""

    events: pd.DataFrame
    rank: int | None
    world_size: int | None
    backend: str | None


def read_trace(path: Path) -> TraceFile:
    """Read a plain or gzipped trace; raises `OverlaplabError` naming the file for anything that is not a whole one."""
    try:
        with _opened(path) as file:
            return _read(file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OverlaplabError(f"damaged gzip ({error})", path=path, remedy="Copy or record it again.") from None
    except OSError as error:
        raise OverlaplabError(error.strerror or str(error), path=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise OverlaplabError(
            f"not a whole torch.profiler trace ({error})",
            path=path,
            remedy="A job that was killed while it wrote leaves such a file: record it again.",
        ) from None


def _opened(path: Path) -> BinaryIO:
    if not path.is_file():
        raise OverlaplabError("not a file" if path.exists() else "no such file", path=path)
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def _read(file: BinaryIO) -> TraceFile:
    columns = _Columns()
    head, buffer = _read_head(file)
    while chunk := file.read(CHUNK_BYTES):
        buffer += chunk
        for cut, rest in _boundaries(buffer):
            events = _whole_events(buffer[:cut])
            if events is not None:
                columns.append(events)
                buffer = buffer[rest:]
                break
    tail = _tail(buffer)
    columns.append(tail.traceEvents)
    info = head.distributedInfo or tail.distributedInfo or _DistributedInfo()
    base_ns = head.baseTimeNanoseconds or tail.baseTimeNanoseconds or 0
    return TraceFile(events=columns.table(base_ns), rank=info.rank, world_size=info.world_size, backend=info.backend)


def _read_head(file: BinaryIO) -> tuple[_Head, bytes]:
    """The keys before `traceEvents`, and the bytes read after its opening bracket."""
    buffer = b""
    while chunk := file.read(CHUNK_BYTES):
        buffer += chunk
        for match in _ARRAY.finditer(buffer):
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.json.decode(buffer[: match.end()] + b"]}", type=_Head), buffer[match.end() :]
    msgspec.json.decode(buffer, type=_Head)  # says where it stops being JSON, if it does
    raise msgspec.DecodeError("no traceEvents")


def _boundaries(buffer: bytes) -> Iterator[tuple[int, int]]:
    """The last places where an event may end and the next begin, latest first: (end of the one, start of the other)."""
    matches = deque(_BOUNDARY.finditer(buffer), maxlen=_ATTEMPTS)
    return ((match.start() + 1, match.end()) for match in reversed(matches))


def _whole_events(text: bytes) -> Sequence[_Event] | None:
    """The events in the text, or None where it was not cut between two of them."""
    try:
        events = msgspec.json.decode(b"[" + text + b"]", type=list[_Event])
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return None
    return events if _is_exact(events) else msgspec.json.decode(b"[" + text + b"]", type=list[_ExactEvent])


def _tail(text: bytes) -> _Tail | _ExactTail:
    """The last events and the keys after `traceEvents`."""
    text = b'{"traceEvents":[' + text
    tail = msgspec.json.decode(text, type=_Tail)
    return tail if _is_exact(tail.traceEvents) else msgspec.json.decode(text, type=_ExactTail)


def _is_exact(events: Sequence[_Event]) -> bool:
    return not any(isinstance(event.ts, float) and event.ts >= EXACT_FLOAT_US for event in events)


class _Columns:
    """Columns of complete events (phase X), grown slice by slice."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, int]] = {name: {} for name in _TEXT_COLUMNS}
        self._slices: dict[str, list[NDArray[np.int64]]] = {name: [] for name in EVENT_COLUMNS}

    def append(self, events: Sequence[_Event]) -> None:
        complete = [event for event in events if event.ph == "X"]
        arguments = [event.args or _NO_ARGUMENTS for event in complete]
        self._add_texts("name", [event.name for event in complete])
        self._add_texts("category", [event.cat for event in complete])
        self._add_texts("phase", [event.ph for event in complete])
        self._add_texts("pid", [str(event.pid) for event in complete])
        self._add_texts("tid", [str(event.tid) for event in complete])
        self._add("ts_ns", [_nanoseconds(event.ts) for event in complete])
        self._add("dur_ns", [_nanoseconds(event.dur) for event in complete])
        self._add("stream", [_number(argument.stream) for argument in arguments])
        self._add("device", [_number(argument.device) for argument in arguments])
        self._add("correlation", [_number(argument.correlation) for argument in arguments])
        for later in ("external_id", "flow_launch", "flow_backward"):
            self._add(later, [-1] * len(complete))

    def _add(self, column: str, values: list[int]) -> None:
        self._slices[column].append(np.array(values, dtype=np.int64))

    def _add_texts(self, column: str, values: list[str]) -> None:
        codes = self._texts[column]
        self._add(column, [codes.setdefault(value, len(codes)) for value in values])

    def table(self, base_ns: int) -> pd.DataFrame:
        """The events in order of start; the longer first where two start together, as a parent does."""
        columns: dict[str, object] = {}
        for name, slices in self._slices.items():
            values = np.concatenate(slices)
            codes = self._texts.get(name)
            columns[name] = (
                values if codes is None else pd.Categorical.from_codes(values, pd.Index(list(codes), dtype=object))
            )
        table = pd.DataFrame(columns)
        table["ts_ns"] += base_ns
        order = np.lexsort((-table["dur_ns"].to_numpy(), table["ts_ns"].to_numpy()))
        return table.iloc[order].reset_index(drop=True)


def _nanoseconds(microseconds: float | Decimal) -> int:
    """Exact: `round(x * 1000)` of a float would be 1 ns off for a quarter of all events."""
    if isinstance(microseconds, float):
        whole = math.floor(microseconds)
        return whole * 1000 + round((microseconds - whole) * 1000)
    return round(microseconds * 1000)


def _number(value: float | str | None) -> int:
    """A stream, device or correlation as a number, -1 where there is none."""
    try:
        return -1 if value is None else int(value)
    except ValueError:
        return -1
