"""What a run is in memory: a table of events per rank, and the manifest beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import pandas as pd

from overlaplab.manifest import Manifest

__all__ = [
    "COLLECTIVE_COLUMNS",
    "EVENT_COLUMNS",
    "INPUT_COLUMNS",
    "Group",
    "Run",
    "Trace",
    "empty_table",
    "once_per_run",
    "once_per_trace",
]


Found = TypeVar("Found")

EVENT_COLUMNS = {
    "name": "category",
    "category": "category",
    "phase": "category",
    "ts_ns": "int64",
    "dur_ns": "int64",
    "pid": "category",
    "tid": "category",
    "stream": "int32",
    "device": "int32",
    "correlation": "int32",
    "external_id": "int32",
    "flow_launch": "int32",
    "flow_backward": "int32",
}
"""The columns of `Trace.events` and their dtypes.

`category` is kineto's `cat`; `phase` is `X` for what lasted and `i` for an instant; `ts_ns` is Unix time in ns;
`pid` and `tid` are the process and thread as text. Where the event has none, these are -1: `stream`, `device`,
`correlation` (the same number at a launch and what it launched), `external_id` (of the operator it belongs to),
`flow_launch` (the same number at the ends of an arrow from a launch to a kernel) and `flow_backward` (from a forward
operator to its backward; of several arrows at one event, the first). A column of these is int64 where a file holds a
number that int32 does not.
"""

COLLECTIVE_COLUMNS = {
    "event": "int64",
    "kind": "category",
    "dtype": "category",
    "elements_in": "int64",
    "elements_out": "int64",
    "bytes": "int64",
    "group": "category",
    "group_description": "category",
    "group_size": "int64",
    "sequence": "int64",
}
"""The columns of `Trace.collectives` and their dtypes: what arguments tell of collectives.

`event` is the row of `Trace.events` (a kernel, or an operator such as `record_param_comms`); `kind` is one of
`vocabulary.collective_kind`; `dtype` is torch's name in lower case; `bytes` is the larger of input and output;
`group` is the process group's name, `group_description` what it is for (`default_pg`, `mesh_tp`); `sequence` numbers
a group's collectives. Unknown numbers are -1, unknown texts empty.
"""

INPUT_COLUMNS = {"event": "int64", "shapes": "category", "types": "category"}
"""The columns of `Trace.inputs` and their dtypes: tensors' shapes and types (`record_shapes=True`) as the file's JSON.

Kept only for what communicates (`c10d::*`, `gloo:*`, `nccl:*`, `record_param_comms`) and for `AccumulateGrad`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group of the job, as the trace's `distributedInfo` tells it."""

    name: str
    description: str = ""
    """What it is for, such as `default_pg` or `mesh_tp`."""
    size: int | None = None
    ranks: tuple[int, ...] = ()
    """Its members; empty where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Trace:
    """One rank's events; equal only to itself, so that what follows from it can be kept beside it."""

    path: str
    rank: int | None
    """None where the file does not tell and is the only one."""
    events: pd.DataFrame
    """Events in order of `ts_ns`, with the columns of `EVENT_COLUMNS`."""
    collectives: pd.DataFrame = field(default_factory=lambda: empty_table(COLLECTIVE_COLUMNS))
    """What arguments tell of collectives, in order of `event`, with the columns of `COLLECTIVE_COLUMNS`."""
    inputs: pd.DataFrame = field(default_factory=lambda: empty_table(INPUT_COLUMNS))
    """What tensors some events took, in order of `event`, with the columns of `INPUT_COLUMNS`."""
    groups: tuple[Group, ...] = ()
    """The job's process groups, as far as the file tells them."""
    world_size: int | None = None
    """Ranks in the job, which may be more than there are files."""
    backend: str | None = None
    """torch.distributed's backend, such as `nccl`."""
    device: str | None = None
    """Where the rank computed, as run.json tells it: `cpu`, `cuda`; None without a manifest."""
    origin_ns: int = 0
    """The run's zero in Unix ns, the same for all its traces."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Run:
    """All ranks' traces of one recording, in order of rank, with the manifest if there is one; equal only to itself."""

    path: str
    manifest: Manifest | None
    traces: tuple[Trace, ...]
    warnings: tuple[str, ...] = ()


def empty_table(columns: Mapping[str, str]) -> pd.DataFrame:
    """A table of these columns and dtypes without rows."""
    return pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype in columns.items()})


def once_per_trace(function: Callable[[Trace], Found]) -> Callable[[Trace], Found]:
    """Compute a trace's value at the first call and keep it as long as the trace lives; callers must not change it."""
    known: WeakKeyDictionary[Trace, Found] = WeakKeyDictionary()

    @wraps(function)
    def kept(trace: Trace) -> Found:
        if trace not in known:
            known[trace] = function(trace)
        return known[trace]

    return kept


def once_per_run(function: Callable[[Run], Found]) -> Callable[[Run], Found]:
    """As `once_per_trace`, for a run's value; it must hold neither the run nor its traces, or they would never go."""
    known: WeakKeyDictionary[Run, Found] = WeakKeyDictionary()

    @wraps(function)
    def kept(run: Run) -> Found:
        if run not in known:
            known[run] = function(run)
        return known[run]

    return kept
