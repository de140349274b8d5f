"""Where the ranks compute: the one rule for it."""

from engine.config import Device
from engine.errors import EngineError

__all__ = ["gpus", "on_gpus"]


def gpus(device: Device) -> int:
    """How many GPUs this machine has. EngineError if it must have some and has none."""
    import torch  # takes a while

    count = torch.cuda.device_count()
    if device is Device.CUDA and count == 0:
        raise EngineError("--device cuda: this machine has no GPU; use --device cpu")
    return count


def on_gpus(device: Device, ranks_here: int, world_size: int) -> bool:
    """Whether to compute on GPUs: when told to, or when two or more ranks have one each on this machine."""
    if device is not Device.AUTO:
        return device is Device.CUDA
    return world_size >= 2 and gpus(device) >= ranks_here
