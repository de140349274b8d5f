"""What each strategy does, as data. Without slow imports: the command line's help and completion read the names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a strategy does, whatever its name. The defaults describe plain data parallelism: all is replicated."""

    gradients: Literal["all_reduce", "reduce_scatter", "server"] | None = "all_reduce"
    """The collective that averages the gradients. `server`: they are sent to rank 0, which alone updates the
    parameters, and sends them back. None: each rank updates by its own."""
    averages_parameters: bool = False
    """Whether parameters are averaged, by an all-reduce after every so many updates (`every` in run.json)."""
    sends_every_microbatch: bool = False
    """Whether gradients are sent with each microbatch, rather than once per step."""
    buckets: bool = False
    """Whether gradients are sent in buckets that close at `bucket_cap_mb`."""
    gathers: Literal["updated_parameters", "units"] | None = None
    """What is all-gathered: `updated_parameters`, after each update and possibly into the next step; `units`, each
    unit's parameters in each microbatch before use; or nothing."""
    sharded: tuple[Literal["parameters", "gradients", "optimizer"], ...] = ()
    """The parts of which each rank holds 1/N; the others are replicated."""
    cuts_layers: bool = False
    """Whether the ranks of a tensor-parallel group compute each layer together, and exchange activations for it."""
    hops: Literal["ring", "tree"] | None = None
    """By which messages between neighbours the gradients' collective is made by hand; None: the library's."""
    stages: bool = False
    """Whether ranks hold different layers, and send activations and their gradients to each other."""
    offloads_parameters: bool = False
    """Whether `offload` leaves no shard of the parameters on the device, so that each gather copies one there."""

    @property
    def averages_by_messages(self) -> bool:
        """Whether gradients travel as messages of its own, around a ring, along a tree, or to a server."""
        return self.hops is not None or self.gradients == "server"

    @property
    def is_played(self) -> bool:
        """Whether its steps are played for any number of ranks from a recording of another strategy.

        `predict` also plays a server's, message by message.
        """
        return not (self.cuts_layers or self.stages or self.gradients in ("server", None))


BUCKETS = Traits(buckets=True)
"""What torch's DistributedDataParallel does."""
_SCATTERED = Traits(gradients="reduce_scatter", sends_every_microbatch=True)
UNITS = replace(_SCATTERED, gathers="units", sharded=("parameters", "gradients", "optimizer"))
"""What FSDP2 does."""
_UPDATED = replace(_SCATTERED, buckets=True, gathers="updated_parameters")

TRAITS = {
    "naive": Traits(),
    "per-param": Traits(),
    "bucketed": BUCKETS,
    "ring": Traits(buckets=True, hops="ring"),
    "tree": Traits(buckets=True, hops="tree"),
    "zero1": replace(_UPDATED, sends_every_microbatch=False, sharded=("optimizer",)),
    "zero2": replace(_UPDATED, sharded=("gradients", "optimizer")),
    "zero3": UNITS,
    "parameter-server": Traits(gradients="server"),
    "local-sgd": Traits(gradients=None, averages_parameters=True),
    "pipeline": Traits(stages=True),
    "torch-ddp": BUCKETS,
    "torch-fsdp2": replace(UNITS, offloads_parameters=True),
    "tensor": Traits(buckets=True, cuts_layers=True),
    "torch-tensor": Traits(cuts_layers=True),
}
"""By the names that the engine's `--strategy` takes; a contract test keeps them equal to the engine's own."""
