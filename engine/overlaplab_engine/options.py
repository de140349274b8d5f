"""The options of strategies, each declared once, with its text for the command line and the trait that it needs.

This module needs no torch, which the command line's help must not import.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, TypeVar, get_args

from overlaplab_engine.network.link import HOST_LINK, Link
from overlaplab_engine.schedules import Schedule

T = TypeVar("T")


class Dtype(StrEnum):
    """Type of parameters and activations, by torch's names."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a strategy does, as data: it goes into run.json, and analyses ask it instead of the strategy's name.

    The defaults are plain data parallelism: all is replicated, and gradients are all-reduced once per step.
    """

    gradients: Literal["all_reduce", "reduce_scatter", "server"] | None = "all_reduce"
    """The collective that averages the gradients. `server`: they are sent to rank 0, which alone updates the
    parameters, and sends them back. None: each rank updates by its own."""
    averages_parameters: bool = False
    """Whether parameters are averaged, by an all-reduce after every so many updates (`every`)."""
    sends_every_microbatch: bool = False
    """Whether each microbatch's gradients are sent, and only their sum kept, or all with the last (`no_sync`)."""
    buckets: bool = False
    """Whether gradients are sent in buckets that close at `bucket_cap_mb`."""
    gathers: Literal["updated_parameters", "units"] | None = None
    """What is all-gathered: after each update the parameters, which may reach into the next step; or in each microbatch
    the parameters of every unit, before they are used; or nothing."""
    sharded: tuple[Literal["parameters", "gradients", "optimizer"], ...] = ()
    """The parts of which each rank holds 1/N; the rest is replicated."""
    cuts_layers: bool = False
    """Whether the ranks of a tensor-parallel group compute each layer together, and exchange activations for it."""
    hops: Literal["ring", "tree"] | None = None
    """By which messages between neighbours the gradients' collective is made by hand; None: the library's."""
    stages: bool = False
    """Whether ranks hold different layers, and send activations and their gradients to each other."""
    offloads_parameters: bool = False
    """Whether `offload` leaves no shard of the parameters on the device, so that each gather copies one there."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a strategy must be to take an option; without a need every strategy takes it that does not refuse it."""

    refusal: str
    """The error for whoever sets the option with another strategy."""
    suits: Callable[[Traits], bool] = lambda traits: False
    """Whether a strategy of these traits takes it; others take what they list in `Strategy.takes`."""


STAGES = Need(
    "--schedule, --stages and --microbatches are for --strategy pipeline; leave them out", lambda traits: traits.stages
)
SEQUENCE = Need("--sequence-parallel is for tensor and torch-tensor", lambda traits: traits.cuts_layers)
PRECISION = Need(
    "--param-dtype and --reduce-dtype are for zero3 and torch-fsdp2", lambda traits: "parameters" in traits.sharded
)
OFFLOADING = Need(
    "--offload and --host-link are for zero2, zero3 and torch-fsdp2", lambda traits: "gradients" in traits.sharded
)
SERVER = Need(
    "--asynchronous and --max-staleness are for parameter-server", lambda traits: traits.gradients == "server"
)
AVERAGING = Need("--every and --background are for local-sgd", lambda traits: traits.averages_parameters)
KEEPING_LAST = Need("--keep-last is for torch-fsdp2; zero3 always keeps the last layer")
KEEPING_ALL = Need("--no-reshard-after-forward is for torch-fsdp2; zero2 keeps all parameters anyway")


@dataclass(frozen=True, slots=True)
class Option:
    """How the command line presents a field."""

    help: str
    names: str | None = None
    """Such as `--on/--off`; None: the field's name, and for a switch that is on by default its `--no-` form."""
    default: str | None = None
    """What stands for the field's default, where that is no text."""


def declarations(options: type, kind: type[T]) -> dict[str, T]:
    """Find what the fields of a dataclass declare of a kind, `Option` or `Need`, by name."""
    bases = reversed(options.__mro__)
    annotations = [item for base in bases for item in inspect.get_annotations(base).items()]
    return {name: extra for name, hint in annotations for extra in get_args(hint) if isinstance(extra, kind)}


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """In which types strategies compute, how they cut a pipeline, and what they send, gather and free, and when."""

    main_grad: Annotated[bool, Option("fp32 gradients beside bfloat16 parameters.")] = False
    """Gradients are accumulated and sent in fp32."""
    param_dtype: Annotated[
        Dtype | None,
        Option(
            "zero3, torch-fsdp2: gather parameters and compute in this type; each rank's shard keeps --dtype. As "
            "param_dtype in FSDP2's MixedPrecisionPolicy."
        ),
        PRECISION,
    ] = None
    reduce_dtype: Annotated[
        Dtype | None,
        Option("zero3, torch-fsdp2: reduce gradients in this type; default --param-dtype, as in FSDP2's policy."),
        PRECISION,
    ] = None
    schedule: Annotated[
        Schedule, Option(f"pipeline: {', '.join(Schedule)}; in which order microbatches are worked on."), STAGES
    ] = Schedule.GPIPE
    stages: Annotated[
        tuple[int, ...] | None,
        Option("pipeline: number of stages, or the layers of each such as 3,3,2; default one per rank, or two."),
        STAGES,
    ] = None
    """None: one on each rank, or two where the schedule needs several."""
    bucket_cap_mb: Annotated[float, Option("A bucket closes once it holds this many MiB.")] = 25.0
    first_bucket_mb: Annotated[float | None, Option("Another cap for the first bucket, in MiB.")] = None
    prefetch: Annotated[int, Option("zero3, torch-fsdp2: units gathered ahead; 0: none.")] = 1
    """With 0 gathers and computation take turns."""
    units: Annotated[
        str,
        Option(
            "zero1, zero2, zero3, torch-fsdp2: which parameters form a unit, gathered together: by_block (each layer), "
            "by_size:N (modules of N parameters or more, as FSDP's min_num_params) or MODULE:FUNCTION, your own policy."
        ),
    ] = "by_block"
    """See `overlaplab_engine.models.units.policy`."""
    overlap_param_gather: Annotated[
        bool, Option("zero1, zero2: gather updated parameters during the next forward.")
    ] = True
    """Otherwise they are gathered before it."""
    sequence_parallel: Annotated[
        bool, Option("tensor, torch-tensor: each rank holds a part of the sequence between the cut matrices."), SEQUENCE
    ] = False
    keep_last: Annotated[
        bool, Option("torch-fsdp2: keep the last layer from forward into backward, as zero3 does."), KEEPING_LAST
    ] = False
    offload: Annotated[
        bool,
        Option("zero2, zero3, torch-fsdp2: update on the host, which gets the gradients and gives back parameters."),
        OFFLOADING,
    ] = False
    """ZeRO-Offload: optimizer states lie in the host's memory; with FSDP2's CPUOffloadPolicy parameters do, too."""
    host_link: Annotated[
        Link,
        Option(
            "With --offload on the CPU: the emulated link to the host's memory, BANDWIDTH,LATENCY.",
            default=str(HOST_LINK),
        ),
        OFFLOADING,
    ] = HOST_LINK
    reshard_after_forward: Annotated[
        bool,
        Option(
            "torch-fsdp2: free layers after their forward pass, and gather them again (FULL_SHARD), or keep them "
            "(SHARD_GRAD_OP)."
        ),
        KEEPING_ALL,
    ] = True
    """FSDP2's `reshard_after_forward`."""
    asynchronous: Annotated[
        bool, Option("parameter-server: rank 0 applies each rank's gradients as they come; none waits."), SERVER
    ] = False
    """Gradients are computed with parameters that others' updates have made old."""
    max_staleness: Annotated[
        int | None,
        Option(
            "With --asynchronous: the most updates between the parameters that gradients were computed with and those "
            "that they are applied to, --nproc − 1 or more; default any."
        ),
        SERVER,
    ] = None
    """The least that is possible makes the ranks take turns."""
    every: Annotated[int, Option("local-sgd: average the parameters after every so many steps."), AVERAGING] = 1
    """Steps of all microbatches."""
    background: Annotated[
        bool, Option("local-sgd: average during the next step, which computes its gradients meanwhile."), AVERAGING
    ] = False
    """Otherwise before it."""
