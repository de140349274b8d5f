"""What each of the engine's strategies does, for runs whose run.json does not tell it, and the names on offer."""

from __future__ import annotations

from overlaplab.manifest import Manifest, Traits

__all__ = ["TRAITS", "traits_of"]

_UNITS = Traits(
    gradients="reduce_scatter",
    sends_every_microbatch=True,
    gathers="units",
    sharded=("parameters", "gradients", "optimizer"),
)

TRAITS = {
    "naive": Traits(),
    "per-param": Traits(),
    "bucketed": Traits(buckets=True),
    "zero1": Traits(
        gradients="reduce_scatter",
        buckets=True,
        gathers="updated_parameters",
        sharded=("optimizer",),
    ),
    "zero2": Traits(
        gradients="reduce_scatter",
        sends_every_microbatch=True,
        buckets=True,
        gathers="updated_parameters",
        sharded=("gradients", "optimizer"),
    ),
    "zero3": _UNITS,
    "torch-ddp": Traits(buckets=True),
    "torch-fsdp2": _UNITS,
}
"""By the names that the engine's `--strategy` takes; a contract test keeps them equal to the engine's own."""


def traits_of(manifest: Manifest | None) -> Traits | None:
    """What run.json tells, or else what is known of a strategy of this name; None for a stranger's."""
    if manifest is None:
        return None
    return manifest.traits or TRAITS.get(manifest.strategy or "")
