"""Choose between CPU and GPUs, and explain why torch cannot use a GPU."""

import os
import re
from dataclasses import dataclass

from overlaplab_engine.config import Device
from overlaplab_engine.errors import EngineError
from overlaplab_engine.nvidia import Nvidia, nvidia


@dataclass(frozen=True, slots=True)
class NoGpu:
    """Why torch cannot compute on a GPU, and what to do about it."""

    why: str
    remedy: str | None
    """None if the machine has no GPU."""


def gpus(device: Device) -> int:
    """How many GPUs torch can use here. EngineError with the reason if `device` is CUDA and there are none."""
    import torch  # slow

    count = torch.cuda.device_count()
    if device is Device.CUDA and count == 0:
        reason = no_gpu_here(nvidia(), cuda_error())
        remedy = f", or {reason.remedy}" if reason.remedy else ""
        raise EngineError(f"--device cuda: {reason.why}; use --device cpu{remedy}")
    return count


def should_use_gpus(device: Device, ranks_here: int, world_size: int) -> bool:
    """Whether to compute on GPUs: on request, or automatically if there are two or more ranks and a GPU for each."""
    if device is not Device.AUTO:
        return device is Device.CUDA
    return world_size >= 2 and gpus(device) >= ranks_here


def no_gpu_here(machine: Nvidia, error: str | None) -> NoGpu:
    """Why this process's torch has no GPU; `error` is CUDA's message when it starts."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return no_gpu(machine, torch_version=torch.__version__, built_for=torch.version.cuda, error=error, visible=visible)


def no_gpu(
    machine: Nvidia, *, torch_version: str, built_for: str | None, error: str | None, visible: str | None
) -> NoGpu:
    """Why torch has no GPU: the machine has none, torch is a CPU build, the GPUs are hidden, or CUDA's own `error`.

    `built_for` is the CUDA version that torch was built for, None in a CPU build. `error` is CUDA's message when it
    starts, and `visible` is CUDA_VISIBLE_DEVICES.
    """
    if not machine.gpus:
        trouble = f" that answers (nvidia-smi: {machine.error})" if machine.error else ""
        return NoGpu(f"this machine has no GPU{trouble}", None)
    gpu = f"this machine's GPU ({machine.gpus[0].name})"
    if built_for is None:
        return NoGpu(f"torch {torch_version} is a CPU build and cannot use {gpu}", _install(machine.driver))
    if visible is not None and (not visible.strip() or visible.strip().startswith("-1")):
        return NoGpu(f"CUDA_VISIBLE_DEVICES={visible} hides {gpu}", "unset it")
    if error is not None and "driver on your system is too old" in error:
        older = _install(machine.driver).replace("a CUDA build", "a build for an older CUDA")
        driver = f"the driver {machine.driver or ''}".rstrip() + _supported_cuda(error)
        return NoGpu(f"{driver} is too old for torch's CUDA {built_for}", f"update the driver, or {older}")
    if error is not None and "Found no NVIDIA driver" in error:
        return NoGpu(f"torch finds no driver for {gpu}", "in a container, start it with its GPUs (--gpus all)")
    return NoGpu(f"torch cannot use {gpu}: {error or 'no reason is given'}", "check that nvidia-smi lists it")


def cuda_error() -> str | None:
    """Start CUDA in this process; returns its error on one line, or None."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:
        return " ".join(str(error).split())
    return None


def _install(driver: str | None) -> str:
    """How to install a torch that works with this driver: CUDA 13 needs 580, CUDA 12.6 any still supported driver."""
    major = int(driver.partition(".")[0]) if driver and driver[:1].isdigit() else 0
    index = f"https://download.pytorch.org/whl/{'cu130' if major >= 580 else 'cu126'}"
    return f"install a CUDA build: pip install --force-reinstall torch --index-url {index}"


def _supported_cuda(error: str) -> str:
    """The CUDA version that the driver supports, from CUDA's message: `(found version 12020)`."""
    match = re.search(r"found version (\d+)", error)
    return f" (CUDA {int(match[1]) // 1000}.{int(match[1]) % 1000 // 10})" if match else ""
