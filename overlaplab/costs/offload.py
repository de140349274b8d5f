"""What is copied between a device and its host (ZeRO-Offload: Ren et al. 2021, arXiv 2101.06840, §3.2; FSDP2)."""

from __future__ import annotations

from overlaplab.costs.memory import parameter_bytes, reduced_bytes
from overlaplab.manifest import Manifest, Unit, traits_of
from overlaplab.vocabulary import FSDP2_ROOT


def copied_bytes(manifest: Manifest) -> dict[str, int]:
    """Bytes that a rank copies per step, without padding: `down` its part of each microbatch's gradients, as they were
    reduced, and `up` its part of the parameters, as they are kept: once updated, or, where the device keeps no shard,
    before each gather of a unit. Empty if nothing is offloaded, or sizes are unknown.
    """
    reduced, n = reduced_bytes(manifest), manifest.axes.owners
    if not manifest.offload or not manifest.parameters or reduced is None or manifest.accumulate is None:
        return {}
    up = parameter_bytes(manifest)
    traits = traits_of(manifest)
    if traits is not None and traits.offloads_parameters:
        up = manifest.accumulate * sum(unit.bytes * _gathers(manifest, unit) for unit in manifest.units)
    return {"down": manifest.accumulate * reduced // n, "up": up // n}


def _gathers(manifest: Manifest, unit: Unit) -> int:
    """How often FSDP2 gathers a unit for one microbatch: the root and, if it is kept, the last layer once."""
    layers = [other for other in manifest.units if other.name != FSDP2_ROOT]
    stays_gathered = unit.name == FSDP2_ROOT or (manifest.keep_last and unit is layers[-1])
    return 1 if stays_gathered or manifest.reshard_after_forward is False else 2
