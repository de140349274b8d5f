"""Read dumps of torch's Flight Recorder: what each rank had its process groups do, and when.

A rank's dump is JSON (`_dump_fr_trace_json`) or a pickle (`_dump_fr_trace`, and what TORCH_NCCL_DEBUG_INFO_TEMP_FILE
names). Of a pickle only numbers, strings, lists, tuples and dictionaries are read: nothing in it is called.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from overlaplab.errors import OverlaplabError

MAX_DUMP_BYTES = 64 << 20
"""A ring of 2,000 entries has about 1 MB."""
MAX_RANKS = 10_000
_RANK_IN_NAME = re.compile(r"(\d{1,6})(?:\.\w+)?$")
_PLAIN_OPCODES = frozenset(
    re.findall(
        r"\w+",
        """
        PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT
        BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_LIST APPEND
        APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS PUT BINPUT LONG_BINPUT
        MEMOIZE GET BINGET LONG_BINGET
        """,
    )
)
"""What pickles of plain values are made of; opcodes that these never hold, such as DUP, could multiply a value."""
MAX_ENTRIES, MAX_GROUPS = 1_000_000, 10_000
_REMEDY = "Give a folder of nothing but Flight Recorder dumps, one per rank."

_Count = Annotated[int, msgspec.Meta(ge=-1, le=1 << 62)]


class DumpEntry(msgspec.Struct, frozen=True):
    """A collective or a message that a rank has launched."""

    process_group: tuple[str, str]
    """Name and description."""
    collective_seq_id: _Count
    """Its number among the group's collectives, from 1; of a message that of the collective before it."""
    profiling_name: str
    time_created_ns: _Count
    """When the rank launched it, by its host's clock (Unix time)."""
    state: str = ""
    is_p2p: bool = False
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    """Known of NCCL with TORCH_NCCL_ENABLE_TIMING alone."""
    retired: bool = False
    """Whether torch's watchdog is done with it, as it has ended or timed out."""

    @property
    def is_over(self) -> bool:
        """Whether it is known to have ended; what is retired on a GPU and not completed has timed out."""
        return self.state == "completed" or (self.retired and self.profiling_name.startswith("gloo:"))

    @property
    def kind(self) -> str:
        """The kind of collective: `all_reduce`."""
        return self.profiling_name.partition(":")[2] or self.profiling_name


class _DumpedGroup(msgspec.Struct, frozen=True):
    ranks: str = "[]"


class _Dump(msgspec.Struct, frozen=True):
    entries: list[DumpEntry]
    pg_config: dict[str, _DumpedGroup] = {}


_DECODER = msgspec.json.Decoder(_Dump, strict=False)  # JSON has its numbers as text


class DumpedRank(msgspec.Struct, frozen=True):
    """One rank's dump."""

    rank: int
    entries: tuple[DumpEntry, ...]
    """In the order of launches; of a long training only the last ones."""
    members: Mapping[str, tuple[int, ...]]
    """The ranks of a group by its name; empty for gloo, whose dumps do not tell."""


class FlightDumps(msgspec.Struct, frozen=True):
    """The dumps of a training's ranks."""

    path: str
    ranks: tuple[DumpedRank, ...]
    """In the order of their numbers; some may be missing."""


def is_dumps(folder: Path) -> bool:
    """Whether a folder holds dumps, and not what `overlaplab.watch` has written."""
    if not folder.is_dir():
        return False
    for path in _dump_files(folder):
        try:
            with path.open("rb") as file:
                head = file.read(100)
        except OSError:
            continue
        if b'"overlaplab-watch"' in head:
            return False
        if head[:1] == b"\x80" or path.suffix in (".pickle", ".pkl") or head.lstrip()[:1] == b"{":
            return True
    return False


def load_dumps(folder: str | os.PathLike[str]) -> FlightDumps:
    """Read a folder of dumps, whose files' names end in the rank's number: `rank0.json`, `nccl_trace_rank_0`.

    OverlaplabError for what is no dump, is too large, or is a pickle of more than plain values.
    """
    files = _dump_files(Path(folder))
    if not files:
        raise OverlaplabError("no Flight Recorder dumps", path=folder, remedy=_REMEDY)
    if len(files) > MAX_RANKS:
        raise OverlaplabError(f"more than {MAX_RANKS} files", path=folder)
    by_rank: dict[int, Path] = {}
    for path, rank in files.items():
        if rank in by_rank:
            raise OverlaplabError(f"is of rank {rank}, and so is {by_rank[rank].name}", path=path, remedy=_REMEDY)
        by_rank[rank] = path
    return FlightDumps(str(folder), tuple(_read_rank(rank, by_rank[rank]) for rank in sorted(by_rank)))


def _dump_files(folder: Path) -> dict[Path, int]:
    """The files whose names end in a rank, in order of name, each with its rank."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return {path: int(match[1]) for path in files if (match := _RANK_IN_NAME.search(path.name))}


def _read_rank(rank: int, path: Path) -> DumpedRank:
    try:
        if (size := path.stat().st_size) > MAX_DUMP_BYTES:
            raise OverlaplabError(f"has {size} bytes; of a dump {MAX_DUMP_BYTES} are read", path=path)
        content = path.read_bytes()
    except OSError as error:
        raise OverlaplabError(f"cannot be read: {error.strerror}", path=path) from None
    try:
        if content.lstrip()[:1] == b"{":
            dump = _DECODER.decode(content)
        else:  # converted, not written as text: few bytes of a pickle can repeat a value without end
            dump = msgspec.convert(_plain_pickle(content), _Dump, strict=False)
    except (msgspec.MsgspecError, UnicodeError, OverflowError, RecursionError, _NotPlainError) as error:
        raise OverlaplabError(f"no Flight Recorder dump: {error}", path=path, remedy=_REMEDY) from None
    if len(dump.entries) > MAX_ENTRIES or len(dump.pg_config) > MAX_GROUPS:
        what = f"more than {MAX_ENTRIES:,} entries or {MAX_GROUPS:,} groups"
        raise OverlaplabError(what, path=path)
    numbers = {name: _numbers(group.ranks) for name, group in dump.pg_config.items()}
    members = {name: ranks for name, ranks in numbers.items() if ranks}
    return DumpedRank(rank, tuple(sorted(dump.entries, key=lambda entry: entry.time_created_ns)), members)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d{1,6}", text[: 8 * MAX_RANKS]))


class _NotPlainError(Exception):
    """A pickle that is damaged, or would do more than hold values."""


def _plain_pickle(content: bytes) -> Any:
    """The value of a pickle in which nothing is imported or called."""
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if opcode.name not in _PLAIN_OPCODES:
                raise _NotPlainError(f"a pickle that would run code ({opcode.name})")
            if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > number:  # would take memory up to there
                raise _NotPlainError("a damaged pickle")
        return _PlainUnpickler(io.BytesIO(content)).load()
    except _NotPlainError:
        raise
    except Exception as error:  # an unpickler may raise anything
        raise _NotPlainError(f"a damaged pickle ({type(error).__name__})") from None


class _PlainUnpickler(pickle.Unpickler):
    """Imports nothing, should an opcode have been overlooked."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise _NotPlainError(f"a pickle that would import {module_name}.{global_name}")
