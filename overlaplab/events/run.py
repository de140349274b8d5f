"""A run in memory: one table of events per rank, and the manifest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple, cast
from weakref import WeakKeyDictionary

import pandas as pd
from msgspec import Struct, field
from msgspec.structs import replace

from overlaplab.event_columns import SYNC_COLUMNS
from overlaplab.manifest import Manifest, played_phantoms

Value = TypeVar("Value")
Key = TypeVarTuple("Key")


class Group(Struct, frozen=True, kw_only=True):
    """A process group of the job, from the trace's `distributedInfo`."""

    name: str
    description: str = ""
    """Its purpose, such as `default_pg` or `mesh_tp`."""
    size: int | None = None
    ranks: tuple[int, ...] = ()
    """Its members; empty where unknown."""


class Tables(Struct, frozen=True, kw_only=True, eq=False):
    """Events, those of one rank or of a whole file, and what the file tells of them."""

    events: pd.DataFrame
    """Events in order of `ts_ns`, of equal times the longest first, with the columns of `EVENT_COLUMNS`."""
    collectives: pd.DataFrame
    """Collective metadata from event arguments, in order of `event`, with the columns of `COLLECTIVE_COLUMNS`."""
    inputs: pd.DataFrame
    """The input tensors of some events, in order of `event`, with the columns of `INPUT_COLUMNS`."""
    syncs: pd.DataFrame = field(default_factory=lambda: empty_table(SYNC_COLUMNS))
    """What streams and the host waited for, in order of `event`, with the columns of `SYNC_COLUMNS`."""


class Trace(Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """One rank's events. Compared by identity, so that derived values can be cached per trace."""

    path: str
    rank: int | None
    """None if the only file does not name its rank."""
    tables: Tables | Callable[[], Tables]
    """Or what reads them when first asked for: a worker that has read the file drops them."""
    precomputed: Mapping[str, object] = {}
    """Values of `once_per_trace` functions, by name, from the worker that read the tables: see `known_of`."""
    groups: tuple[Group, ...] = ()
    """The job's process groups, as far as the file names them."""
    world_size: int | None = None
    """Ranks in the job; there may be fewer files."""
    backend: str | None = None
    """torch.distributed's backend, such as `nccl`."""
    devices: tuple[str, ...] = ()
    """Devices that the process could see, by the file's `deviceProperties`."""
    unknown_device: tuple[str, ...] = ()
    """What in the file names a device whose events no rule knows, such as `process 'Ascend Hardware'`."""
    host: str | None = None
    """The machine's name; ranks of one machine share a clock."""
    device: str | None = None
    """Where the rank computed, from run.json: `cpu` or `cuda`; None without a manifest."""
    communication: str | None = None
    """The user's own rule: device events whose names match this regular expression communicate; case is ignored."""
    origin_ns: int = 0
    """The run's zero in Unix ns, the same for all its traces."""

    @property
    def joined_groups(self) -> tuple[Group, ...]:
        """The groups that the rank is in, or may be in."""
        return tuple(group for group in self.groups if not group.ranks or self.rank is None or self.rank in group.ranks)

    @property
    def events(self) -> pd.DataFrame:
        """`Tables.events`."""
        return _tables(self).events

    @property
    def collectives(self) -> pd.DataFrame:
        """`Tables.collectives`."""
        return _tables(self).collectives

    @property
    def inputs(self) -> pd.DataFrame:
        """`Tables.inputs`."""
        return _tables(self).inputs

    @property
    def syncs(self) -> pd.DataFrame:
        """`Tables.syncs`."""
        return _tables(self).syncs


class Run(Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """All ranks' traces of one recording, in order of rank, and its manifest, if any. Compared by identity."""

    path: str
    manifest: Manifest | None
    traces: tuple[Trace, ...]
    warnings: tuple[str, ...] = ()


def empty_table(columns: Mapping[str, str]) -> pd.DataFrame:
    """A table with these columns and dtypes, and no rows."""
    return pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype in columns.items()})


def table_of(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str | None]) -> pd.DataFrame:
    """These rows as a table with these columns and dtypes (None: as pandas infers it); what a row lacks is null."""
    return pd.DataFrame(
        {name: pd.Series([row.get(name) for row in rows], dtype=dtype) for name, dtype in columns.items()}, copy=False
    )


def once_per_trace(function: Callable[[Trace], Value]) -> Callable[[Trace], Value]:
    """Compute the value once per trace and keep it as long as the trace lives. Callers must not modify it."""
    values: WeakKeyDictionary[Trace, Value] = WeakKeyDictionary()
    name = _name(function)

    @wraps(function)
    def look_up(trace: Trace) -> Value:
        if trace not in values:
            values[trace] = cast(Value, trace.precomputed[name]) if name in trace.precomputed else function(trace)
        return values[trace]

    return look_up


def known_of(trace: Trace, functions: Iterable[Callable[[Trace], object]]) -> dict[str, object]:
    """The values of these `once_per_trace` functions by name: as `precomputed` they spare a trace its tables."""
    return {_name(function): function(trace) for function in functions}


def with_known(trace: Trace, function: Callable[[Trace], Value], value: Value) -> Trace:
    """The trace as if this `once_per_trace` function gave this value; whatever else is asked of it is computed anew."""
    return replace(trace, precomputed={_name(function): value})


def _name(function: Callable[[Trace], Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def once_per_run(function: Callable[[Run, *Key], Value]) -> Callable[[Run, *Key], Value]:
    """Compute the value once per run and further arguments, and keep it as long as the run lives.

    The value must not reference the run or its traces, or they stay alive.
    """
    values: WeakKeyDictionary[Run, dict[Hashable, Value]] = WeakKeyDictionary()

    @wraps(function)
    def look_up(run: Run, *key: *Key) -> Value:
        of_run = values.setdefault(run, {})
        if key not in of_run:
            of_run[key] = function(run, *key)
        return of_run[key]

    return look_up


@once_per_trace
def _read(trace: Trace) -> Tables:
    return trace.tables() if callable(trace.tables) else trace.tables


def _tables(trace: Trace) -> Tables:
    return trace.tables if isinstance(trace.tables, Tables) else _read(trace)


@once_per_trace
def extent(trace: Trace) -> tuple[int, int] | None:
    """From the first event's start to the last end, in absolute ns; None without events."""
    starts = trace.events["ts_ns"]
    return (int(starts.min()), int((starts + trace.events["dur_ns"]).max())) if len(starts) else None


def missing_ranks(run: Run) -> int:
    """How many of the job's ranks have no trace here, as run.json or the traces tell; emulated ones are not missing."""
    sizes = [trace.world_size or 1 for trace in run.traces]
    world = max([run.manifest.world_size, *sizes] if run.manifest else sizes, default=0)
    return max(world - len(run.traces) - played_phantoms(run.manifest), 0)
