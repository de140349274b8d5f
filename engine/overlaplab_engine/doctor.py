"""`python -m overlaplab_engine.doctor`: facts about torch, the driver and the profiler on this machine, as JSON.

`overlaplab doctor`, which does not import torch itself, starts it and explains what the facts mean for a recording.
"""

import json
from dataclasses import asdict
from typing import Any

from overlaplab_engine.devices import cuda_error, no_gpu_here
from overlaplab_engine.nvidia import Nvidia, nvidia
from overlaplab_engine.recording.device_events import cause, probe


def facts() -> dict[str, Any]:
    """`nvidia` (see `overlaplab_engine.nvidia`) and `torch`: null if not installed, `{"error"}` if it does not load.

    Keys of `torch`: `version`; `cuda` and `hip` (the version it was built for, or null); `gpus` (the number it can
    use); `no_gpu` (`{"why", "remedy"}` if that is 0); `gloo` (bool); `nccl` (its version, or null); `cupti` (`{"seen",
    "cause"}`: whether the profiler saw a kernel and, if not, why; null without a GPU).
    """
    machine = nvidia()
    return {"nvidia": asdict(machine), "torch": _torch(machine)}


def _torch(machine: Nvidia) -> dict[str, Any] | None:
    try:
        import torch
        import torch.distributed as dist
    except ModuleNotFoundError as error:
        return None if error.name == "torch" else {"error": _one_line(error)}
    except (ImportError, OSError) as error:  # a library that torch needs is missing or has another version
        return {"error": _one_line(error)}
    error_of_cuda = cuda_error()
    usable = torch.cuda.device_count() if error_of_cuda is None else 0
    cupti = probe("cuda:0") if usable else None
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "gpus": usable,
        "no_gpu": None if usable else asdict(no_gpu_here(machine, error_of_cuda)),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": _nccl() if dist.is_available() and dist.is_nccl_available() else None,
        "cupti": None if cupti is None else {"seen": cupti.seen, "cause": None if cupti.seen else cause(cupti)},
    }


def _nccl() -> str:
    import torch.cuda.nccl

    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    print(json.dumps(facts()))
