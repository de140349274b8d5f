"""The parts of run.json about the machine and the model, for `overlaplab record` and the Recorder."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from overlaplab_engine.labels import dtype_name
from overlaplab_engine.models.units import Unit

FORMAT_VERSION = 1
"""The version of run.json's format."""


def versions() -> dict[str, str | None]:
    """The versions of torch, CUDA and overlaplab; None for what is missing."""
    try:
        overlaplab = version("overlaplab")
    except PackageNotFoundError:
        overlaplab = None
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "overlaplab": overlaplab}


def hardware(device: torch.device) -> dict[str, Any]:
    """This machine's hardware; the GPU is `device`."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch_threads": torch.get_num_threads(),
    }


def hardware_of_rank(device: torch.device) -> dict[str, Any]:
    """The hardware of this rank's machine, with its host name; the GPU is `device`, and its memory is in bytes."""
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    memory = None if gpu is None else gpu.total_memory
    return {"hostname": platform.node(), **hardware(device), "gpu_memory_bytes": memory}


def named_parameters(
    parameters: Iterable[tuple[str, torch.Tensor]],
    units: Sequence[Unit],
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> list[dict[str, Any]]:
    """Each parameter with its unsharded shape; `unit` is null for a parameter outside all units.

    Also those that DeepSpeed's ZeRO-3 has left empty, which then know their shape.
    `dtypes` are the types in which they are kept, if those are not the parameters' own.
    """
    unit_of = {name: unit.name for unit in units for name in unit.parameters}
    typed = [(name, p, p.dtype if dtypes is None else dtypes[name]) for name, p in parameters]
    return [
        {
            "name": name,
            "shape": list(whole_shape(p)),
            "dtype": dtype_name(dtype),
            "bytes": whole_shape(p).numel() * dtype.itemsize,
            "unit": unit_of.get(name),
        }
        for name, p, dtype in typed
    ]


def whole_shape(parameter: torch.Tensor) -> torch.Size:
    """A parameter's unsharded shape, which DeepSpeed's ZeRO-3 keeps beside what it has left empty."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def named_units(units: Sequence[Unit], dtype: torch.dtype | None = None) -> list[dict[str, Any]]:
    """The units that are gathered and freed together, with the unsharded sizes that they are gathered in.

    `dtype` is the type in which floating-point parameters are gathered, if that is not their own.
    """
    return [
        {
            "name": unit.name,
            "bytes": sum(
                whole_shape(p).numel() * ((p.is_floating_point() and dtype) or p.dtype).itemsize
                for p in unit.parameters.values()
            ),
            "parameters": list(unit.parameters),
        }
        for unit in units
    ]


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
