"""Read what `overlaplab.watch` has written of a training: per rank a header, and cells of 16 bytes.

docs/design/runs.md has them cell by cell. The files may still be growing, or their process may have been killed: a last
cell that is torn is dropped.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from overlaplab.errors import OverlaplabError

VERSION = 1
CELL = np.dtype([("kind", "u1"), ("flags", "u1"), ("group", "<u2"), ("number", "<u4"), ("value", "<i8")])
MAX_RANKS = 10_000
_READERS = 4
"""Reading waits for the disk, and for memory to be mapped, which threads do side by side."""
MAX_HEADER_BYTES = 1 << 24
MAX_CELLS_BYTES = 4 << 30
MAX_VALUE_NS = 1 << 50
"""Thirteen days: longer times are damage, and their sums might overflow."""
_HEADER_NAME = re.compile(r"rank(\d{1,6})\.json")


class CellKind(IntEnum):
    """What a cell's value is, times in ns; `overlaplab_engine.watching.log` describes each."""

    STEP = 1
    DATA = 2
    FORWARD = 3
    BACKWARD = 4
    EXPOSED_GRADIENTS = 5
    EXPOSED_GATHERS = 6
    EXPOSED_OTHER = 7
    DDP_COMMUNICATION = 8
    ALL_REDUCE = 9
    EXPOSED_DDP = 10
    LOOK = 11
    ENQUEUED = 12
    COMPLETED = 13


IN_BURST, PROFILED = 1, 2
"""Bits of the flags of a step's cell."""
STEP_ENDED, STALLED, FAILED = 0, 1, 2
"""The flags of a cell LOOK: why the groups were looked at."""


class WatchedGroup(msgspec.Struct, frozen=True):
    """A process group, the same on all of its ranks."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""


class WatchedRecording(msgspec.Struct, frozen=True):
    """A recording that the watch has started by itself."""

    step: int
    path: str
    reason: str


class WatchHeader(msgspec.Struct, frozen=True):
    """What a rank's header says."""

    format: str
    version: int
    rank: int
    world_size: Annotated[int, msgspec.Meta(le=2**20)]
    every: int
    device: str = "cpu"
    ddp: int = 0
    """How many models are in DDP, whose waits have cells of their own."""
    groups: tuple[WatchedGroup, ...] = ()
    notes: tuple[str, ...] = ()
    recordings: tuple[WatchedRecording, ...] = ()
    ended: bool = False


_DECODER = msgspec.json.Decoder(WatchHeader)


class WatchedRank(msgspec.Struct, frozen=True, dict=True):
    """One rank's files."""

    header: WatchHeader
    cells: npt.NDArray[Any]
    """Cells of the type `CELL`, in the order in which they were written."""

    def cells_of_kind(self, kind: CellKind) -> npt.NDArray[Any]:
        """The cells of one kind."""
        cells: npt.NDArray[Any] = self.cells[self.places_of_kind(kind)]
        return cells

    def places_of_kind(self, kind: CellKind) -> npt.NDArray[np.intp]:
        """Where the cells of one kind are, in order."""
        places, begins = self._by_kind
        return places[begins[kind] : begins[kind + 1]]

    @cached_property
    def _by_kind(self) -> tuple[npt.NDArray[np.intp], list[int]]:
        """The places of all cells by kind, and where those of each kind begin: sorted once, of millions of cells."""
        kinds = np.ascontiguousarray(self.cells["kind"])
        ends = np.cumsum(np.bincount(kinds, minlength=256)).tolist()
        return np.argsort(kinds, kind="stable"), [0, *ends]


class Watched(msgspec.Struct, frozen=True):
    """A watched training."""

    path: str
    ranks: tuple[WatchedRank, ...]
    """In the order of their numbers; some may be missing."""

    @property
    def world_size(self) -> int:
        """How many ranks the training has."""
        return max(rank.header.world_size for rank in self.ranks)


def load_watched(folder: str | os.PathLike[str]) -> Watched:
    """Read a folder that `overlaplab.watch` has written, or is writing.

    OverlaplabError where there are no such files, or one is damaged beyond its last cell.
    """
    path = Path(folder)
    if not path.is_dir():
        raise OverlaplabError("not a folder", path=path, remedy="Give the folder that overlaplab.watch writes into.")
    headers = sorted(entry for entry in path.iterdir() if _HEADER_NAME.fullmatch(entry.name))
    if not headers:
        what = "no watched training: there is no rank0.json"
        raise OverlaplabError(what, path=path, remedy="See docs/watching.md for the two lines.")
    if len(headers) > MAX_RANKS:
        raise OverlaplabError(f"more than {MAX_RANKS} ranks", path=path)
    with ThreadPoolExecutor(_READERS) as pool:
        ranks = sorted(pool.map(_read_rank, headers), key=lambda rank: rank.header.rank)
    return Watched(str(path), tuple(ranks))


def _read_rank(path: Path) -> WatchedRank:
    try:
        rank = WatchedRank(_read_header(path), _read_cells(path.with_suffix(".cells")))
    except OSError as error:
        raise OverlaplabError(f"cannot be read ({error.strerror or error})", path=error.filename or path) from None
    rank.places_of_kind(CellKind.STEP)  # sorts here, side by side with the other ranks
    return rank


def _read_header(path: Path) -> WatchHeader:
    if not path.is_file():  # to open a FIFO would block for ever
        raise OverlaplabError("not a file", path=path, remedy="Delete it to read the other ranks.")
    if path.stat().st_size > MAX_HEADER_BYTES:
        raise OverlaplabError("too large for a header", path=path)
    try:
        header = _DECODER.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what, remedy = f"not the header of a watched rank: {error}", "Delete the file to read the other ranks."
        raise OverlaplabError(what, path=path, remedy=remedy) from None
    if header.format != "overlaplab-watch" or header.version != VERSION:
        written = f"of format {header.format[:40]!r}, version {header.version}"
        what = f"{written}; this overlaplab reads version {VERSION}"
        raise OverlaplabError(what, path=path, remedy="Read it with the overlaplab that wrote it.")
    numbered = _HEADER_NAME.fullmatch(path.name)
    if numbered is None or int(numbered[1]) != header.rank or header.rank >= header.world_size:
        raise OverlaplabError(f"is of rank {header.rank} of {header.world_size}", path=path)
    return header


def _read_cells(path: Path) -> npt.NDArray[Any]:
    try:
        size = path.stat().st_size
    except FileNotFoundError:  # the rank has only just started
        return np.empty(0, CELL)
    if not path.is_file():
        raise OverlaplabError("not a file", path=path, remedy="Delete it to read the other ranks.")
    if size > MAX_CELLS_BYTES:
        raise OverlaplabError(f"has {size} bytes; more than {MAX_CELLS_BYTES} are not read", path=path)
    cells = np.fromfile(path, CELL, size // CELL.itemsize)
    possible = (cells["value"] >= 0) & (cells["value"] <= MAX_VALUE_NS)
    return cells if possible.all() else cells[possible]
