"""What a run is in memory: a table of events per rank, and the manifest beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pandas as pd

__all__ = [
    "EVENT_COLUMNS",
    "Bucket",
    "Held",
    "Link",
    "Manifest",
    "Model",
    "Parameter",
    "Run",
    "Trace",
    "Unit",
    "once_per_trace",
]

Found = TypeVar("Found")

EVENT_COLUMNS = {
    "name": "category",
    "category": "category",
    "ts_ns": "int64",
    "dur_ns": "int64",
    "process": "category",
    "thread": "category",
    "stream": "int64",
    "device": "int64",
    "correlation": "int64",
}
"""The columns of `Trace.events` and their dtypes.

`category` is kineto's `cat`; `ts_ns` is Unix time in ns; `process` and `thread` are the event's pid and tid as text;
`stream`, `device` and `correlation` are -1 where the event has none.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The network model that a run was recorded under."""

    emulated: bool
    bandwidth_gbps: float
    """Decimal Gbit/s per rank."""
    latency_us: float
    """Microseconds per message."""
    world_size: int
    """Ranks that the model assumes."""

    def __str__(self) -> str:
        return f"{self.bandwidth_gbps:g}Gbps,{self.latency_us:g}us"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of the model, as run.json names it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket of gradients, in launch order."""

    index: int
    bytes: int
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Parameters that are gathered and freed together."""

    name: str
    bytes: int
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that was trained; None for what run.json does not tell."""

    layers: int | None = None
    dtype: str | None = None
    tied: bool | None = None
    parameters: int | None = None
    """Number of elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of tensors' storages that a rank held after the last step's update."""

    rank: int
    parameters: int
    gradients: int
    optimizer: int
    """Moments, and masters of higher precision."""
    peak_allocated: int | None = None
    """The CUDA allocator's highest mark; None on CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The part of run.json (format_version 1) that analyses read; `raw` is the whole of it."""

    format_version: int
    strategy: str
    device: str
    backend: str
    world_size: int
    bucket_cap_mb: float | None = None
    link: Link | None = None
    link_attained: bool | None = None
    """Whether at most 5 % of the collectives overran the emulated link; None without one."""
    parameters: tuple[Parameter, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    units: tuple[Unit, ...] = ()
    model: Model | None = None
    main_grad: bool | None = None
    """Whether gradients are kept and sent in fp32 beside parameters of lower precision."""
    accumulate: int | None = None
    """Microbatches per step."""
    prefetch: int | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Trace:
    """One rank's events; equal only to itself, so that what follows from it can be kept beside it."""

    path: str
    rank: int | None
    """None where the file does not tell and is the only one."""
    events: pd.DataFrame
    """Complete events in order of `ts_ns`, with the columns of `EVENT_COLUMNS`."""
    world_size: int | None = None
    """Ranks in the job, which may be more than there are files."""
    backend: str | None = None
    """torch.distributed's backend, such as `nccl`."""
    origin_ns: int = 0
    """The run's zero in Unix ns, the same for all its traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All ranks' traces of one recording, in order of rank, with the manifest if there is one."""

    path: str
    manifest: Manifest | None
    traces: tuple[Trace, ...]
    warnings: tuple[str, ...] = ()


def once_per_trace(function: Callable[[Trace], Found]) -> Callable[[Trace], Found]:
    """Compute a trace's value at the first call and keep it as long as the trace lives; callers must not change it."""
    known: WeakKeyDictionary[Trace, Found] = WeakKeyDictionary()

    @wraps(function)
    def kept(trace: Trace) -> Found:
        if trace not in known:
            known[trace] = function(trace)
        return known[trace]

    return kept
