"""Sizes of a run's parameters and gradients, from its manifest."""

from __future__ import annotations

from math import prod

from overlaplab.manifest import Manifest

__all__ = ["elements", "gradient_bytes", "parameter_bytes"]

FP32_BYTES = 4


def elements(manifest: Manifest) -> int:
    """Number of elements of all parameters."""
    return sum(prod(parameter.shape) for parameter in manifest.parameters)


def parameter_bytes(manifest: Manifest) -> int:
    """Bytes of all parameters."""
    return sum(parameter.bytes for parameter in manifest.parameters)


def gradient_bytes(manifest: Manifest) -> int:
    """Bytes of all gradients, which have their parameter's type, or fp32 with `main_grad`."""
    return FP32_BYTES * elements(manifest) if manifest.main_grad else parameter_bytes(manifest)
