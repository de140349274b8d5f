"""A trace's events as raw text, streamed, for copying some of them into another trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from overlaplab.errors import OverlaplabError
from overlaplab.load.file.damaged import one_by_one
from overlaplab.load.file.decode import FileEvent, decode_events, event_from_object
from overlaplab.load.file.inflate import Source, open_file
from overlaplab.load.file.keys import TRAILING
from overlaplab.load.file.slices import MOST_EVENT_BYTES

_KEY_BYTES = 64
_ARRAY = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_SURROGATES = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_ATTEMPTS = 8
_RAW_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])


class RawEvents:
    """Iterating gives slices of (raw text, decoded event); `head` and `tail` are the text around all events.

    A file that is cut short gives the events before the cut, and a `tail` that closes it. Damaged events are decoded as
    the reader repairs them; their text stays as it is.
    """

    def __init__(self, path: Path) -> None:
        self.head = b""
        self.tail = b""
        self._path = path

    def base_ns(self) -> int:
        """The offset of all times; found by a pass of its own, because kineto writes it last."""
        values, text = [b"0"], b""
        with open_file(self._path) as file:
            for chunk in Source(self._path, file):
                text = text[-_KEY_BYTES:] + chunk  # the key may span two chunks
                values = _BASE.findall(text)[-1:] or values
        return int(values[0])

    def __iter__(self) -> Iterator[list[tuple[bytes, FileEvent]]]:
        self.tail = b""
        with open_file(self._path) as file:
            chunks = iter(Source(self._path, file))
            buffer = self._head(chunks)
            for chunk in chunks:
                buffer += chunk
                for cut, start in _boundaries(buffer):
                    if (events := _events(buffer[:cut])) is not None:
                        yield events
                        buffer = buffer[start:]
                        break
                else:
                    if _end(buffer) is not None:
                        break
                    events, buffer = self._one_by_one(buffer, final=len(buffer) >= MOST_EVENT_BYTES)
                    if events:
                        yield events
                    if self.tail:
                        break
            if not self.tail:
                yield self._last(buffer)
            for chunk in chunks:
                self.tail += chunk

    def _head(self, chunks: Iterator[bytes]) -> bytes:
        buffer = b""
        for chunk in chunks:
            buffer += chunk
            if match := _ARRAY.match(buffer):
                self.head = match[0]
                return buffer[match.end() :]
        raise OverlaplabError("no list of traceEvents", path=self._path)

    def _last(self, buffer: bytes) -> list[tuple[bytes, FileEvent]]:
        end = _end(buffer)
        if end is not None:
            self.tail = buffer[end:]
            return _events(buffer[:end]) or []
        events, _ = self._one_by_one(buffer, final=True)
        self.tail = self.tail or (b"]}" if b"{" in self.head else b"]")
        return events

    def _one_by_one(self, buffer: bytes, *, final: bool) -> tuple[list[tuple[bytes, FileEvent]], bytes]:
        """The events of text with damaged ones, as the reader repairs them, and the text after them; sets `tail` where
        the array ends.
        """
        events, remainder, ended = one_by_one(buffer, final, Counter())
        self.tail = b"]" + remainder if ended else b""
        return events, remainder


def _boundaries(buffer: bytes) -> list[tuple[int, int]]:
    """The last places where an event may end and the next begin, latest first."""
    return [(match.start() + 1, match.end()) for match in list(_BOUNDARY.finditer(buffer))[-_ATTEMPTS:][::-1]]


def _events(text: bytes) -> list[tuple[bytes, FileEvent]] | None:
    """The events in the text, or None if it was not cut between two events."""
    text = _replace_surrogates(b"[" + text + b"]")
    try:
        raws = _RAW_EVENTS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    try:
        events, _ = decode_events(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        events = [_decode_leniently(bytes(raw)) for raw in raws]
    return [(bytes(raw), event) for raw, event in zip(raws, events, strict=True)]


def _replace_surrogates(text: bytes) -> bytes:
    """Replace half surrogate pairs, which msgspec refuses, as the reader does; the length stays the same."""
    if rb"\ud" not in text and rb"\uD" not in text:
        return text
    return _SURROGATES.sub(lambda match: rb"\ufffd" if match[1] else match[0], text)


def _decode_leniently(raw: bytes) -> FileEvent:
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = None
    return event_from_object(value if isinstance(value, dict) else {}, Counter())


def _end(buffer: bytes) -> int | None:
    """The place of the array's closing bracket; None if the text does not hold it."""
    text = _replace_surrogates(b"[" + buffer)
    try:
        _RAW_EVENTS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        trailing = TRAILING.search(str(error))
        return text.rindex(b"]", 0, int(trailing[1])) - 1 if trailing else None
    return text.rindex(b"]") - 1
