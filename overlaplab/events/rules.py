"""What events count as: one table of rules for devices and one for hosts (docs/design.md, "The arithmetic").

In both tables the first matching rule decides. Annotations, on the host or copied to a device (`gpu_user_annotation`),
and categories without a rule (`cuda_sync`, runtime calls) count as nothing.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from overlaplab.vocabulary import DEVICE_COPY_CATEGORIES, DEVICE_KERNEL_CATEGORIES


class WorkKind(StrEnum):
    """What a rank does at a time: what an event counts as."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    NOTHING = "nothing"


class DeviceRule(Struct, frozen=True):
    """One row of `DEVICE_RULES`."""

    counts_as: WorkKind
    categories: frozenset[str]
    """The kineto categories that it applies to."""
    names: re.Pattern[str]
    """Searched for anywhere in the name."""
    reason: str


_COMPUTE, _COMMUNICATION, _MEMORY, _NOTHING = WorkKind
_KERNEL, _COPY = DEVICE_KERNEL_CATEGORIES, DEVICE_COPY_CATEGORIES
_WAIT = r"^(Stream|Event|Context|Device) ?(Wait|Sync)"

DEVICE_RULES: tuple[DeviceRule, ...] = tuple(
    DeviceRule(counts_as, categories, re.compile(names, re.I), reason)
    for counts_as, categories, names, reason in (
        (_NOTHING, _KERNEL | _COPY, _WAIT, "a stream waits for another, or the host for the device: no work"),
        (_COMPUTE, _KERNEL, r"^triton_\w*fused", "Inductor, which names kernels after the operators around them"),
        (_COMPUTE, _KERNEL, r"get_dispatch_layout", "DeepEP, UCCL: counts a rank's own tokens before a dispatch"),
        (_COMMUNICATION, _KERNEL, r"(?<![a-z])[nr]ccl", "NCCL, RCCL: ncclDevKernel_, ncclSymk, rcclGenericKernel"),
        (_COMMUNICATION, _KERNEL, r"msccl", "RCCL's MSCCL, and MSCCL++"),
        (_COMMUNICATION, _KERNEL, r"(?<![a-z])(oneccl|hccl|hcom_|cncl)", "oneCCL, Ascend's and Habana's HCCL, CNCL"),
        (_COMMUNICATION, _KERNEL, r"cross_device_(reduce|all_?gather|store)", "vLLM, SGLang, aiter"),
        (_COMMUNICATION, _KERNEL, r"quick_?reduce", "vLLM's quick reduce (ROCm)"),
        (_COMMUNICATION, _KERNEL, r"(one|two)_?shot_?all_?reduce", "TensorRT-LLM, torch's symmetric memory"),
        (_COMMUNICATION, _KERNEL, r"all_?reduce_?fusion", "TensorRT-LLM, FlashInfer: with the norm after it"),
        (_COMMUNICATION, _KERNEL, r"lamport", "TensorRT-LLM, FlashInfer: all-reduce with Lamport's flags"),
        (_COMMUNICATION, _KERNEL, r"moe_?a2a", "TensorRT-LLM, FlashInfer: between experts"),
        (_COMMUNICATION, _KERNEL, r"all_?to_?all", "between experts, in Triton and over symmetric memory, too"),
        (_COMMUNICATION, _KERNEL, r"multimem_", "torch's symmetric memory over NVLink SHARP"),
        (_COMMUNICATION, _KERNEL, r"nvshmem", "NVSHMEM"),
        (_COMMUNICATION, _KERNEL, r"deep_ep|::ep::", "DeepEP, UCCL: dispatch to experts, and combine"),
        (_COMMUNICATION, _KERNEL, r"userbuffers", "Transformer Engine"),
        (_COMMUNICATION, _KERNEL, r"^emulated_link_", "the engine's link on a GPU: its begin, and its wait for T"),
        (_COMPUTE, _KERNEL, r"", "every other kernel, whatever its stream"),
        (_COMMUNICATION, _COPY, r"Memcpy P(to|2)P", "a copy to another GPU, as by NCCL's copy engines"),
        (_MEMORY, _COPY, r"", "copies within a GPU, from and to the host; memset"),
    )
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


class HostRule(Struct, frozen=True):
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
    HostRule(_COMMUNICATION, _CALLERS, Part.WHOLE, "gloo notes these on the thread that calls, which computes"),
    HostRule(_COMMUNICATION, ("gloo:",), Part.WHOLE, "gloo's own thread at work", owns_thread=True),
    HostRule(_COMMUNICATION, ("engine::comm",), Part.WHOLE, "the emulated link's thread at work", owns_thread=True),
    HostRule(_MEMORY, ("engine::copy",), Part.WHOLE, "the emulated link to the host at work", owns_thread=True),
    HostRule(_COMPUTE, ("aten::",), Part.WHOLE, "torch's operators, the optimizer's included"),
    # a call of Inductor's code, whose loops leave no other events: torch/_inductor/output_code.py
    HostRule(_COMPUTE, ("## Call CompiledFxGraph ",), Part.WHOLE, "Inductor's code", annotates=True),
    HostRule(_NOTHING, _COLLECTIVES, Part.CUT, "launches or awaits communication"),
    HostRule(_NOTHING, _WAITS, Part.CUT, "the main thread is blocked by communication"),
    HostRule(_NOTHING, ("engine::hop",), Part.NONE, "messages of a collective by hand, and sums", owns_thread=True),
    HostRule(_NOTHING, _WRAPPERS, Part.NONE, "hooks run inside: it would hide what nothing hides"),
    HostRule(_COMPUTE, ("",), Part.LEAF, "operators of other namespaces, custom and compiled"),
)
"""For hosts, where no device was recorded. Only events of category `cpu_op`, and calls of compiled graphs, can be
compute. A name without `::` is not an operator's (`AddmmBackward0`, `Optimizer.step#AdamW.step`, names given to
record_function)."""


def host_rule(name: str) -> HostRule | None:
    """The rule for a host range of this name; None if it is not the name of an operator."""
    rule = next(rule for rule in HOST_RULES if name.startswith(rule.prefixes))
    return rule if "::" in name or rule.prefixes != ("",) else None
