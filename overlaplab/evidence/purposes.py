"""What each collective is for: which bucket's gradients or unit's parameters it moves, and when these were ready.

This comes from the engine's labels, or without them from the ranges of torch's DistributedDataParallel and FSDP2. Where
neither exists, the purpose is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import unquote

import numpy as np
import pandas as pd

from overlaplab.axes import TENSOR, axis_of
from overlaplab.events import Trace, once_per_trace, rule_of, step_windows
from overlaplab.evidence.arguments import around
from overlaplab.evidence.ddp import DDPBackward, autograd_passes, ddp_backwards
from overlaplab.evidence.executions import Executions, executions
from overlaplab.evidence.fsdp2 import Passes, fsdp2_gathers, fsdp2_ranges_of, fsdp2_scatters
from overlaplab.evidence.gathers import Gather, engine_gathers
from overlaplab.evidence.labels import Label, Span, labels_of
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded
from overlaplab.evidence.selection import launched_in
from overlaplab.vocabulary import Rule, label_list


class Role(StrEnum):
    """What a collective moves."""

    BUCKET = "bucket"
    SCATTER = "scatter"
    GATHER = "gather"
    PARAMETERS = "parameters"
    """Updated ones, after a sharded optimizer's step."""
    ACTIVATIONS = "activations"
    """Of a layer that several ranks compute together; the layer's next operation needs the result."""
    OTHER = ""


GRADIENTS = (Role.BUCKET, Role.SCATTER)
ACTIVATIONS_OF = "activations of "
"""How `what` of collectives of activations begins; the module follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Purpose:
    """Why one host range launched its collective; times in absolute ns, None where unknown."""

    launch: Span
    role: Role
    what: str
    ready_ns: int | None = None
    """When it could have been launched; on a GPU in device time."""
    backward_end_ns: int | None = None
    """When the backward pass had been computed; on a GPU in device time."""
    after_backward: bool = False
    """Launched after the host was done with the pass."""


@once_per_trace
def purposes(trace: Trace) -> pd.DataFrame:
    """One row per row of `recorded`.

    Columns: `role` (a `Role`'s value), `what` (`bucket 3`, `layers.4`; None where unknown), `ready_ns` and
    `backward_end_ns` (int64, absolute, `UNKNOWN_NS` where unknown), `after_backward` (bool).
    """
    table = recorded(trace)
    known = list(_purposes(trace)) if rule_of(trace) is not Rule.UNRECORDED and len(table) else []
    place = _launched_inside(trace, table, [purpose.launch for purpose in known])
    own = [known[at] if at >= 0 else None for at in place]
    roles = [purpose.role.value if purpose else "" for purpose in own]
    names = [purpose.what if purpose else None for purpose in own]
    if not any(purpose.role is Role.ACTIVATIONS for purpose in known):  # else what has no label is something else
        for row, description in enumerate(table["group_description"]):
            if own[row] is None and axis_of(description) == TENSOR:
                roles[row], names[row] = Role.ACTIVATIONS.value, f"{ACTIVATIONS_OF}a layer"
    return pd.DataFrame(
        {
            "role": pd.Series(roles, dtype=object),
            "what": pd.Series(names, dtype=object),
            "ready_ns": _times([purpose.ready_ns if purpose else None for purpose in own]),
            "backward_end_ns": _times([purpose.backward_end_ns if purpose else None for purpose in own]),
            "after_backward": np.array([purpose is not None and purpose.after_backward for purpose in own], dtype=bool),
        }
    )


def _times(values: Sequence[int | None]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([UNKNOWN_NS if value is None else value for value in values], dtype=np.int64)


def _launched_inside(trace: Trace, table: pd.DataFrame, spans: Sequence[Span]) -> list[int]:
    """For each collective the range that launched it, or -1. On a GPU the launching thread may be another."""
    any_thread = rule_of(trace) is Rule.GPU
    ranges = pd.DataFrame(
        {
            "start_ns": np.array([span.start_ns for span in spans], dtype=np.int64),
            "end_ns": np.array([span.end_ns for span in spans], dtype=np.int64),
            "thread": np.array([0 if any_thread else span.thread for span in spans], dtype=np.int64),
        }
    )
    thread = np.zeros(len(table), dtype=np.int64) if any_thread else table["thread"].to_numpy(np.int64)
    return around(ranges, thread, table["launch_ns"].to_numpy(np.int64)).tolist()  # type: ignore[no-any-return]


def _purposes(trace: Trace) -> Iterator[_Purpose]:
    labels = labels_of(trace)
    ran = executions(trace)
    if any(label.word.endswith("_launch") for label in labels):
        yield from _of_labels(trace, labels, ran)
    elif ranges := fsdp2_ranges_of(trace):
        yield from _with_readiness(trace, fsdp2_gathers(ranges, ran), ran)
        passes = Passes(ranges)
        for label in fsdp2_scatters(ranges, ran):
            end_ns = passes.ending_ns(label.start_ns)  # the callback itself sends the root's gradients and waits
            yield _Purpose(
                launch=label,
                role=Role.SCATTER,
                what=label.fields["unit"],
                backward_end_ns=None if end_ns is None else ran.reached(end_ns),
            )
    else:
        for backward in ddp_backwards(trace, ran):
            yield from _of_ddp(backward, ran)


def _of_labels(trace: Trace, labels: Sequence[Label], ran: Executions) -> Iterator[_Purpose]:
    backwards = [label for label in labels if label.word == "backward"] or autograd_passes(trace)
    begun = [label.start_ns for label in backwards]
    ends = [ran.backward(label)[1] for label in backwards]
    hosts = [label.end_ns for label in backwards] if rule_of(trace) is Rule.GPU else ends
    ready: dict[str, Label] = {}
    names = _bucket_names(labels)
    for label in labels:
        if label.word == "bucket_ready":
            ready[label.fields["bucket"]] = label
        elif label.word == "activation_launch":
            what = f"{ACTIVATIONS_OF}{unquote(label.fields['module'])}"
            yield _Purpose(launch=label, role=Role.ACTIVATIONS, what=what)
        elif label.word in ("bucket_launch", "scatter_launch", "replica_launch"):
            number = int(np.searchsorted(begun, label.start_ns, side="right")) - 1
            is_bucket = label.word == "bucket_launch"
            known = ready.get(label.fields["bucket"]) if is_bucket else None
            purpose = _Purpose(
                launch=label,
                role=Role.BUCKET if is_bucket else Role.SCATTER,
                what=names[label.fields["bucket"]] if is_bucket else unquote(label.fields["unit"]),
                ready_ns=ran.reached(known.start_ns) if known else None,
                backward_end_ns=ends[number] if number >= 0 else None,
                after_backward=number >= 0 and label.start_ns >= hosts[number],
            )
            hops = ran.hops(label)
            yield from (replace(purpose, launch=hop, ready_ns=None) for hop in hops[1:])
            yield replace(purpose, launch=hops[0]) if hops else purpose
        elif label.word == "param_gather_launch":
            yield _Purpose(launch=label, role=Role.PARAMETERS, what=f"parameters of bucket {label.fields['bucket']}")
    for step in step_windows(trace):
        yield from _with_readiness(trace, engine_gathers(launched_in(labels, step)), ran)


def _bucket_names(labels: Sequence[Label]) -> dict[str, str]:
    """A bucket's name by its index: the parameter's, if every bucket holds one, as in `naive`."""
    held = {label.fields["bucket"]: label_list(label.fields["parameters"]) for label in labels if _is_ready(label)}
    names = {label.fields["bucket"]: f"bucket {label.fields['bucket']}" for label in labels if "bucket" in label.fields}
    if len(held) > 1 and all(len(parameters) == 1 for parameters in held.values()):
        names |= {bucket: parameters[0] for bucket, parameters in held.items()}
    return names


def _is_ready(label: Label) -> bool:
    return label.word == "bucket_ready"


def _with_readiness(trace: Trace, gathers: Sequence[Gather], ran: Executions) -> Iterator[_Purpose]:
    """A unit can be gathered from the step's start on, or once it has been freed."""
    starts = [window.host_start_ns for window in step_windows(trace)]
    first = int(trace.events["ts_ns"].min()) if len(trace.events) else 0
    freed: dict[str, int] = {}
    for gather in gathers:
        place = int(np.searchsorted(starts, gather.launch.start_ns, side="right")) - 1
        begun = max(starts[place], first) if place >= 0 else first
        since = max(begun, freed.get(gather.unit, begun))
        ready = ran.reached(since) if since <= gather.launch.start_ns else None
        yield _Purpose(launch=gather.launch, role=Role.GATHER, what=gather.unit, ready_ns=ready)
        if gather.free_ns is not None:
            freed[gather.unit] = gather.free_ns


def _of_ddp(backward: DDPBackward, ran: Executions) -> Iterator[_Purpose]:
    end = ran.backward(backward)[1]
    for index, bucket in enumerate(backward.buckets):
        yield _Purpose(
            launch=bucket.launch,
            role=Role.BUCKET,
            what=f"bucket {index}",
            ready_ns=None if bucket.ready_ns is None else ran.reached(bucket.ready_ns),
            backward_end_ns=end,
        )
