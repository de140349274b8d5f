"""A trace's text as slices of whole events, and the keys around them.

A trace is a JSON object whose `traceEvents` array holds nearly all of it, or that array alone. What was read is cut at
the last place where one event ends and the next begins. Such a place is right exactly if what lies before it is whole
JSON, so text that only looks like one fools nobody. Where a slice is no JSON at all, its events are read one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from overlaplab.load.file.damaged import one_by_one
from overlaplab.load.file.decode import Event, decoded
from overlaplab.load.file.keys import Keys, keys_after, keys_before

__all__ = ["NoTraceError", "Slices"]

MOST_BYTES = 64 << 20
"""Of text before or after the array."""
MOST_EVENT_BYTES = 16 << 20
_MOST_ARRAYS = 16
"""Of other keys of the same name before it."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_NEAR_BYTES = 1 << 14
_ATTEMPTS = 8
"""How many boundaries are tried before more of the file is read; all but the last lie inside an event's arguments."""
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_GOES_ON = re.compile(rb"[\s,\]]*(\{|$)")
_BOM = b"\xef\xbb\xbf"


class NoTraceError(Exception):
    """The file is not a trace; the text says why."""


@dataclass(frozen=True, slots=True)
class _Taken:
    events: list[Event]
    rest: bytes
    ended: bool = False


class Slices:
    """Iterating gives the events, slice by slice; `keys` and `whole` are known when it has ended."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.keys = Keys()
        self.whole = False
        """Whether the array was complete."""
        self.repairs: Counter[str] = Counter()
        """What was repaired or left out, and how often."""
        self._chunks = chunks

    def __iter__(self) -> Iterator[list[Event]]:
        buffer, wanted, final = self._head(), 0, False
        while not self.whole and not final:
            text, final = self._more(buffer, wanted, b"[")
            taken = self._taken(text, final)
            if taken is None:
                buffer, wanted = bytes(text[1:]), 2 * len(text)
                continue
            buffer, wanted, self.whole = taken.rest, 0, taken.ended
            yield taken.events
        if self.whole:
            self._tail(buffer)

    def _more(self, buffer: bytes, wanted: int, opening: bytes = b"") -> tuple[bytearray, bool]:
        """What was read and the next chunk, or as many as are wanted; and whether there are no more."""
        parts, size = [opening, buffer], len(buffer)
        for chunk in self._chunks:
            parts.append(chunk)
            size += len(chunk)
            if size >= wanted:
                return bytearray().join(parts), False
        return bytearray().join(parts), True

    def _head(self) -> bytes:
        """Read the keys before the array; what was read after its opening bracket."""
        buffer, final = b"", False
        while not final and len(buffer) < MOST_BYTES:
            read, final = self._more(buffer, 2 * len(buffer))
            buffer = bytes(read).removeprefix(_BOM).lstrip()
            if buffer[:1] == b"[":
                return buffer[1:]
            if buffer and buffer[:1] != b"{":
                raise NoTraceError("not JSON")
            for match in islice(_ARRAY.finditer(buffer), _MOST_ARRAYS):
                if (keys := keys_before(buffer[: match.end()])) is not None:
                    self.keys = keys
                    return buffer[match.end() :]
        raise NoTraceError("no list of traceEvents" if buffer else "empty")

    def _taken(self, text: bytearray, final: bool) -> _Taken | None:
        """As many whole events as there are after the bracket; None where more has to be read first."""
        try:
            taken = _quickly(text, final)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            if taken is not None or (not final and len(text) < MOST_EVENT_BYTES and b"\\u" not in text):
                return taken
        buffer = bytes(text[1:])
        events, rest, ended = one_by_one(buffer, final or len(buffer) >= MOST_EVENT_BYTES, self.repairs)
        return _Taken(events, rest, ended) if events or ended or final or len(rest) < len(buffer) else None

    def _tail(self, buffer: bytes) -> None:
        text, _ = self._more(buffer, MOST_BYTES)
        keys = keys_after(bytes(text), self.repairs)
        self.keys = Keys(*(getattr(self.keys, name) or getattr(keys, name) for name in Keys.__struct_fields__))


def _quickly(text: bytearray, final: bool) -> _Taken | None:
    """Raises where this, a bracket first, is not usual JSON of usual events."""
    if final:
        return _to_end(text)
    for cut, rest in _boundaries(text):
        try:
            return _Taken(_up_to(text, cut), bytes(memoryview(text)[rest:]))
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            if _TRAILING.search(str(error)):
                return _to_end(text)
            if "truncated" not in str(error):
                raise
    return None


def _up_to(text: bytearray, cut: int) -> list[Event]:
    """The events before this place, as a list that ends there: without copying the text, which takes as long."""
    there = text[cut]
    text[cut] = ord("]")
    try:
        return decoded(memoryview(text)[: cut + 1])
    finally:
        text[cut] = there


def _to_end(text: bytearray) -> _Taken:
    """The events of an array that may have something after it."""
    try:
        return _Taken(decoded(text), b"", ended=True)
    except msgspec.DecodeError as error:
        trailing = _TRAILING.search(str(error))
        if trailing is None:
            raise
        end = text.rindex(b"]", 0, int(trailing[1])) + 1
        if _GOES_ON.match(text, end):
            raise
        return _Taken(decoded(text[:end]), bytes(text[end:]), ended=True)


def _boundaries(buffer: bytearray) -> Iterator[tuple[int, int]]:
    """The last places where an event may end and the next begin, latest first: (end of the one, start of the other)."""
    for start in (max(0, len(buffer) - _NEAR_BYTES), 0):
        matches = list(_BOUNDARY.finditer(buffer, start))[-_ATTEMPTS:]
        if matches:
            return ((match.start() + 1, match.end()) for match in reversed(matches))
    return iter(())
