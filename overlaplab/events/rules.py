"""What counts as what: the rules for devices and for hosts, one table each (docs/design.md, "The arithmetic").

In both tables the first rule that fits an event decides. Annotations, on the host or mirrored on a device
(`gpu_user_annotation`), and categories that no rule names (`cuda_sync`, runtime calls) count as nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from overlaplab.vocabulary import DEVICE_COPY_CATEGORIES, DEVICE_KERNEL_CATEGORIES

__all__ = ["DEVICE_RULES", "HOST_RULES", "DeviceRule", "HostRule", "Kind", "Part", "device_kind", "host_rule"]


class Kind(StrEnum):
    """What an event counts as."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """One row of `DEVICE_RULES`."""

    kind: Kind
    categories: frozenset[str]
    """kineto's categories that it is about."""
    names: re.Pattern[str]
    """What is found somewhere in the name."""
    reason: str


def _device(kind: Kind, categories: frozenset[str], names: str, reason: str) -> DeviceRule:
    return DeviceRule(kind, categories, re.compile(names, re.I), reason)


_KERNEL, _COPY = DEVICE_KERNEL_CATEGORIES, DEVICE_COPY_CATEGORIES
_WAIT = r"^(Stream|Event|Context|Device) ?(Wait|Sync)"

DEVICE_RULES: tuple[DeviceRule, ...] = (
    _device(Kind.NOTHING, _KERNEL | _COPY, _WAIT, "a stream waits for another, or the host for the device: no work"),
    _device(
        Kind.COMMUNICATION, _KERNEL, r"(?<![a-z])[nr]ccl", "NCCL, RCCL: ncclDevKernel_, ncclSymk, rcclGenericKernel"
    ),
    _device(Kind.COMMUNICATION, _KERNEL, r"msccl", "RCCL's MSCCL, and MSCCL++"),
    _device(Kind.COMMUNICATION, _KERNEL, r"cross_device_(reduce|all_?gather|store)", "vLLM, SGLang, aiter"),
    _device(Kind.COMMUNICATION, _KERNEL, r"quick_?reduce", "vLLM's quick reduce (ROCm)"),
    _device(Kind.COMMUNICATION, _KERNEL, r"(one|two)_?shot_?all_?reduce", "TensorRT-LLM, torch's symmetric memory"),
    _device(Kind.COMMUNICATION, _KERNEL, r"all_?reduce_?fusion", "TensorRT-LLM, FlashInfer: with the norm after it"),
    _device(Kind.COMMUNICATION, _KERNEL, r"lamport", "TensorRT-LLM, FlashInfer: all-reduce with Lamport's flags"),
    _device(Kind.COMMUNICATION, _KERNEL, r"moe_?(a2a|all_?to_?all)", "TensorRT-LLM, FlashInfer: between experts"),
    _device(Kind.COMMUNICATION, _KERNEL, r"multimem_", "torch's symmetric memory over NVLink SHARP"),
    _device(Kind.COMMUNICATION, _KERNEL, r"nvshmem", "NVSHMEM"),
    _device(Kind.COMMUNICATION, _KERNEL, r"deep_ep|::ep::", "DeepEP, UCCL: dispatch to experts, and combine"),
    _device(Kind.COMMUNICATION, _KERNEL, r"userbuffers", "Transformer Engine"),
    _device(
        Kind.COMMUNICATION, _KERNEL, r"^emulated_link_", "the engine's link on a GPU: its begin, and its wait for T"
    ),
    _device(Kind.COMPUTE, _KERNEL, r"", "every other kernel, whatever its stream"),
    _device(Kind.COMMUNICATION, _COPY, r"Memcpy P(to|2)P", "a copy to another GPU, as by NCCL's copy engines"),
    _device(Kind.MEMORY, _COPY, r"", "copies within a GPU, from and to the host; memset"),
)
"""On devices. What was launched inside an `engine::comm` range (by correlation) is communication, too, copies included,
unless it waits. No rule is about a bare `all_reduce`: Inductor names kernels that compute after the operators around
them, such as `triton_poi_fused_add_all_reduce_4`."""


def device_kind(category: str, name: str) -> Kind:
    """What a device's event of this category and name counts as."""
    fits = (rule.kind for rule in DEVICE_RULES if category in rule.categories and rule.names.search(name))
    return next(fits, Kind.NOTHING)


class Part(StrEnum):
    """What of a host's range counts as the rule's kind, or is cut out of it."""

    WHOLE = "whole"
    LEAF = "where it holds no other operator of its thread"
    CUT = "nothing, and its time is cut out of the operators around it"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class HostRule:
    """One row of `HOST_RULES`."""

    kind: Kind
    prefixes: tuple[str, ...]
    """What the name begins with."""
    part: Part
    reason: str
    owns_thread: bool = False
    """Whether its thread is a communication thread: operators on that do not compute."""


_CALLERS = ("gloo:send", "gloo:recv")
_COLLECTIVES = ("c10d::", "_c10d_functional::", "c10d_functional::")
_WAITS = ("engine::wait", "engine::gather_wait", "engine::param_gather_wait")
_WRAPPERS = ("engine::", "autograd::", "torch::autograd::", "profiler::", "FSDP::")

HOST_RULES: tuple[HostRule, ...] = (
    HostRule(Kind.COMMUNICATION, _CALLERS, Part.WHOLE, "gloo notes these on the thread that calls, which computes"),
    HostRule(Kind.COMMUNICATION, ("gloo:",), Part.WHOLE, "gloo's own thread at work", owns_thread=True),
    HostRule(Kind.COMMUNICATION, ("engine::comm",), Part.WHOLE, "the emulated link's thread at work", owns_thread=True),
    HostRule(Kind.COMPUTE, ("aten::",), Part.WHOLE, "torch's operators, the optimizer's included"),
    HostRule(Kind.NOTHING, _COLLECTIVES, Part.CUT, "launches or awaits communication"),
    HostRule(Kind.NOTHING, _WAITS, Part.CUT, "the main thread is blocked by communication"),
    HostRule(Kind.NOTHING, _WRAPPERS, Part.NONE, "hooks run inside: it would hide what nothing hides"),
    HostRule(Kind.COMPUTE, ("",), Part.LEAF, "operators of other namespaces, custom and compiled"),
)
"""On hosts, where no device was recorded. Compute is told by `cpu_op` alone; a name without `::` is that of no operator
(`AddmmBackward0`, `Optimizer.step#AdamW.step`, what record_function names)."""


def host_rule(name: str) -> HostRule | None:
    """The rule for a host's range of this name; None for what is named as no operator."""
    rule = next(rule for rule in HOST_RULES if name.startswith(rule.prefixes))
    return rule if "::" in name or rule.prefixes != ("",) else None
