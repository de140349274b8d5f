"""Leave out the end of a trace that is too large, as Kineto writes its text: an event after another."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_TS = re.compile(rb'^    "ts": ([\d.]+)', re.MULTILINE)
_UNTIMED = re.compile(rb'"ph": "M"|"cat": "(?:kernel|gpu_mem\w+)"')
"""Names of threads; and what runs on a GPU, which may be later than the step that launched it."""


def shorten_trace(trace: Path, end: bytes) -> Iterator[bytes]:
    """Yield the text of the trace, in pieces, up to where the range called `end` begins, and that range."""
    name = b'"name": "%b"' % end
    with trace.open("rb") as lines:
        cut_us = next(_start_us(piece) for piece, is_event in _pieces(lines) if is_event and name in piece)
    with trace.open("rb") as lines:
        between = b""
        for piece, is_event in _pieces(lines):
            if not is_event:
                yield (b"\n" if between else b"") + piece
            elif _UNTIMED.search(piece) or _start_us(piece) < cut_us or name in piece:
                yield between + piece
                between = b",\n"


def _pieces(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The text, each piece with whether it is one event; these come without the comma after them."""
    piece: list[bytes] = []
    for line in lines:
        if line == b"  {\n" and piece:
            yield b"".join(piece), False
            piece = []
        piece.append(line)
        if piece[0] == b"  {\n" and line in (b"  },\n", b"  }\n"):
            yield b"".join([*piece[:-1], b"  }"]), True
            piece = []
    if piece:
        yield b"".join(piece), False


def _start_us(event: bytes) -> float:
    match = _TS.search(event)
    return 0.0 if match is None else float(match[1])
