"""What each rank holds, by ZeRO's formulas (arXiv 1910.02054, §3.1), and copies between device and host."""

from __future__ import annotations

from math import prod

from overlaplab.dtypes import DTYPE_BYTES, dtype_bytes
from overlaplab.manifest import Manifest, Unit, strategy_traits
from overlaplab.traits import Traits
from overlaplab.vocabulary import FSDP2_ROOT, layer_number

_OPTIMIZER_BYTES = {"float64": 16, "float32": 8, "bfloat16": 12, "float16": 12}
"""AdamW's bytes per parameter: two moments of its type; for 16-bit types two moments and a master copy in fp32."""


def formula(manifest: Manifest, traits: Traits | None, part: str, rank: int = 0) -> tuple[int | None, str | None]:
    """Bytes that a rank holds of `parameters`, `gradients`, `optimizer` or, offloaded, on its `host`, and the formula.

    Ψ is the number of parameters that a rank computes with, N that of the ranks that shard them. Without traits all is
    replicated. None where the manifest does not name the parameters, or they have a dtype of which it is not known what
    AdamW keeps; and of pipelines, whose ranks hold different layers. Where rank 0 updates alone, it has what that
    takes, and if it does so asynchronously parameters of its own beside those it computes with.
    """
    count = _elements(manifest)
    dtypes = {parameter.dtype for parameter in manifest.parameters}
    if (traits is not None and traits.stages) or not count or not dtypes <= _OPTIMIZER_BYTES.keys():
        return None, None
    sizes = {
        "parameters": parameter_bytes(manifest),
        "gradients": DTYPE_BYTES["float32"] * count if manifest.main_grad else parameter_bytes(manifest),
        "optimizer": sum(prod(p.shape) * _OPTIMIZER_BYTES[p.dtype] for p in manifest.parameters),
    }
    if manifest.offload and (part != "parameters" or (traits is not None and traits.offloads_parameters)):
        whole = sum(sizes.values())
        return (round(whole / manifest.axes.owners), f"{whole / count:.3g}Ψ/N") if part == "host" else (0, "0")
    if part not in sizes:  # the host of a run that keeps nothing there
        return None, None
    full = sizes[part]
    text = f"{full / count:.3g}Ψ"
    if traits is not None and part in traits.sharded:
        return round(full / manifest.axes.owners), f"{text}/N"
    if traits is not None and traits.gradients == "server":
        if part != "parameters":
            return (full, text) if rank == 0 else (0, "0")
        if rank == 0 and manifest.asynchronous:
            return 2 * full, f"{2 * full / count:.3g}Ψ"
    return full, text


def element_bytes(dtype: str) -> int:
    """Bytes of an element. Raises ValueError for an unknown type."""
    if (size := dtype_bytes(dtype)) is None:
        raise ValueError(f"unknown type {dtype}")
    return size


def parameter_bytes(manifest: Manifest) -> int:
    """Bytes of all parameters."""
    return sum(parameter.bytes for parameter in manifest.parameters)


def gathered_bytes(manifest: Manifest) -> int | None:
    """Bytes of all parameters as they are gathered, in `param_dtype` if there is one; None if its size is not known."""
    return _bytes_in(manifest, manifest.param_dtype)


def reduced_bytes(manifest: Manifest) -> int | None:
    """Bytes of all gradients as they are sent: in `reduce_dtype`, in fp32 with `main_grad`, or as they are computed."""
    return _bytes_in(manifest, manifest.reduce_dtype or ("float32" if manifest.main_grad else manifest.param_dtype))


def prefetched_bytes(manifest: Manifest, further: int) -> int | None:
    """What a rank holds more at most, if so many units further are gathered ahead: the largest ones.

    None if the manifest names no units.
    """
    largest = sorted((unit.bytes for unit in manifest.units), reverse=True)
    return sum(largest[:further]) if largest else None


def joined_units_bytes(manifest: Manifest, together: int) -> int | None:
    """What a rank holds more at most, if so many units that follow each other are one: while one computes, the next is
    gathered. None if the manifest names no units.
    """
    sizes = [unit.bytes for unit in manifest.units]
    if not sizes:
        return None
    largest = max(sum(sizes[first : first + together]) for first in range(len(sizes)))
    return 2 * (largest - max(sizes))  # two are held: the one that computes, and the next


def whole_gradients_bytes(manifest: Manifest) -> int | None:
    """What a rank holds more, if it keeps all gradients and not its shard of them; None if sizes are not known."""
    reduced = reduced_bytes(manifest) if manifest.parameters else None
    return None if reduced is None else reduced - reduced // manifest.axes.owners


def whole_parameters_bytes(manifest: Manifest) -> int | None:
    """What a rank holds at most, if all units stay gathered; None if sizes are not known."""
    return (gathered_bytes(manifest) or None) if manifest.parameters else None


def _bytes_in(manifest: Manifest, dtype: str | None) -> int | None:
    if dtype is None:
        return parameter_bytes(manifest)
    size = dtype_bytes(dtype)
    return None if size is None else _elements(manifest) * size


def _elements(manifest: Manifest) -> int:
    return sum(prod(parameter.shape) for parameter in manifest.parameters)


def copied_bytes(manifest: Manifest) -> dict[str, int]:
    """Bytes that a rank copies per step between device and host, without padding (arXiv 2101.06840, §3.2; FSDP2).

    `down` has its part of each microbatch's gradients, as they were reduced; `up` its part of the parameters, as they
    are kept: once updated, or, where the device keeps no shard, before each gather of a unit. Empty if nothing is
    offloaded, or sizes are unknown.
    """
    reduced, n = reduced_bytes(manifest), manifest.axes.owners
    if not manifest.offload or not manifest.parameters or reduced is None or manifest.accumulate is None:
        return {}
    up = parameter_bytes(manifest)
    traits = strategy_traits(manifest)
    if traits is not None and traits.offloads_parameters:
        once = manifest.units if manifest.reshard_after_forward is False else gathered_once(manifest, traits)
        up = manifest.accumulate * sum(unit.bytes * (1 if unit in once else 2) for unit in manifest.units)
    return {"down": manifest.accumulate * reduced // n, "up": up // n}


def gathered_once(manifest: Manifest, traits: Traits) -> list[Unit]:
    """Units that a microbatch gathers once, rather than once per pass, where layers are freed in between.

    FSDP2 keeps its root. Elsewhere an embedding's backward pass reads no parameters, and the head, or the unit that
    holds both, stays gathered for it. So does, with `keep_last`, the last layer, or the last part of one.
    """
    if traits.offloads_parameters:  # FSDP2
        layers = [unit for unit in manifest.units if unit.name != FSDP2_ROOT]
        last = layers[-1:]
    else:
        layers = [unit for unit in manifest.units if any(part.isdecimal() for part in unit.name.split("."))]
        whole_layers = [unit for unit in layers if layer_number(unit.name) is not None]
        last = [*whole_layers[-1:], *manifest.units[-1:]]
    return [unit for unit in manifest.units if unit not in layers or (manifest.keep_last and unit in last)]
