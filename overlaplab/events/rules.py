"""What events count as: one table of rules for devices and one for hosts (docs/design.md, "The arithmetic").

In both tables the first matching rule decides. Annotations, on the host or copied to a device (`gpu_user_annotation`),
and categories without a rule (`cuda_sync`, runtime calls) count as nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from overlaplab.vocabulary import DEVICE_COPY_CATEGORIES, DEVICE_KERNEL_CATEGORIES


class WorkKind(StrEnum):
    """What a rank does at a time: what an event counts as."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """One row of `DEVICE_RULES`."""

    counts_as: WorkKind
    categories: frozenset[str]
    """The kineto categories that it applies to."""
    names: re.Pattern[str]
    """Searched for anywhere in the name."""
    reason: str


def _device(counts_as: WorkKind, categories: frozenset[str], names: str, reason: str) -> DeviceRule:
    return DeviceRule(counts_as, categories, re.compile(names, re.I), reason)


_KERNEL, _COPY = DEVICE_KERNEL_CATEGORIES, DEVICE_COPY_CATEGORIES
_WAIT = r"^(Stream|Event|Context|Device) ?(Wait|Sync)"

DEVICE_RULES: tuple[DeviceRule, ...] = (
    _device(
        WorkKind.NOTHING, _KERNEL | _COPY, _WAIT, "a stream waits for another, or the host for the device: no work"
    ),
    _device(
        WorkKind.COMPUTE, _KERNEL, r"^triton_\w*fused", "Inductor, which names kernels after the operators around them"
    ),
    _device(
        WorkKind.COMPUTE, _KERNEL, r"get_dispatch_layout", "DeepEP, UCCL: counts a rank's own tokens before a dispatch"
    ),
    _device(
        WorkKind.COMMUNICATION, _KERNEL, r"(?<![a-z])[nr]ccl", "NCCL, RCCL: ncclDevKernel_, ncclSymk, rcclGenericKernel"
    ),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"msccl", "RCCL's MSCCL, and MSCCL++"),
    _device(
        WorkKind.COMMUNICATION,
        _KERNEL,
        r"(?<![a-z])(oneccl|hccl|hcom_|cncl)",
        "Intel's oneCCL, Ascend's and Habana's HCCL, CNCL",
    ),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"cross_device_(reduce|all_?gather|store)", "vLLM, SGLang, aiter"),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"quick_?reduce", "vLLM's quick reduce (ROCm)"),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"(one|two)_?shot_?all_?reduce", "TensorRT-LLM, torch's symmetric memory"),
    _device(
        WorkKind.COMMUNICATION, _KERNEL, r"all_?reduce_?fusion", "TensorRT-LLM, FlashInfer: with the norm after it"
    ),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"lamport", "TensorRT-LLM, FlashInfer: all-reduce with Lamport's flags"),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"moe_?a2a", "TensorRT-LLM, FlashInfer: between experts"),
    _device(
        WorkKind.COMMUNICATION, _KERNEL, r"all_?to_?all", "between experts, in Triton and over symmetric memory, too"
    ),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"multimem_", "torch's symmetric memory over NVLink SHARP"),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"nvshmem", "NVSHMEM"),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"deep_ep|::ep::", "DeepEP, UCCL: dispatch to experts, and combine"),
    _device(WorkKind.COMMUNICATION, _KERNEL, r"userbuffers", "Transformer Engine"),
    _device(
        WorkKind.COMMUNICATION, _KERNEL, r"^emulated_link_", "the engine's link on a GPU: its begin, and its wait for T"
    ),
    _device(WorkKind.COMPUTE, _KERNEL, r"", "every other kernel, whatever its stream"),
    _device(WorkKind.COMMUNICATION, _COPY, r"Memcpy P(to|2)P", "a copy to another GPU, as by NCCL's copy engines"),
    _device(WorkKind.MEMORY, _COPY, r"", "copies within a GPU, from and to the host; memset"),
)
"""For devices. Whatever was launched inside an `engine::comm` range (by correlation) is communication as well, copies
included, unless it waits; so is what matches the user's own rule."""

_WORD = re.compile(r"\w+")
_READS_LIKE = re.compile(
    r"(?<!block)(?<!warp)(?<!block_)(?<!warp_)all_?reduce|all_?gather|reduce_?scatter|symm_?mem"
    r"|(?<![a-z0-9])(a2a|p2p|rdma)|(?<![a-z])(send|recv)(?![a-z])",
    re.I,
)
"""Within a block or a warp, every library's kernels reduce: that is no communication."""
_LONGEST_WORD = 40


def device_rule(category: str, name: str) -> DeviceRule | None:
    """The rule for a device event of this category and name; None if it has none, and counts as nothing."""
    return next((rule for rule in DEVICE_RULES if category in rule.categories and rule.names.search(name)), None)


def device_work(category: str, name: str, communication: str | None = None) -> WorkKind:
    """What a device event of this category and name counts as; `communication` is the user's own rule."""
    rule = device_rule(category, name)
    if rule is None or rule.counts_as is WorkKind.NOTHING:
        return WorkKind.NOTHING
    matches_users_rule = communication is not None and re.search(communication, name, re.I)
    return WorkKind.COMMUNICATION if matches_users_rule else rule.counts_as


def reads_like_communication(name: str) -> str | None:
    """The word in a kernel's name that reads like communication; None if there is none, or a rule knows the kernel."""
    if not _READS_LIKE.search(name):  # few do, and the rules take longer
        return None
    rule = device_rule("kernel", name)
    if rule is None or rule.names.pattern:
        return None
    return next((word[:_LONGEST_WORD] for word in _WORD.findall(name) if _READS_LIKE.search(word)), None)


class Part(StrEnum):
    """The part of a host range that counts."""

    WHOLE = "whole"
    LEAF = "where it holds no other operator of its thread"
    CUT = "nothing, and its time is cut out of the operators around it"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class HostRule:
    """One row of `HOST_RULES`."""

    counts_as: WorkKind
    prefixes: tuple[str, ...]
    """What the name may begin with."""
    part: Part
    reason: str
    owns_thread: bool = False
    """Whether this marks its thread as a communication thread, whose operators are not compute."""
    annotates: bool = False
    """Whether this may be an annotation; of other ranges only operators can be compute."""


_CALLERS = ("gloo:send", "gloo:recv")
_COLLECTIVES = ("c10d::", "_c10d_functional::", "c10d_functional::")
_WAITS = ("engine::wait", "engine::gather_wait", "engine::param_gather_wait")
_WRAPPERS = ("engine::", "autograd::", "torch::autograd::", "profiler::", "FSDP::")

HOST_RULES: tuple[HostRule, ...] = (
    HostRule(WorkKind.COMMUNICATION, _CALLERS, Part.WHOLE, "gloo notes these on the thread that calls, which computes"),
    HostRule(WorkKind.COMMUNICATION, ("gloo:",), Part.WHOLE, "gloo's own thread at work", owns_thread=True),
    HostRule(
        WorkKind.COMMUNICATION, ("engine::comm",), Part.WHOLE, "the emulated link's thread at work", owns_thread=True
    ),
    HostRule(WorkKind.MEMORY, ("engine::copy",), Part.WHOLE, "the emulated link to the host at work", owns_thread=True),
    HostRule(WorkKind.COMPUTE, ("aten::",), Part.WHOLE, "torch's operators, the optimizer's included"),
    HostRule(
        WorkKind.COMPUTE,
        ("## Call CompiledFxGraph ",),
        Part.WHOLE,
        "a call of Inductor's code, whose loops leave no other events: torch/_inductor/output_code.py",
        annotates=True,
    ),
    HostRule(WorkKind.NOTHING, _COLLECTIVES, Part.CUT, "launches or awaits communication"),
    HostRule(WorkKind.NOTHING, _WAITS, Part.CUT, "the main thread is blocked by communication"),
    HostRule(
        WorkKind.NOTHING,
        ("engine::hop",),
        Part.NONE,
        "a collective by hand: messages, and what adds them up",
        owns_thread=True,
    ),
    HostRule(WorkKind.NOTHING, _WRAPPERS, Part.NONE, "hooks run inside: it would hide what nothing hides"),
    HostRule(WorkKind.COMPUTE, ("",), Part.LEAF, "operators of other namespaces, custom and compiled"),
)
"""For hosts, where no device was recorded. Only events of category `cpu_op`, and calls of compiled graphs, can be
compute. A name without `::` is not an operator's (`AddmmBackward0`, `Optimizer.step#AdamW.step`, names given to
record_function)."""


def host_rule(name: str) -> HostRule | None:
    """The rule for a host range of this name; None if it is not the name of an operator."""
    rule = next(rule for rule in HOST_RULES if name.startswith(rule.prefixes))
    return rule if "::" in name or rule.prefixes != ("",) else None
