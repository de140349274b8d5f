"""The vocabulary of traces: the meaning of events' categories and names, and the engine's labels.

The label grammar is documented in `traces/README.md`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import quote, unquote


class Rule(StrEnum):
    """The events that decide what a rank did at a moment (docs/design.md, "Which rule applies")."""

    GPU = "gpu"
    CPU = "cpu"
    UNRECORDED = "device activity was not recorded"


# Categories that kineto has written over the years; the capitalised spellings are from 2021.
DEVICE_KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
DEVICE_COPY_CATEGORIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
SYNC_CATEGORY = "cuda_sync"
"""A stream was told to wait for an event, or the host waited for the device: `enable_cuda_sync_events`."""
OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator"})
DATA_LOADING = "enumerate(DataLoader)"
"""What torch calls the range in which a loop waits for its next batch."""
ANNOTATION_CATEGORIES = frozenset({"user_annotation", "cpu_op", "Operator"})
_HOST_CATEGORIES = ANNOTATION_CATEGORIES | {"python_function", "overhead", "Trace"}
_RUNTIME = re.compile(r"\w+_(?:runtime|driver)|Runtime|hpu_op")
"""Kineto's `ActivityType.h`: `cuda_runtime`, `xpu_driver`, `privateuse1_runtime`, …; a device gets such a pair each."""

CPU_BACKENDS = frozenset({"gloo", "mpi", "ucc", "emulated", "predicted", "undefined", "fake", ""})
"""Backends of torch.distributed that serve CPUs, or do not say what they serve; all others need a device."""

_DEVICE_PROCESS = re.compile(r"ascend|\b(?:cann|npu|hpu|mlu|xpu|mtia|tpu)\b", re.I)
_DEVICE_FLOW = re.compile(r"async_(?!cpu_to_gpu$|gpu$)\w+")


def is_device_category(category: str) -> bool:
    """Whether these events are a device's kernels and copies."""
    return category in DEVICE_KERNEL_CATEGORIES or category in DEVICE_COPY_CATEGORIES


def is_runtime_category(category: str) -> bool:
    """Whether these are the host's calls to a device's runtime or driver."""
    return _RUNTIME.fullmatch(category) is not None


def is_host_category(category: str) -> bool:
    """Whether these events are the host's."""
    return category in _HOST_CATEGORIES or is_runtime_category(category)


def names_a_device(process: str = "", flow: str = "") -> bool:
    """Whether the name of a process, or the category of an arrow, is that of a device whose events no rule knows.

    torch_npu's `trace_view.json` has the processes `Ascend Hardware` and `CANN`, and arrows called `async_npu`.
    """
    return bool(_DEVICE_PROCESS.search(process) or _DEVICE_FLOW.fullmatch(flow))


_UNCATEGORISED = re.compile(r"aten::|c10d::|gloo:")


def category_of_uncategorised(name: str, process: object) -> str | None:
    """The category of an event that has none, as in exports of the autograd profiler; None for others.

    torch/autograd/profiler_util.py, `export_chrome_trace`: a device's events are those of the process `CUDA functions`.
    """
    if process == "CUDA functions":
        return "kernel"
    return "cpu_op" if _UNCATEGORISED.match(name) else None


PREDICTED = "predicted::"
"""What operators of predicted runs are called, before what they compute."""

STAGE_WORDS = ("stage_forward", "stage_backward", "stage_backward_input", "stage_backward_weight")
"""Labels of a pipeline's actions: what a stage does with a microbatch."""

LAUNCH_WORDS = {
    "bucket": "bucket_launch",
    "parameters": "param_gather_launch",
    "gather": "gather_launch",
    "scatter": "scatter_launch",
    "replicas": "replica_launch",
    "activations": "activation_launch",
}
"""Labels around a collective's launch, by its role."""
WAIT_WORDS = {"parameters": "param_gather_wait", "gather": "gather_wait"}
"""Labels around a wait for a collective."""
DONE_WORDS = {"bucket": "bucket_done", "scatter": "scatter_done"}
"""Labels of the moment in which a collective is over."""

_REQUIRED = {
    "activation_launch": {"module", "phase", "microbatch"},
    "backward": {"sync"},
    "bucket_launch": {"bucket"},
    "bucket_ready": {"bucket", "bytes", "parameters"},
    "collective": {"kind", "bytes"},
    "comm": {"seq"},
    "copy": {"way", "bytes"},
    "first_use": {"unit", "phase", "microbatch"},
    "free": {"unit", "phase", "microbatch", "bytes"},
    "gather_launch": {"unit", "phase", "microbatch", "bytes"},
    "gather_wait": {"unit", "phase", "microbatch"},
    "gradient_ready": {"parameter"},
    "last_use": {"unit", "phase", "microbatch"},
    "hop": {"bucket", "kind", "hop", "bytes"},
    "launch": {"seq"},
    "param_gather_launch": {"bucket", "bytes"},
    "param_gather_wait": {"bucket"},
    "processor": {"ran_ns", "delayed_ns"},
    "recompute": {"module"},
    "replica_launch": {"unit", "microbatch", "bytes"},
    "scatter_done": {"unit", "microbatch"},
    "scatter_launch": {"unit", "microbatch", "bytes"},
    "serve": {"worker", "staleness"},
    **{word: {"stage", "microbatch"} for word in STAGE_WORDS},
    "update": {"unit"},
}
_DIGITS = 18
_INTEGERS = {
    *("bucket", "bytes", "delayed_ns", "hop", "microbatch", "ran_ns", "receives", "sends", "seq", "source"),
    *("stage", "staleness", "to", "worker"),
}
_LISTS = {"parameters"}
_TOGETHER = (("sends", "to"), ("receives", "source"))
"""Fields of a hop that a label has both or neither of: a chunk, and the rank at the other end."""
_LABEL = re.compile(r"engine::(\w+)((?: \S+)*)")


def label_fields(name: str) -> tuple[str, dict[str, str]] | None:
    """Split `engine::WORD key=value …` into the word and its values (names still percent-encoded).

    None if it is not a label, or lacks a field that analyses read.
    """
    match = _LABEL.fullmatch(name)
    if match is None:
        return None
    pairs = (field.partition("=") for field in match[2].split())
    fields = {key: value for key, _, value in pairs}
    required = _REQUIRED.get(match[1], ())
    complete = all(fields.get(key, "").strip(",") or (key in fields and key in _LISTS) for key in required)
    complete &= all((number in fields) == (rank in fields) for number, rank in _TOGETHER)
    numeric = all(_is_integer(fields[key]) for key in _INTEGERS & fields.keys())
    phased = fields.get("phase") in (None, "forward", "backward")
    return (match[1], fields) if complete and numeric and phased else None


def label_text(word: str, /, **fields: str | int | Sequence[str]) -> str:
    """The inverse of `label_fields`, for runs that nobody recorded: texts as in the label, lists not yet encoded."""
    pairs = {
        key: ",".join(map(quote, value)) if isinstance(value, tuple | list) else value for key, value in fields.items()
    }
    return " ".join((f"engine::{word}", *(f"{key}={value}" for key, value in pairs.items())))


def _is_integer(text: str) -> bool:
    """Whether it is an integer that fits into 64 bits."""
    return text.isdecimal() and len(text) <= _DIGITS


def label_list(value: str) -> tuple[str, ...]:
    """The decoded members of a label's comma-separated list."""
    return tuple(unquote(part) for part in value.split(",") if part)


_KINDS = {
    "reduce_scatter": re.compile(r"reduce_?scatter", re.I),
    "all_reduce": re.compile(r"all_?reduce|cross_device_reduce|quick_?reduce", re.I),
    "all_gather": re.compile(r"all_?gather", re.I),
    "all_to_all": re.compile(r"all_?to_?all|moe_?a2a|(?:deep_ep|::ep)::\w+::\w*(?:dispatch|combine|notify)", re.I),
    "broadcast": re.compile(r"broadcast", re.I),
    "barrier": re.compile(r"barrier", re.I),
    "send_recv": re.compile(r"send|recv", re.I),
    "reduce": re.compile(r"reduce(?!_base)", re.I),  # oneCCL's `oneccl_reduce_base` serves several collectives
    "gather": re.compile(r"gather", re.I),
    "scatter": re.compile(r"scatter", re.I),
}


def collective_kind(name: str) -> str | None:
    """The collective of an operator (`c10d::_allgather_base_`) or kernel (`ncclDevKernel_AllGather_…`), by name."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), None)


# torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_state.py write `FSDP::WORD (unit)`. If a unit has
# several groups of parameters, the size of each group's mesh follows.
_FSDP2 = re.compile(r"FSDP::(?P<word>\w+)(?: \((?P<unit>.*?)\))?(?P<mesh> \[pg=\d+\])?")
_FSDP2_WORDS = frozenset(
    {
        "root_pre_forward",  # the beginning of a forward pass of a root
        "all_gather",  # the copy into the gathered buffer, and the call that launches the collective
        "all_gather_copy_out",  # the wait for it, then the copy into the parameters
        "pre_forward",  # gather unless prefetched, wait, copy
        "post_forward",  # free, if the unit is configured to
        "pre_backward",  # as pre_forward; by default also launches the next unit's gather
        "post_backward_accumulate",
        "post_backward_reshard",  # free, unless the unit is configured not to
        "post_backward_reduce",  # launch the reduce-scatter of the unit's gradients
        "root_post_backward_callback",  # the end of a backward pass, of each root that took part
    }
)
FSDP2_ROOT = "root"
"""Our name for the unit that FSDP2 leaves unnamed."""
_WRAPPERS = re.compile(r"(?:^|\.)(?:_checkpoint_wrapped_module|_orig_mod)(?=\.|$)")
_LAYER = re.compile(r"(?:.*\.)?(\d+)(?: \[pg=\d+\])?")


def fsdp2_range(name: str) -> tuple[str, dict[str, str]] | None:
    """Split FSDP2's `FSDP::WORD (unit)` into the word and `{"unit": …}`; None for ranges outside the schedule.

    The root, which has no suffix, is the unit `root`. Names of checkpointing and compilation wrappers are removed.
    """
    match = _FSDP2.fullmatch(name)
    if match is None or match["word"] not in _FSDP2_WORDS:
        return None
    unit = _WRAPPERS.sub("", match["unit"] or "").removeprefix(".") or FSDP2_ROOT
    return match["word"], {"unit": unit + (match["mesh"] or "")}


def unit_of_root(unit: str, root: int) -> str:
    """The name of a unit of one of several roots: `root 1`, `root 1.layers.3`, from the name in its root."""
    is_root = unit == FSDP2_ROOT or unit.startswith(f"{FSDP2_ROOT} [")
    return f"{FSDP2_ROOT} {root}" + (unit.removeprefix(FSDP2_ROOT) if is_root else f".{unit}")


def root_number(unit: str) -> int | None:
    """The number of the root in a name that `unit_of_root` made; None for other names."""
    match = re.match(rf"{FSDP2_ROOT} (\d+)(?=\.| |$)", unit)
    return int(match[1]) if match and _is_integer(match[1]) else None


def layer_number(unit: str) -> int | None:
    """A unit's layer number: N if the last part of its dotted name is the number N, else None."""
    match = _LAYER.fullmatch(unit)
    return int(match[1]) if match and _is_integer(match[1]) else None
