"""What a strategy does, as data. It goes into run.json, and analyses ask it instead of the strategy's name."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Traits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The defaults are plain data parallelism: all is replicated, and gradients are all-reduced once per step.

    `overlaplab.manifest.Traits` reads them.
    """

    gradients: Literal["all_reduce", "reduce_scatter"] = "all_reduce"
    """The collective that averages the gradients."""
    sends_every_microbatch: bool = False
    """Whether each microbatch's gradients are sent, and only their sum kept, or all with the last (`no_sync`)."""
    buckets: bool = False
    """Whether gradients are sent in buckets that close at `bucket_cap_mb`."""
    gathers: Literal["updated_parameters", "units"] | None = None
    """What is all-gathered: after each update the parameters, which may reach into the next step; or in each microbatch
    the parameters of every unit, before they are used; or nothing."""
    sharded: tuple[Literal["parameters", "gradients", "optimizer"], ...] = ()
    """The parts of which each rank holds 1/N; the rest is replicated."""
