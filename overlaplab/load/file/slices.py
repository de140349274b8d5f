"""A trace's text as slices of whole events, and the keys around them.

A trace is a JSON object that consists almost only of its `traceEvents` array, or that array alone. The text read so far
is cut at the last place where one event ends and the next begins. The cut is right if and only if the text before it is
valid JSON; text inside an event that merely looks like a border is recognised by that. Where a slice is not JSON at
all, its events are read one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from overlaplab.load.file.damaged import one_by_one
from overlaplab.load.file.decode import FileEvent, decode_events
from overlaplab.load.file.keys import TRAILING, Keys, keys_after, keys_before

MOST_BYTES = 64 << 20
"""Limit for the text before or after the array."""
MOST_EVENT_BYTES = 16 << 20
_MOST_ARRAYS = 16
"""How many keys called `traceEvents` are tried; one may be nested in another value."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_NEAR_BYTES = 1 << 14
_ATTEMPTS = 8
"""How many boundaries are tried before more of the file is read: some lie inside an event's arguments."""
_MAY_GO_ON = re.compile(rb"[\s,\]]*(\{|$)")
"""What may follow a closing bracket that is not the array's."""
_BOM = b"\xef\xbb\xbf"
_SURROGATES = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
_EVENT_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])


class NoTraceError(Exception):
    """The file is not a trace; the text says why."""


class Portion(msgspec.Struct, frozen=True):
    """Consecutive chunks that can be decoded apart from the others, if the last whole event in them ends as assumed."""

    before: bytes
    """The text between the last event before them and the first chunk."""
    chunks: tuple[bytes, ...]
    after: bytes
    """The text after the last whole event."""

    @property
    def whole_bytes(self) -> int:
        """How much of its text lies before `after`."""
        return len(self.before) + sum(map(len, self.chunks)) - len(self.after)


class _Slice(msgspec.Struct, frozen=True):
    events: list[FileEvent]
    us: NDArray[np.float64] | None
    remainder: bytes
    """The text after them."""
    ended: bool = False
    """Whether the array ended with them."""
    texts: list[bytes] | None = None
    """Each event's text, where they were read one by one."""


class Slices:
    """Iterating gives slices of events as `decode_events` does; `keys` and `whole` are known once it has finished.

    After a break, iterating goes on with the next slice. `buffer` is the text read before the chunks, within the array;
    None for chunks from the file's beginning. `head` and `tail` are the text around all events, up to the opening
    bracket and from the closing one on; without that there is no `tail`.
    """

    def __init__(self, chunks: Iterator[bytes], buffer: bytes | None = None) -> None:
        self.keys = Keys()
        self.head = self.tail = b""
        self.whole = False
        """Whether the array was complete."""
        self.repairs: Counter[str] = Counter()
        """What was repaired or left out, and how often."""
        self.remainder = buffer
        """The text after the last event that was given."""
        self.passed_bytes = 0
        """How much text lies before `remainder`, from the beginning of the buffer on."""
        self._chunks = chunks
        self._final = False
        self._text = memoryview(b"")
        """That of the slice that was given last."""
        self._texts: list[bytes] | None = None
        """That of each of its events, where they were read one by one."""

    def __iter__(self) -> Iterator[tuple[list[FileEvent], NDArray[np.float64] | None]]:
        self.remainder = buffer = self._head() if self.remainder is None else self.remainder
        wanted = 0
        while not self.whole and not self._final:
            text, final = self._read_more(buffer, wanted, b"[")
            part = self._slice(text, final)
            if part is None:
                buffer, wanted = bytes(text[1:]), 2 * len(text)
                continue
            self.remainder = buffer = part.remainder
            self.passed_bytes += len(text) - 1 - len(buffer)
            self._text, self._texts = memoryview(text)[1 : len(text) - len(buffer)], part.texts
            wanted, self.whole, self._final = 0, part.ended, final
            yield part.events, part.us
        if self.whole:
            self._tail(buffer)

    def texts(self) -> list[bytes]:
        """The text of each event of the slice that was given last; of damaged ones, before they were repaired.

        Of half surrogate pairs there is what the reader takes for them.
        """
        if self._texts is not None:
            return [_SURROGATES.sub(lambda match: rb"\ufffd" if match[1] else match[0], text) for text in self._texts]
        array = b"[%b]" % bytes(self._text).rstrip(b"], \t\r\n")
        return [bytes(raw) for raw in _EVENT_TEXTS.decode(array)]

    def take_portion(self, count: int) -> Portion | None:
        """The next portion of so many chunks, as if it had been iterated over; None if it cannot be told where it ends.

        Only after a break.
        """
        chunks = [] if self.whole or self._final else list(islice(self._chunks, count))
        after = next((chunks[-1][start:] for _, start in _boundaries(chunks[-1])), None) if chunks else None
        if after is None or self.remainder is None:
            self._chunks = chain(chunks, self._chunks)
            return None
        portion = Portion(self.remainder, tuple(chunks), after)
        self.remainder = after
        return portion

    def put_back(self, portions: Sequence[Portion]) -> None:
        """Put back the portions that were taken last, so that iterating goes on with them."""
        self.remainder = portions[0].before
        self._chunks = chain(*(portion.chunks for portion in portions), self._chunks)

    def _read_more(self, buffer: bytes, wanted: int, opening: bytes = b"") -> tuple[bytearray, bool]:
        """The buffer with the next chunk, or as many as make `wanted` bytes, and whether the file has ended."""
        parts, size = [opening, buffer], len(buffer)
        for chunk in self._chunks:
            parts.append(chunk)
            size += len(chunk)
            if size >= wanted:
                return bytearray().join(parts), False
        return bytearray().join(parts), True

    def _head(self) -> bytes:
        """Read the keys before the array; returns the text already read after its opening bracket."""
        buffer, final = b"", False
        while not final and len(buffer) < MOST_BYTES:
            read, final = self._read_more(buffer, 2 * len(buffer))
            buffer = bytes(read).removeprefix(_BOM).lstrip()
            if buffer[:1] == b"[":
                self.head = buffer[:1]
                return buffer[1:]
            if buffer and buffer[:1] != b"{":
                raise NoTraceError("not JSON")
            for match in islice(_ARRAY.finditer(buffer), _MOST_ARRAYS):
                if (keys := keys_before(buffer[: match.end()])) is not None:
                    self.keys, self.head = keys, buffer[: match.end()]
                    return buffer[match.end() :]
        raise NoTraceError("no list of traceEvents" if buffer else "empty")

    def _slice(self, text: bytearray, final: bool) -> _Slice | None:
        """Decode all whole events after the bracket; None if more has to be read first."""
        try:
            part = _decode_slice(text, final)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            if part is not None or (not final and len(text) < MOST_EVENT_BYTES and b"\\u" not in text):
                return part
        buffer = bytes(text[1:])
        events, remainder, ended = one_by_one(buffer, final or len(buffer) >= MOST_EVENT_BYTES, self.repairs)
        goes_on = events or ended or final or len(remainder) < len(buffer)
        texts, decoded = [text for text, _ in events], [event for _, event in events]
        return _Slice(decoded, None, remainder, ended, texts) if goes_on else None

    def _tail(self, buffer: bytes) -> None:
        text, _ = self._read_more(buffer, MOST_BYTES)
        self.tail = b"]" + text
        keys = keys_after(bytes(text), self.repairs)
        self.keys = Keys(*(getattr(self.keys, name) or getattr(keys, name) for name in Keys.__struct_fields__))


def _decode_slice(text: bytearray, final: bool) -> _Slice | None:
    """The slice of a text that begins with a bracket; raises msgspec's errors unless it is JSON of the usual form."""
    if final:
        return _to_end(text)
    for end, start in _boundaries(text):
        try:
            return _Slice(*_up_to(text, end), bytes(memoryview(text)[start:]))
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            if TRAILING.search(str(error)):
                return _to_end(text)
            if "truncated" not in str(error):
                raise
    return None


def _up_to(text: bytearray, end: int) -> tuple[list[FileEvent], NDArray[np.float64] | None]:
    """The events before this place, where a bracket is put meanwhile: copying the text would take as long as this."""
    replaced = text[end]
    text[end] = ord("]")
    try:
        return decode_events(memoryview(text)[: end + 1])
    finally:
        text[end] = replaced


def _to_end(text: bytearray) -> _Slice:
    """The events of a whole array, which other text may follow."""
    try:
        return _Slice(*decode_events(text), b"", ended=True)
    except msgspec.DecodeError as error:
        trailing = TRAILING.search(str(error))
        if trailing is None:
            raise
        end = text.rindex(b"]", 0, int(trailing[1])) + 1
        if _MAY_GO_ON.match(text, end):
            raise
        return _Slice(*decode_events(text[:end]), bytes(text[end:]), ended=True)


def _boundaries(buffer: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """The last places where an event may end and the next begin, latest first: its end, and the start of the next."""
    for start in (max(0, len(buffer) - _NEAR_BYTES), 0):
        matches = list(_BOUNDARY.finditer(buffer, start))[-_ATTEMPTS:]
        if matches:
            return ((match.start() + 1, match.end()) for match in reversed(matches))
    return iter(())
