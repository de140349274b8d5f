"""Gzip files that inflate to a thousand times their size, and how to write them in no time."""

from __future__ import annotations

import zlib
from pathlib import Path

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
BLOCK = 16 << 20


def write_bomb(path: Path, inflated: int) -> Path:
    """A trace whose first name goes on for so many bytes; its checksum is wrong: nobody should get there."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    start = packer.compress(b'{"traceEvents": [{"ph": "X", "name": "') + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b"x" * BLOCK) + packer.flush(zlib.Z_FULL_FLUSH)  # leans on nothing before it
    with path.open("wb") as file:
        file.write(HEADER + start)
        for _ in range(inflated // BLOCK):
            file.write(block)
        file.write(packer.flush() + bytes(8))
    return path
