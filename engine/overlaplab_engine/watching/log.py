"""The files of a watched training: per rank a header, `rankN.json`, and cells of 16 bytes, `rankN.cells`.

docs/design.md describes the format; `overlaplab/load/watched.py` reads it. Cells are only ever appended, all of a step
in one write, so that a file is readable whenever its process is killed; the header is replaced as a whole.
"""

import json
import os
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

FORMAT = "overlaplab-watch"
VERSION = 1
_CELL = struct.Struct("<BBHIq")
"""A cell's kind, flags, group, number and value."""


class CellKind(IntEnum):
    """What a cell's value is, times in ns. A cell's number is the step's, but for all-reduces."""

    STEP = 1
    """From one `step()` to the next. The first cell of each step."""
    DATA = 2
    """From `step()` to the model's next forward pass."""
    FORWARD = 3
    BACKWARD = 4
    """With the waits in it."""
    EXPOSED_GRADIENTS = 5
    """Waits for all-reduces, reduces and reduce-scatters, without those in C++ of DDP."""
    EXPOSED_GATHERS = 6
    """Waits for all-gathers."""
    EXPOSED_OTHER = 7
    """Waits for all other collectives and messages."""
    EXPOSED_DDP = 10
    """DDP's waits for gradients."""
    DDP_COMMUNICATION = 8
    """From DDP's first all-reduce of a step to the end of its last; `group` is DDP's."""
    ALL_REDUCE = 9
    """From launch to end; `number` counts those of the group within the step."""
    LOOK = 11
    """How long no step had ended when the groups were looked at; `number` is that of the step under way."""
    ENQUEUED = 12
    """After a LOOK: the number of the last collective that the group was given, from 1."""
    COMPLETED = 13
    """After a LOOK: the number of the group's last collective that was over."""


class Flag(IntEnum):
    """Bits of the flags of a cell STEP."""

    IN_BURST = 1
    PROFILED = 2
    """A profiler ran, which makes steps longer."""


class LookFlag(IntEnum):
    """The flags of a cell LOOK: why the groups were looked at."""

    STEP_ENDED = 0
    STALLED = 1
    """No step had ended for long."""
    FAILED = 2
    """An error ended the training."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement."""

    kind: CellKind
    number: int
    value_ns: int
    group: int = 0
    """The group's place in the header's list."""
    flags: int = 0

    def to_bytes(self) -> bytes:
        """Its 16 bytes."""
        return _CELL.pack(self.kind, self.flags, self.group, self.number, self.value_ns)


class WatchLog:
    """The two files of a rank; two threads may write."""

    def __init__(self, out: Path, rank: int, world_size: int, header: dict[str, Any]) -> None:
        """Replace what an earlier training has left in `out`. OSError where files cannot be written."""
        out.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._is_open = True
        self._header_path = out / f"rank{rank}.json"
        self._header = {
            "format": FORMAT,
            "version": VERSION,
            "rank": rank,
            "world_size": world_size,
            **header,
            "groups": [],
            "notes": [],
            "recordings": [],
            "ended": False,
        }
        if rank == 0:
            _delete_ranks_beyond(out, world_size)
        cells = out / f"rank{rank}.cells"
        cells.unlink(missing_ok=True)
        self._write_header()
        self._file = os.open(cells, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def append(self, cells: Iterable[Cell]) -> None:
        """Append cells, in one write; none once the files are closed."""
        written = b"".join([cell.to_bytes() for cell in cells])
        with self._lock:
            if self._is_open:
                os.write(self._file, written)

    def add(self, key: str, item: Any) -> None:
        """Add an item to one of the header's lists."""
        with self._lock:
            self._header[key].append(item)
            self._write_header()

    def close(self, *, ended: bool) -> None:
        """Close the files; the header says whether the training has `ended`, and was not killed."""
        with self._lock:
            self._is_open = False
            os.close(self._file)
            self._header["ended"] = ended
            self._write_header()

    def _write_header(self) -> None:
        written = self._header_path.with_suffix(".json.new")
        written.write_text(json.dumps(self._header))
        written.replace(self._header_path)


def _delete_ranks_beyond(out: Path, world_size: int) -> None:
    """Delete the files of ranks that this training does not have; each rank deletes its own."""
    rank = world_size
    while (header := out / f"rank{rank}.json").exists():
        header.unlink()
        (out / f"rank{rank}.cells").unlink(missing_ok=True)
        rank += 1
