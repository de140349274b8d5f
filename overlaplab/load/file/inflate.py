"""The bytes of a trace, plain or gzipped, in chunks of bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from overlaplab.errors import OverlaplabError
from overlaplab.load.limits import MAX_RATIO

deflate: Any = zlib
with suppress(ImportError):  # takes a third of the time, and reads and writes the same
    deflate = import_module("isal.isal_zlib")

CHUNK_BYTES = 1 << 20
_PACKED_BYTES = 1 << 18
"""Read at once of a gzip file: a decompressor copies what it has not used yet for every chunk."""
GZIP = b"\x1f\x8b"
_GZIP_BITS = zlib.MAX_WBITS | 16
RATIO_FROM_BYTES = 64 << 20
"""Less text is harmless, whatever its ratio."""


class _Inflating(Protocol):
    """The interface of zlib's decompressor and of isal's."""

    eof: bool
    unconsumed_tail: bytes
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Source:
    """The chunks of one file. After the last chunk, `damage` says what cut the file short."""

    def __init__(self, path: object, file: BinaryIO) -> None:
        self.damage: str | None = None
        self.read_bytes = 0
        """How much of the file the chunks so far came from."""
        self._path = path
        self._file = file
        self._read = 0  # of a gzip file, with what is not inflated yet

    def __iter__(self) -> Iterator[bytes]:
        """Each chunk is read while the previous one is in use."""
        wanted = min(_PACKED_BYTES, CHUNK_BYTES)
        first = self._file.read(wanted)
        chunks = self._inflate(first) if first.startswith(GZIP) else self._read_plain(first)
        if len(first) < wanted:  # the whole of a small file, which is not worth a thread
            while chunk := next(chunks, b""):
                yield chunk
            return
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(next, chunks, b"")
            while chunk := coming.result():
                coming = reader.submit(next, chunks, b"")
                yield chunk

    def _read_plain(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            self.read_bytes += len(chunk)
            yield chunk
            chunk = self._file.read(CHUNK_BYTES)

    def _inflate(self, packed: bytes) -> Iterator[bytes]:
        """The members of the gzip file, one after the other."""
        member, written = _member(), 0
        self._read = len(packed)
        while True:
            try:
                chunk = member.decompress(packed, CHUNK_BYTES)
            except deflate.error as error:
                self.damage = f"damaged gzip ({error})"
                yield self._salvage(written)
                return
            written += len(chunk)
            packed = member.unused_data if member.eof else member.unconsumed_tail
            self.read_bytes = self._read - len(packed)
            self._refuse_bombs(written, self.read_bytes)
            if chunk:
                yield chunk
            if member.eof or len(chunk) < CHUNK_BYTES:  # else the member may have more output ready
                packed = self._refill(packed, member.eof)
                if not packed:
                    self.damage = None if member.eof else "the gzip file is cut short"
                    return
            member = _member() if member.eof else member

    def _refill(self, packed: bytes, before_member: bool) -> bytes:
        """The data given, or the next chunk of the file if there is none; skips padding before a member."""
        packed = packed.lstrip(b"\0") if before_member else packed
        while not packed and (more := self._file.read(_PACKED_BYTES)):
            self._read += len(more)
            packed = more.lstrip(b"\0") if before_member else more
        return packed

    def _refuse_bombs(self, written: int, inflated: int) -> None:
        """Raise `OverlaplabError` if so few bytes of the file became so many."""
        if written > RATIO_FROM_BYTES and written > (most := MAX_RATIO.value) * inflated:
            raise MAX_RATIO.error(f"unpacks to over {most} times its size", path=self._path, remedy="No trace does.")

    def _salvage(self, inflated_bytes: int) -> bytes:
        """The output of the chunk in which inflating failed, up to the failure; recovered byte by byte."""
        output = bytearray()
        if not self._file.seekable():
            return b""
        self._file.seek(0)
        member, packed, written, chunk = zlib.decompressobj(wbits=_GZIP_BITS), b"", 0, b""
        with suppress(zlib.error):
            while len(output) < CHUNK_BYTES and (
                (packed := self._refill(packed, before_member=not written or member.eof)) or chunk
            ):
                member = zlib.decompressobj(wbits=_GZIP_BITS) if member.eof else member
                chunk = member.decompress(packed, min(CHUNK_BYTES, max(inflated_bytes - written, 1)))
                written += len(chunk)
                output += chunk if written > inflated_bytes else b""
                packed = member.unused_data if member.eof else member.unconsumed_tail
        return bytes(output)


def _member() -> _Inflating:
    decompressor: _Inflating = deflate.decompressobj(wbits=_GZIP_BITS)
    return decompressor


def open_file(path: Path) -> BinaryIO:
    """The file, opened for reading; raises `OverlaplabError` if it is not a file."""
    if not path.is_file():
        raise OverlaplabError("not a file" if path.exists() else "no such file", path=path)
    return path.open("rb")
