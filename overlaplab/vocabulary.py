"""The words of traces: what an event's category and name say about it, and the engine's labels.

The label grammar is written down in `traces/README.md`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import unquote

__all__ = [
    "ANNOTATION_CATEGORIES",
    "COLLECTIVE_OPERATORS",
    "COMMUNICATION_KERNELS",
    "DEVICE_COPY_CATEGORIES",
    "DEVICE_KERNEL_CATEGORIES",
    "DEVICE_NOTHING",
    "OPERATOR_CATEGORIES",
    "OPERATOR_NOT_COMPUTE",
    "PEER_COPY",
    "RUNTIME_CATEGORIES",
    "WAIT_LABELS",
    "Rule",
    "label_fields",
    "label_list",
]


class Rule(StrEnum):
    """Which evidence decides what a rank did at a moment (DESIGN.md, "Which rule applies")."""

    GPU = "gpu"
    CPU = "cpu"
    UNRECORDED = "device activity was not recorded"


# The categories that kineto has written over the years; the second spelling of each is that of 2021.
DEVICE_KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
DEVICE_COPY_CATEGORIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
RUNTIME_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "Runtime"})
OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator"})
ANNOTATION_CATEGORIES = frozenset({"user_annotation", "cpu_op", "Operator"})

# Device events that are no work of their own: waits of one stream for another, or of the host for the device.
DEVICE_NOTHING = re.compile(r"(Stream|Event) (Wait|Sync)|(Stream|Event|Context|Device)\s?Synchronize", re.I)

PEER_COPY = re.compile(r"Memcpy P(to|2)P", re.I)

COMMUNICATION_KERNELS = re.compile(
    r"""
      [nr]ccl                    # ncclDevKernel_*, ncclKernel_*, ncclSymk*, rcclGenericKernel
    | msccl                      # RCCL's mscclKernel_*
    | cross_device_reduce        # vLLM, SGLang and TensorRT-LLM custom all-reduce
    | quick_?reduce              # vLLM quick reduce (ROCm)
    | (one|two)_?shot_?all_?reduce
    | all_?reduce_?fusion
    | lamport                    # TensorRT-LLM and FlashInfer all-reduce that signals by Lamport's flags
    | multimem_                  # torch symmetric memory
    | nvshmem
    | deep_ep | ::ep::           # DeepEP
    | userbuffers                # Transformer Engine
    """,
    re.I | re.X,
)
"""One alternative per family of communication kernels; the test file names a real kernel for each."""

COLLECTIVE_OPERATORS = ("c10d::", "_c10d_functional::", "c10d_functional::")
"""Operators that launch or await communication."""

OPERATOR_NOT_COMPUTE = (*COLLECTIVE_OPERATORS, "engine::", "autograd::", "torch::autograd::", "profiler::")
"""Beside `aten::*`, operators of other namespaces count as compute where they are leaves, but these are no work."""

WAIT_LABELS = ("engine::wait", "engine::gather_wait", "engine::param_gather_wait")
"""Ranges in which the engine's main thread is blocked by communication."""

_REQUIRED = {
    "backward": {"sync"},
    "bucket_launch": {"bucket"},
    "bucket_ready": {"bucket", "bytes", "parameters"},
    "collective": {"kind", "bytes"},
    "comm": {"seq"},
    "first_use": {"unit", "phase", "microbatch"},
    "free": {"unit", "phase", "microbatch", "bytes"},
    "gather_launch": {"unit", "phase", "microbatch", "bytes"},
    "gather_wait": {"unit", "phase", "microbatch"},
    "gradient_ready": {"parameter"},
    "last_use": {"unit", "phase", "microbatch"},
    "launch": {"seq"},
    "param_gather_launch": {"bucket", "bytes"},
    "param_gather_wait": {"bucket"},
    "scatter_done": {"unit", "microbatch"},
    "scatter_launch": {"unit", "microbatch", "bytes"},
}
_INTEGERS = {"bucket", "bytes", "microbatch", "seq"}
_LISTS = {"parameters"}
_LABEL = re.compile(r"engine::(\w+)((?: \S+)*)")


def label_fields(name: str) -> tuple[str, dict[str, str]] | None:
    """Split `engine::WORD key=value …` into the word and its values (names still percent-encoded).

    None for what is no label, or lacks what analyses read of it.
    """
    match = _LABEL.fullmatch(name)
    if match is None:
        return None
    pairs = (field.partition("=") for field in match[2].split())
    fields = {key: value for key, _, value in pairs}
    complete = all(fields.get(key) or (key in fields and key in _LISTS) for key in _REQUIRED.get(match[1], ()))
    numeric = all(fields[key].isdecimal() for key in _INTEGERS & fields.keys())
    return (match[1], fields) if complete and numeric else None


def label_list(value: str) -> tuple[str, ...]:
    """The decoded members of a label's comma-separated list."""
    return tuple(unquote(part) for part in value.split(",") if part)
