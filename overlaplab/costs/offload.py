"""What an offloaded optimizer copies (ZeRO-Offload: Ren et al. 2021, arXiv 2101.06840, §3.2)."""

from __future__ import annotations

from overlaplab.costs.memory import parameter_bytes, reduced_bytes
from overlaplab.manifest import Manifest

__all__ = ["copied_bytes"]


def copied_bytes(manifest: Manifest) -> dict[str, int]:
    """Bytes that a rank copies per step, without padding: `down` its part of each microbatch's gradients, as they were
    reduced, and `up` its part of the parameters, as they are kept. Empty if nothing is offloaded, or sizes are unknown.
    """
    reduced, n = reduced_bytes(manifest), manifest.axes.owners
    if not manifest.offload or not manifest.parameters or reduced is None or manifest.accumulate is None:
        return {}
    return {"down": manifest.accumulate * reduced // n, "up": parameter_bytes(manifest) // n}
