"""What events count as: one table of rules for devices and one for hosts (docs/design.md, "The arithmetic").

In both tables the first matching rule decides. Annotations, on the host or copied to a device (`gpu_user_annotation`),
and categories without a rule (`cuda_sync`, runtime calls) count as nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from overlaplab.vocabulary import DEVICE_COPY_CATEGORIES, DEVICE_KERNEL_CATEGORIES

__all__ = ["DEVICE_RULES", "HOST_RULES", "DeviceRule", "HostRule", "Part", "Work", "device_work", "host_rule"]


class Work(StrEnum):
    """What a rank does at a time: what an event counts as."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """One row of `DEVICE_RULES`."""

    counts_as: Work
    categories: frozenset[str]
    """The kineto categories that it applies to."""
    names: re.Pattern[str]
    """Searched for anywhere in the name."""
    reason: str


def _device(counts_as: Work, categories: frozenset[str], names: str, reason: str) -> DeviceRule:
    return DeviceRule(counts_as, categories, re.compile(names, re.I), reason)


_KERNEL, _COPY = DEVICE_KERNEL_CATEGORIES, DEVICE_COPY_CATEGORIES
_WAIT = r"^(Stream|Event|Context|Device) ?(Wait|Sync)"

DEVICE_RULES: tuple[DeviceRule, ...] = (
    _device(Work.NOTHING, _KERNEL | _COPY, _WAIT, "a stream waits for another, or the host for the device: no work"),
    _device(
        Work.COMMUNICATION, _KERNEL, r"(?<![a-z])[nr]ccl", "NCCL, RCCL: ncclDevKernel_, ncclSymk, rcclGenericKernel"
    ),
    _device(Work.COMMUNICATION, _KERNEL, r"msccl", "RCCL's MSCCL, and MSCCL++"),
    _device(Work.COMMUNICATION, _KERNEL, r"cross_device_(reduce|all_?gather|store)", "vLLM, SGLang, aiter"),
    _device(Work.COMMUNICATION, _KERNEL, r"quick_?reduce", "vLLM's quick reduce (ROCm)"),
    _device(Work.COMMUNICATION, _KERNEL, r"(one|two)_?shot_?all_?reduce", "TensorRT-LLM, torch's symmetric memory"),
    _device(Work.COMMUNICATION, _KERNEL, r"all_?reduce_?fusion", "TensorRT-LLM, FlashInfer: with the norm after it"),
    _device(Work.COMMUNICATION, _KERNEL, r"lamport", "TensorRT-LLM, FlashInfer: all-reduce with Lamport's flags"),
    _device(Work.COMMUNICATION, _KERNEL, r"moe_?(a2a|all_?to_?all)", "TensorRT-LLM, FlashInfer: between experts"),
    _device(Work.COMMUNICATION, _KERNEL, r"multimem_", "torch's symmetric memory over NVLink SHARP"),
    _device(Work.COMMUNICATION, _KERNEL, r"nvshmem", "NVSHMEM"),
    _device(Work.COMMUNICATION, _KERNEL, r"deep_ep|::ep::", "DeepEP, UCCL: dispatch to experts, and combine"),
    _device(Work.COMMUNICATION, _KERNEL, r"userbuffers", "Transformer Engine"),
    _device(
        Work.COMMUNICATION, _KERNEL, r"^emulated_link_", "the engine's link on a GPU: its begin, and its wait for T"
    ),
    _device(Work.COMPUTE, _KERNEL, r"", "every other kernel, whatever its stream"),
    _device(Work.COMMUNICATION, _COPY, r"Memcpy P(to|2)P", "a copy to another GPU, as by NCCL's copy engines"),
    _device(Work.MEMORY, _COPY, r"", "copies within a GPU, from and to the host; memset"),
)
"""For devices. Whatever was launched inside an `engine::comm` range (by correlation) is communication as well, copies
included, unless it waits. A bare `all_reduce` matches no rule on purpose: Inductor names compute kernels after the
operators around them, such as `triton_poi_fused_add_all_reduce_4`."""


def device_work(category: str, name: str) -> Work:
    """What a device event of this category and name counts as."""
    matches = (rule.counts_as for rule in DEVICE_RULES if category in rule.categories and rule.names.search(name))
    return next(matches, Work.NOTHING)


class Part(StrEnum):
    """Which part of a host range counts."""

    WHOLE = "whole"
    LEAF = "where it holds no other operator of its thread"
    CUT = "nothing, and its time is cut out of the operators around it"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class HostRule:
    """One row of `HOST_RULES`."""

    counts_as: Work
    prefixes: tuple[str, ...]
    """What the name may begin with."""
    part: Part
    reason: str
    owns_thread: bool = False
    """Whether this marks its thread as a communication thread, whose operators are not compute."""


_CALLERS = ("gloo:send", "gloo:recv")
_COLLECTIVES = ("c10d::", "_c10d_functional::", "c10d_functional::")
_WAITS = ("engine::wait", "engine::gather_wait", "engine::param_gather_wait")
_WRAPPERS = ("engine::", "autograd::", "torch::autograd::", "profiler::", "FSDP::")

HOST_RULES: tuple[HostRule, ...] = (
    HostRule(Work.COMMUNICATION, _CALLERS, Part.WHOLE, "gloo notes these on the thread that calls, which computes"),
    HostRule(Work.COMMUNICATION, ("gloo:",), Part.WHOLE, "gloo's own thread at work", owns_thread=True),
    HostRule(Work.COMMUNICATION, ("engine::comm",), Part.WHOLE, "the emulated link's thread at work", owns_thread=True),
    HostRule(Work.COMPUTE, ("aten::",), Part.WHOLE, "torch's operators, the optimizer's included"),
    HostRule(Work.NOTHING, _COLLECTIVES, Part.CUT, "launches or awaits communication"),
    HostRule(Work.NOTHING, _WAITS, Part.CUT, "the main thread is blocked by communication"),
    HostRule(Work.NOTHING, _WRAPPERS, Part.NONE, "hooks run inside: it would hide what nothing hides"),
    HostRule(Work.COMPUTE, ("",), Part.LEAF, "operators of other namespaces, custom and compiled"),
)
"""For hosts, where no device was recorded. Only events of category `cpu_op` can be compute. A name without `::` is not
an operator's (`AddmmBackward0`, `Optimizer.step#AdamW.step`, names given to record_function)."""


def host_rule(name: str) -> HostRule | None:
    """The rule for a host range of this name; None if it is not the name of an operator."""
    rule = next(rule for rule in HOST_RULES if name.startswith(rule.prefixes))
    return rule if "::" in name or rule.prefixes != ("",) else None
