"""What each rank holds, by ZeRO's formulas (arXiv 1910.02054, §3.1)."""

from __future__ import annotations

from math import prod

from overlaplab.manifest import Manifest
from overlaplab.traits import Traits

__all__ = ["formula", "gradient_bytes", "parameter_bytes"]

_OPTIMIZER_BYTES = {"float64": 16, "float32": 8, "bfloat16": 12, "float16": 12}
"""Of AdamW per parameter: two moments of its type; for 16-bit types two moments and a master copy in fp32."""

_FP32_BYTES = 4


def formula(manifest: Manifest, traits: Traits | None, part: str) -> tuple[int | None, str | None]:
    """Bytes that each rank holds of `parameters`, `gradients` or `optimizer`, and the formula as text.

    Ψ is the number of parameters, N that of ranks. Without traits all is replicated. None where the manifest
    does not name the parameters, or they have a dtype of which it is not known what AdamW keeps.
    """
    count = _elements(manifest)
    if not count or any(parameter.dtype not in _OPTIMIZER_BYTES for parameter in manifest.parameters):
        return None, None
    full = {
        "parameters": parameter_bytes(manifest),
        "gradients": gradient_bytes(manifest),
        "optimizer": sum(prod(p.shape) * _OPTIMIZER_BYTES[p.dtype] for p in manifest.parameters),
    }[part]
    text = f"{full / count:.3g}Ψ"
    if traits is not None and part in traits.sharded:
        return round(full / manifest.world_size), f"{text}/N"
    return full, text


def parameter_bytes(manifest: Manifest) -> int:
    """Bytes of all parameters."""
    return sum(parameter.bytes for parameter in manifest.parameters)


def gradient_bytes(manifest: Manifest) -> int:
    """Bytes of all gradients, which have their parameter's type, or fp32 with `main_grad`."""
    return _FP32_BYTES * _elements(manifest) if manifest.main_grad else parameter_bytes(manifest)


def _elements(manifest: Manifest) -> int:
    return sum(prod(parameter.shape) for parameter in manifest.parameters)
