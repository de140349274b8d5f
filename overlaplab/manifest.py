"""run.json as analyses read it: what was recorded, with what, and how (docs/design.md, "A run directory")."""

from __future__ import annotations

import re
from math import prod
from typing import Annotated, Any

import msgspec

from overlaplab.traits import TRAITS, Traits

Size = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
"""A count, or bytes; limited so that sums of thousands fit into 64 bits."""


Ranks = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
"""A number of ranks."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The network model of a recording."""

    emulated: bool
    bandwidth_gbps: Annotated[float, msgspec.Meta(gt=0)]
    """Decimal Gbit/s per rank."""
    latency_us: Annotated[float, msgspec.Meta(ge=0)]
    """Microseconds per message."""
    world_size: Ranks
    """The number of ranks that the model assumes."""

    def __str__(self) -> str:
        return f"{self.bandwidth_gbps:g}Gbps,{self.latency_us:g}us"


class Mesh(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks share the work; counted as in torch's DeviceMesh, with `tp` innermost and `pp` outermost."""

    dp: Ranks
    """Data-parallel size."""
    pp: Ranks = 1
    """Pipeline stages."""
    tp: Ranks = 1
    """Tensor-parallel size."""
    replicate: Ranks | None = None
    """HSDP: groups that each hold all shards, `replicate` × `shard` = `dp`; None: the axis is not split."""
    shard: Ranks | None = None
    """HSDP: ranks among which parameters are sharded."""

    def __post_init__(self) -> None:
        split = self.replicate is not None or self.shard is not None
        if split and (self.replicate or 0) * (self.shard or 0) != self.dp:
            raise ValueError("replicate × shard is not dp")

    @property
    def axes(self) -> dict[str, int]:
        """The size of each axis, outermost first; with HSDP `replicate` and `shard` stand for `dp`."""
        if self.replicate is None or self.shard is None:
            return {"pp": self.pp, "dp": self.dp, "tp": self.tp}
        return {"pp": self.pp, "replicate": self.replicate, "shard": self.shard, "tp": self.tp}

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.dp * self.pp * self.tp

    @property
    def is_one_axis(self) -> bool:
        """Whether all ranks are data-parallel, and one group does everything."""
        return self.dp == self.size and self.replicate is None

    @property
    def owners(self) -> int:
        """The ranks among which ZeRO shards."""
        return self.shard or self.dp

    def __str__(self) -> str:
        """`dp 2 × tp 2`."""
        return " × ".join(f"{axis} {size}" for axis, size in self.axes.items() if size > 1) or "dp 1"

    def coordinates(self, rank: int) -> dict[str, int]:
        """A rank's place along each of the `axes`."""
        places: dict[str, int] = {}
        for axis, size in reversed(self.axes.items()):
            rank, places[axis] = divmod(rank, size)
        return {axis: places[axis] for axis in self.axes}


class LinkStep(msgspec.Struct, frozen=True, kw_only=True):
    """What the emulated link carried for one rank in one recorded step; times in ns."""

    rank: Size
    step: Size
    """The ProfilerStep's number."""
    modelled_ns: Size
    """Sum over the collectives that the rank launched in the step."""
    occupied_ns: Size
    """Sum of the times that they took, each from its last arrival to its end."""
    latest_ns: Annotated[int, msgspec.Meta(ge=-(2**50), le=2**50)]
    """The most that one of them took beyond its modelled time."""
    took_ns: Size | None = None
    """The step itself; None where run.json does not say."""


class MachineStep(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's machine in one recorded step; times in ns, None where the kernel does not tell."""

    rank: Size
    step: Size
    """The ProfilerStep's number."""
    took_ns: Size
    """The step itself."""
    cores: Size
    """How many the rank may use."""
    busy: bool
    """Whether the recorder found the machine busy (docs/design.md, "Machine busy")."""
    delayed_ns: Size | None = None
    """How long the thread that computes waited for a core."""
    busy_ns: Size | None = None
    """How long the cores were busy, whoever used them."""
    foreign_ns: Size | None = None
    """How long other processes than the machine's ranks used the cores."""


class IdleCollective(msgspec.Struct, frozen=True, kw_only=True):
    """A kind and size of collective, made several times before the first step, while nothing computed."""

    kind: str
    bytes: Size
    used_ns: tuple[Size, ...] = ()
    """CPU time of a rank's threads, without the one that called; empty in older recordings."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured before the first step, with nothing in the way."""

    collectives: tuple[IdleCollective, ...] = ()


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of the model, as run.json names it."""

    name: str
    shape: tuple[Size, ...]
    dtype: str
    bytes: Size
    unit: str | None = None

    def __post_init__(self) -> None:
        if prod(self.shape) > 2**50:
            raise ValueError(f"{self.name} has too many elements")


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket of gradients, in launch order."""

    index: Size
    bytes: Size
    parameters: tuple[str, ...]


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that are gathered and freed together."""

    name: str
    bytes: Size
    parameters: tuple[str, ...]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline."""

    rank: Size
    """Its rank's place along the mesh's `pp` axis."""
    units: tuple[str, ...] = ()
    """The names of its units, in the order in which they are called."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """How microbatches pass through the stages."""

    schedule: str
    """`gpipe`, `1f1b`, `interleaved-1f1b` or `zbv`."""
    microbatches: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    """Per step."""
    stages: tuple[Stage, ...]
    """In order."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model that was trained; fields that run.json lacks are None."""

    layers: Size | None = None
    width: Size | None = None
    """Features."""
    heads: Size | None = None
    """Heads of attention."""
    vocab: Size | None = None
    """Words."""
    seq: Size | None = None
    """Tokens per sample."""
    batch: Size | None = None
    """Samples per data-parallel rank and microbatch."""
    dtype: str | None = None
    tied: bool | None = None
    parameters: Size | None = None
    """Number of elements."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of tensor storage that a rank held after the last step's update."""

    rank: Size
    parameters: Size
    gradients: Size
    optimizer: Size
    """Moments, and master weights of higher precision."""
    host: Size | None = None
    """What an offloaded optimizer keeps in the host's memory: parameters, gradients and states."""
    activations: Size | None = None
    """What autograd keeps of a microbatch for its backward pass, besides parameters; None on GPUs, and if unknown."""
    peak_allocated: Size | None = None
    """The CUDA allocator's peak, without `scratch`; on CPU the rehearsed peak of tensors, None without one."""
    scratch: Size | None = None
    """Lent to phantoms for their parts, and not counted as held by the rank; None without phantoms."""


class Sleep(msgspec.Struct, frozen=True, kw_only=True):
    """How a sleeping device slept."""

    on_schedule: bool = False
    """Whether what the host took between two sleeps shortened the next; older recordings' did not."""


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What `overlaplab sweep` gave to a user's own command."""

    settings: dict[str, int | float | str]
    """Values by name, as in `{"bucket_cap_mb": 5}`."""
    command: tuple[str, ...]
    """Its words, with `{NAME}` where a value stands."""

    def words(self, **others: str) -> list[str]:
        """The command with its values; `others` go before them, and braces around other names stay."""
        values = {name: str(value) for name, value in self.settings.items()} | others
        return [re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), word) for word in self.command]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The part of run.json (format_version 1) that analyses read; `raw` is the whole of it."""

    format_version: int
    world_size: Ranks
    strategy: str | None = None
    """None if the loop is not the engine's, or the model is not parallelised."""
    mesh: Mesh | None = None
    """None in older recordings and in those of other loops; use `axes`."""
    pipeline: Pipeline | None = None
    """None where all ranks hold the same layers."""
    traits: Traits | None = None
    """None without a strategy, and in older recordings; use `strategy_traits`."""
    device: str | None = None
    backend: str | None = None
    compute: str | None = None
    """`real`, or `sleep` for a sleeping device, whose layers take time without a core; None in older recordings."""
    sleep: Sleep | None = None
    """None where layers compute."""
    device_activity_missing: str | None = None
    """Why the profiler recorded no GPU activity, and the remedy; None if it did, or if unknown."""
    bucket_cap_mb: Annotated[float, msgspec.Meta(ge=0)] | None = None
    predicted: dict[str, Any] | None = None
    """Origin of a run that nobody recorded: `from` (what it was predicted from), `changes` (options by name),
    `interval_ns` (in which a recording's mean step lies in 95 of 100 cases), its parts, and `extrapolated`."""
    swept: Swept | None = None
    """Settings of a run that a sweep had a user's own script record."""
    link: Link | None = None
    link_attained: bool | None = None
    """Whether the recorder found it attained; `costs.link_attained` looks at the steps, too."""
    link_steps: tuple[LinkStep, ...] | None = None
    """Each rank's recorded steps on the emulated link; None without one, and in older recordings."""
    attempts: Size | None = None
    """How many recordings were made, if bad ones behind an emulated link were repeated."""
    processor_counts: bool | None = None
    """Whether the kernel told how long threads waited for a core; None where nobody asked, or on GPUs."""
    machine: tuple[MachineStep, ...] | None = None
    """Each rank's machine in the recorded steps; None on GPUs, and in older recordings."""
    calibration: Calibration | None = None
    """None on GPUs, and in older recordings."""
    phantom_ranks: tuple[Size, ...] = ()
    """Emulated ranks without a process: they have no traces, and do not count as missing."""
    numerics_meant: bool = True
    """False if losses and parameters are meaningless, because phantoms' parts are made up."""
    parameters: tuple[Parameter, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    units: tuple[Unit, ...] = ()
    model: Model | None = None
    main_grad: bool | None = None
    """Whether gradients are kept and sent in fp32 beside parameters of lower precision."""
    param_dtype: str | None = None
    """The type in which parameters are gathered and computed with; None if it is their own."""
    reduce_dtype: str | None = None
    """The type in which whole gradients are reduced; None if it is that of computation, or fp32 with `main_grad`."""
    accumulate: Annotated[int, msgspec.Meta(ge=1, le=2**20)] | None = None
    """Microbatches per step."""
    prefetch: Size | None = None
    """How many units are gathered ahead of the one in use."""
    keep_last: bool | None = None
    """Whether the last layer stays gathered from its forward to its backward pass."""
    offload: bool | None = None
    """Whether the optimizer, its states and the gradients that it reads lie in the host's memory."""
    asynchronous: bool | None = None
    """Whether the server applies each rank's gradients as they come; None where there is no server."""
    max_staleness: Size | None = None
    """How stale gradients may be that a server applies; None: any."""
    every: Annotated[int, msgspec.Meta(ge=1, le=2**20)] | None = None
    """After how many steps parameters are averaged; None where they are not."""
    background: bool | None = None
    """Whether parameters are averaged during the next step; None where they are not."""
    reshard_after_forward: bool | None = None
    """Whether layers are freed between their forward and backward passes; None in older recordings, where they are."""
    overlap_param_gather: bool | None = None
    """Whether updated parameters are gathered during the next forward pass."""
    checkpointing: bool | Size | None = None
    """Activation checkpointing: of all layers, of none, or of every so many."""
    memory_limit: Size | None = None
    """Bytes that no rank's peak might exceed; None: no limit was set."""
    largest_batch: bool | None = None
    """Whether the batch is the largest whose peak is within `memory_limit`, as measured."""
    memory: tuple[Held, ...] = ()
    raw: dict[str, Any] = {}

    def __repr__(self) -> str:
        """Without `raw`, which says all of it again."""
        fields = msgspec.structs.asdict(self).items()
        return f"Manifest({', '.join(f'{name}={value!r}' for name, value in fields if name != 'raw')})"

    def __post_init__(self) -> None:
        if self.mesh is not None and self.mesh.size != self.world_size:
            raise ValueError(f"the mesh has {self.mesh.size} ranks, and world_size is {self.world_size}")

    @property
    def axes(self) -> Mesh:
        """How the ranks share the work; where run.json does not say, all are data-parallel."""
        return self.mesh or Mesh(dp=self.world_size)

    @property
    def sleeps(self) -> bool:
        """Whether layers slept instead of computing."""
        return self.compute == "sleep"

    @property
    def hides_host(self) -> bool:
        """Whether hooks and launches made no step longer, as the device made up for them."""
        return self.sleep is not None and self.sleep.on_schedule

    @property
    def by_recorder(self) -> bool:
        """Whether a Recorder wrote it in somebody's own training loop, and not `overlaplab record`."""
        return str(self.raw.get("command", "")).startswith("python ")

    @property
    def predicted_from(self) -> str | None:
        """The run from which this one was predicted; None of recordings."""
        return None if self.predicted is None else str(self.predicted.get("from", ""))

    @property
    def emulated_link(self) -> Link | None:
        """The link, if it is emulated."""
        return self.link if self.link and self.link.emulated else None


def played_phantoms(manifest: Manifest | None) -> int:
    """How many ranks without a process a prediction needs nothing of.

    On a GPU phantoms keep nobody waiting. On a CPU real peers would share its cores, so nothing is predicted there.
    """
    return len(manifest.phantom_ranks) if manifest is not None and manifest.device == "cuda" else 0


def strategy_traits(manifest: Manifest | None) -> Traits | None:
    """What run.json says that the strategy does, or else what is known of a strategy of this name; None for others."""
    if manifest is None:
        return None
    return manifest.traits or TRAITS.get(manifest.strategy or "")
