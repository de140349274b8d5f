"""What a run is in memory: a table of events per rank, and the manifest beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from math import prod
from typing import Annotated, Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import pandas as pd

__all__ = [
    "COLLECTIVE_COLUMNS",
    "EVENT_COLUMNS",
    "INPUT_COLUMNS",
    "Bucket",
    "Group",
    "Held",
    "Link",
    "Manifest",
    "Model",
    "Parameter",
    "Run",
    "Trace",
    "Unit",
    "empty_table",
    "once_per_run",
    "once_per_trace",
]

Size = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
"""A count, or bytes: sums of thousands stay whole numbers of 64 bits."""
Ranks = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
"""A number of ranks."""

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
class Link:
    """The network model that a run was recorded under."""

    emulated: bool
    bandwidth_gbps: Annotated[float, msgspec.Meta(gt=0)]
    """Decimal Gbit/s per rank."""
    latency_us: Annotated[float, msgspec.Meta(ge=0)]
    """Microseconds per message."""
    world_size: Ranks
    """Ranks that the model assumes."""

    def __str__(self) -> str:
        return f"{self.bandwidth_gbps:g}Gbps,{self.latency_us:g}us"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of the model, as run.json names it."""

    name: str
    shape: tuple[Size, ...]
    dtype: str
    bytes: Size
    unit: str | None = None

    def __post_init__(self) -> None:
        if prod(self.shape) > 2**50:
            raise ValueError(f"{self.name} has too many elements")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket of gradients, in launch order."""

    index: Size
    bytes: Size
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Parameters that are gathered and freed together."""

    name: str
    bytes: Size
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that was trained; None for what run.json does not tell."""

    layers: Size | None = None
    dtype: str | None = None
    tied: bool | None = None
    parameters: Size | None = None
    """Number of elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of tensors' storages that a rank held after the last step's update."""

    rank: Size
    parameters: Size
    gradients: Size
    optimizer: Size
    """Moments, and masters of higher precision."""
    peak_allocated: Size | None = None
    """The CUDA allocator's highest mark, without `scratch`; None on CPU."""
    scratch: Size | None = None
    """What was lent to phantoms for their parts, no part of what the rank holds; None without phantoms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The part of run.json (format_version 1) that analyses read; `raw` is the whole of it."""

    format_version: int
    world_size: Ranks
    strategy: str | None = None
    """None in a recording of a loop that is not the engine's, and of a model that nothing parallelises."""
    device: str | None = None
    backend: str | None = None
    device_activity_missing: str | None = None
    """Why the profiler saw nothing run on the GPU, and what to do about it; None where it did, or nobody knows."""
    bucket_cap_mb: Annotated[float, msgspec.Meta(ge=0)] | None = None
    link: Link | None = None
    link_attained: bool | None = None
    """Whether at most 5 % of the collectives overran the emulated link; None without one."""
    phantom_ranks: tuple[Size, ...] = ()
    """Ranks of an emulated group that no process is: they have no traces, and are not missing."""
    numerics_meant: bool = True
    """Whether losses and parameters say something: phantoms' parts are made up."""
    parameters: tuple[Parameter, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    units: tuple[Unit, ...] = ()
    model: Model | None = None
    main_grad: bool | None = None
    """Whether gradients are kept and sent in fp32 beside parameters of lower precision."""
    accumulate: Annotated[int, msgspec.Meta(ge=1, le=2**20)] | None = None
    """Microbatches per step."""
    prefetch: Size | None = None
    """Units gathered ahead of the one in use."""
    keep_last: bool | None = None
    """Whether the last layer stays gathered from its forward into its backward."""
    overlap_param_gather: bool | None = None
    """Whether updated parameters are gathered during the next forward pass."""
    checkpointing: bool | None = None
    """Activation checkpointing."""
    losses: tuple[float | None, ...] = ()
    """One per recorded step, the mean over the ranks."""
    memory: tuple[Held, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def emulated_link(self) -> Link | None:
        """The link, if it is emulated."""
        return self.link if self.link and self.link.emulated else None


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
