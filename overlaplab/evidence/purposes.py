"""What each collective is for: which bucket's gradients or unit's parameters it moves, and when these were ready.

This comes from the engine's labels, and without them from the ranges of torch's DistributedDataParallel and FSDP2; a
trace may have all three. Where none exists, the purpose is unknown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from urllib.parse import unquote

import numpy as np
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.axes import TENSOR, find_axis
from overlaplab.events import Trace, once_per_trace, rule_of, step_windows
from overlaplab.evidence.by_hand import is_of_gradients
from overlaplab.evidence.ddp import (
    DDPBackward,
    DDPBucket,
    autograd_passes,
    cut_after_passes,
    forward_passes,
    is_with_fsdp1,
    optimizer_steps,
    unlabelled_backwards,
)
from overlaplab.evidence.executions import Executions, executions, map_moment
from overlaplab.evidence.fsdp2 import BackwardPasses, fsdp2_gathers, fsdp2_passes, fsdp2_ranges, fsdp2_scatters
from overlaplab.evidence.gathers import Gather, engine_gathers
from overlaplab.evidence.labels import Label, Span, engine_labels
from overlaplab.evidence.launches import launching_ranges
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives
from overlaplab.evidence.selection import is_inside, launched_in
from overlaplab.intervals import Integers, Mask
from overlaplab.vocabulary import Rule, label_list


class Role(StrEnum):
    """What a collective moves."""

    BUCKET = "bucket"
    SCATTER = "scatter"
    GATHER = "gather"
    PARAMETERS = "parameters"
    """Updated ones, after a sharded optimizer's step."""
    ACTIVATIONS = "activations"
    """Those of a layer that several ranks compute together; the layer's next operation needs the result."""
    OTHER = ""


GRADIENTS = (Role.BUCKET, Role.SCATTER)
ACTIVATIONS_PREFIX = "activations of "
"""How `what` of collectives of activations begins; the module follows."""
_LAYER_KINDS = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds of collectives that move activations where, within passes, their group is none that sends gradients."""
ALL_RANKS_ACTIVATIONS = f"{ACTIVATIONS_PREFIX}all ranks"
"""`what` of activations that ranks gather for their loss."""
UPDATED = "updated parameters"
"""`what` of parameters that are sent within an optimizer step, or after one of scattered gradients."""
LOOP_GRADIENTS = "gradients"
"""`what` of collectives with which a loop averages gradients of its own, where they are no buckets."""
BUFFERS = "buffers"
"""`what` of broadcasts by DistributedDataParallel before each forward pass, as of batch normalisation's statistics."""


class _Purpose(Struct, frozen=True, kw_only=True):
    """Why one host range launched its collective; times in absolute ns, None where unknown."""

    launch: Span
    role: Role
    what: str
    ready_ns: int | None = None
    """When it could have been launched; on a GPU in device time."""
    gradient_bytes: int | None = None
    """Least size of the gradients that all collectives of the launch send."""
    backward_end_ns: int | None = None
    """When the backward pass had been computed; on a GPU in device time."""
    after_backward: bool = False
    """Launched after the host was done with the pass."""


@once_per_trace
def purposes(trace: Trace) -> pd.DataFrame:
    """One row per row of `recorded_collectives`.

    Columns: `role` (a `Role`'s value), `what` (`bucket 3`, `layers.4`; None where unknown), `ready_ns` and
    `backward_end_ns` (int64, absolute, `UNKNOWN_NS` where unknown), `after_backward` (bool), `compressed` (bool: its
    launch sends fewer bytes than the gradients have, as torch's PowerSGD hook does).
    """
    table = recorded_collectives(trace)
    known_purposes = list(_purposes(trace)) if rule_of(trace) is not Rule.UNRECORDED and len(table) else []
    launch_of_row = launching_ranges(trace, table, [purpose.launch for purpose in known_purposes]).tolist()
    purpose_of_row = [known_purposes[launch] if launch >= 0 else None for launch in launch_of_row]
    roles = [purpose.role.value if purpose else "" for purpose in purpose_of_row]
    names = [purpose.what if purpose else None for purpose in purpose_of_row]
    if not any(purpose.role is Role.ACTIVATIONS for purpose in known_purposes):
        # where some have labels, one without is something else
        for row, description in enumerate(table["group_description"]):
            if purpose_of_row[row] is None and find_axis(description) == TENSOR:
                roles[row], names[row] = Role.ACTIVATIONS.value, f"{ACTIVATIONS_PREFIX}a layer"
    unknown = [row for row, (role, name) in enumerate(zip(roles, names, strict=True)) if not role and name is None]
    if unknown:  # passes are looked for only where needed
        by_place = _purposes_by_place(trace, table, roles)
        for row in unknown:
            role, names[row] = by_place(row)
            roles[row] = role.value
    return pd.DataFrame(
        {
            "role": pd.Series(roles, dtype=object),
            "what": pd.Series(names, dtype=object),
            "ready_ns": _times([purpose.ready_ns if purpose else None for purpose in purpose_of_row]),
            "backward_end_ns": _times([purpose.backward_end_ns if purpose else None for purpose in purpose_of_row]),
            "after_backward": np.array(
                [bool(purpose and purpose.after_backward) for purpose in purpose_of_row], dtype=bool
            ),
            "compressed": _are_compressed(table["bytes"].to_numpy(np.int64), launch_of_row, known_purposes),
        }
    )


def _purposes_by_place(
    trace: Trace, table: pd.DataFrame, roles: Sequence[str]
) -> Callable[[int], tuple[Role, str | None]]:
    """A function that tells what a row without a launch of known purpose moves, by where it was launched.

    Within passes, as an all-to-all, or beside gradients as messages or in another group, it moves activations; within
    an optimizer step, or after gradients were scattered by hand, parameters that were updated.
    """
    forwards = forward_passes(trace)
    unit_passes = [*fsdp2_passes(fsdp2_ranges(trace))]
    backwards = [each for each in unit_passes if each.word == "backward"] or autograd_passes(trace)
    unit_forwards = [each for each in unit_passes if each.word == "forward"]
    passes = sorted((*forwards, *unit_forwards, *backwards), key=lambda span: span.start_ns)
    updates = list(cut_after_passes(optimizer_steps(trace), passes))
    kinds, groups, hosts_ns = (table[name].tolist() for name in ("kind", "group", "host_ns"))
    gradient_groups = {groups[row] for row, role in enumerate(roles) if role in GRADIENTS}
    steps = [window.host_start_ns for window in step_windows(trace)]
    is_of_gradients_by_hand = np.zeros(len(table), dtype=bool) if gradient_groups else is_of_gradients(trace, table)
    kinds_by_hand = set(table["kind"][is_of_gradients_by_hand])
    to_owners = ["reduce_scatter", *(["reduce"] if kinds_by_hand == {"reduce"} else [])]
    scatter_hosts_ns = sorted(hosts_ns[row] for row, role in enumerate(roles) if not role and kinds[row] in to_owners)
    unknown = table.iloc[[row for row, role in enumerate(roles) if not role]]
    loss_rows = _loss_rows(unknown, passes, backwards) if gradient_groups else set()
    gathers_units = is_with_fsdp1(trace)  # also after the update, as for an evaluation

    def tell(row: int) -> tuple[Role, str | None]:
        kind, host_ns = kinds[row], hosts_ns[row]
        if row in loss_rows:
            return Role.ACTIVATIONS, ALL_RANKS_ACTIVATIONS
        if is_of_gradients_by_hand[row]:
            return Role.OTHER, LOOP_GRADIENTS
        if kind == "broadcast" and is_inside(forwards, host_ns):
            return Role.OTHER, BUFFERS
        if kind in ("broadcast", "all_gather") and is_inside(updates, host_ns):
            return Role.PARAMETERS, UPDATED
        if is_inside(passes, host_ns):
            beside_gradients = kind in _LAYER_KINDS and groups[row] not in gradient_groups
            is_of_layers = kind == "all_to_all" or (gradient_groups and (kind == "send_recv" or beside_gradients))
            return (Role.ACTIVATIONS, f"{ACTIVATIONS_PREFIX}a layer") if is_of_layers else (Role.OTHER, None)
        gathers = (kind == "all_gather" and not gathers_units) or (kind == "broadcast" and "reduce" in to_owners)
        return (Role.PARAMETERS, UPDATED) if gathers and follows_update(host_ns) else (Role.OTHER, None)

    def follows_update(host_ns: int) -> bool:
        """Whether an update in the same step precedes it, and scattered gradients the update."""
        begun = bisect_right(steps, host_ns)
        update = bisect_right(updates, host_ns, key=lambda span: span.end_ns)
        scatter = bisect_left(scatter_hosts_ns, updates[update - 1].start_ns) if update else 0
        return bool(begun and scatter and scatter_hosts_ns[scatter - 1] >= steps[begun - 1])

    return tell


def _loss_rows(table: pd.DataFrame, passes: Sequence[Span], backwards: Sequence[Span]) -> set[int]:
    """Rows of collectives that gather activations between a forward pass and its backward pass, as for a loss over all
    ranks' samples, and, within that backward pass, of those that scatter, exchange, or have the size of a gather.
    """
    table = table.sort_values("host_ns", kind="stable")
    hosts_ns, kinds, sizes = (table[name].to_numpy() for name in ("host_ns", "kind", "bytes"))
    begun = {span.start_ns for span in backwards}
    activations: set[int] = set()
    for before, span in pairwise((None, *passes)):
        if span is None or span.start_ns not in begun:
            continue
        limits = (0 if before is None else before.end_ns, span.start_ns, span.end_ns)
        first, inside, last = np.searchsorted(hosts_ns, limits).tolist()
        gathers = [place for place in range(first, inside) if kinds[place] == "all_gather"]
        gathered = {sizes[place] for place in gathers}
        returning = [
            place
            for place in range(inside, last)
            if kinds[place] in ("reduce_scatter", "all_to_all") or sizes[place] in gathered
        ]
        if gathers and returning:
            activations.update(table.index[[*gathers, *returning]].tolist())
    return activations


@once_per_trace
def has_sent_halves(trace: Trace) -> bool:
    """Whether gradients or parameters are sent in types of 16 bits, or compressed."""
    table = purposes(trace)
    moved = table["role"].isin([*GRADIENTS, Role.GATHER])
    of_16_bits = recorded_collectives(trace)["dtype"].isin(["float16", "bfloat16", "half"])
    return bool(table["compressed"].any() or (moved & of_16_bits).any())


def _are_compressed(num_bytes: Integers, launch_of_row: Sequence[int], launches: Sequence[_Purpose]) -> Mask:
    """Mark collectives whose launches send fewer bytes than their gradients have."""
    sent: dict[int, int] = {}
    unknown = {-1}  # -1: no launch
    for launch, size in zip(launch_of_row, num_bytes.tolist(), strict=True):
        sent[launch] = sent.get(launch, 0) + size
        if size < 0:
            unknown.add(launch)
    fewer = {
        launch
        for launch in sent.keys() - unknown
        if (gradient_bytes := launches[launch].gradient_bytes) is not None and sent[launch] < gradient_bytes
    }
    return np.array([launch in fewer for launch in launch_of_row], dtype=bool)


def _times(values: Sequence[int | None]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([UNKNOWN_NS if value is None else value for value in values], dtype=np.int64)


def _purposes(trace: Trace) -> Iterator[_Purpose]:
    labels = engine_labels(trace)
    ran = executions(trace)
    if any(label.word.endswith("_launch") for label in labels):
        yield from _label_purposes(trace, labels, ran)
    if ranges := fsdp2_ranges(trace):
        yield from _gather_purposes(trace, fsdp2_gathers(ranges, ran), ran)
        passes = BackwardPasses(ranges)
        for label in fsdp2_scatters(ranges, ran):
            # The callback launches collectives itself, so the pass ends where it starts.
            end_ns = map_moment(passes.first_callback_ns(label.start_ns), ran.done_ns)
            yield _Purpose(launch=label, role=Role.SCATTER, what=label.fields["unit"], backward_end_ns=end_ns)
    for backward in unlabelled_backwards(trace, ran):
        yield from _ddp_purposes(backward, ran)


def _label_purposes(trace: Trace, labels: Sequence[Label], ran: Executions) -> Iterator[_Purpose]:
    backwards = [label for label in labels if label.word == "backward"] or autograd_passes(trace)
    starts_ns = [label.start_ns for label in backwards]
    computed_ns = [ran.backward(label)[1] for label in backwards]
    host_done = [label.end_ns for label in backwards] if rule_of(trace) is Rule.GPU else computed_ns
    ready: dict[str, Label] = {}
    by_parameter = _bucket_is_a_parameter(labels)
    for label in labels:
        if label.word == "bucket_ready":
            ready[label.fields["bucket"]] = label
        elif label.word == "activation_launch":
            what = f"{ACTIVATIONS_PREFIX}{unquote(label.fields['module'])}"
            yield _Purpose(launch=label, role=Role.ACTIVATIONS, what=what)
        elif label.word in ("bucket_launch", "scatter_launch", "replica_launch"):
            number = bisect_right(starts_ns, label.start_ns) - 1
            is_bucket = label.word == "bucket_launch"
            completed = ready.pop(label.fields["bucket"], None) if is_bucket else None
            if not is_bucket:
                what = unquote(label.fields["unit"])
            elif by_parameter and completed is not None:
                what = label_list(completed.fields["parameters"])[0]
            else:
                what = f"bucket {label.fields['bucket']}"
            purpose = _Purpose(
                launch=label,
                role=Role.BUCKET if is_bucket else Role.SCATTER,
                what=what,
                ready_ns=ran.done_ns(completed.start_ns) if completed else None,
                gradient_bytes=int(completed.fields["bytes"]) if completed else None,
                backward_end_ns=computed_ns[number] if number >= 0 else None,
                after_backward=number >= 0 and label.start_ns >= host_done[number],
            )
            hops = ran.hops(label)
            if not hops:
                yield purpose
            for hop in hops:  # each sends a part; only the first has a time at which it was ready
                ready_ns = purpose.ready_ns if hop is hops[0] else None
                yield replace(purpose, launch=hop, gradient_bytes=None, ready_ns=ready_ns)
        elif label.word == "param_gather_launch":
            yield _Purpose(launch=label, role=Role.PARAMETERS, what=f"parameters of bucket {label.fields['bucket']}")
    for step in step_windows(trace):
        yield from _gather_purposes(trace, engine_gathers(launched_in(labels, step)), ran)


def _bucket_is_a_parameter(labels: Sequence[Label]) -> bool:
    """Whether each of several buckets holds a single parameter, as in `naive`, and goes by its name."""
    ready = [label for label in labels if label.word == "bucket_ready"]
    alone = all(len(label_list(label.fields["parameters"])) == 1 for label in ready)
    return alone and len({label.fields["bucket"] for label in ready}) > 1


def _gather_purposes(trace: Trace, gathers: Sequence[Gather], ran: Executions) -> Iterator[_Purpose]:
    """A unit can be gathered from the step's start on, or once it has been freed in the step."""
    starts = [window.host_start_ns for window in step_windows(trace)]
    first = int(trace.events["ts_ns"].min()) if len(trace.events) else 0
    freed: dict[str, int] = {}
    for gather in gathers:
        place = bisect_right(starts, gather.launch.start_ns) - 1
        begun = max(starts[place], first) if place >= 0 else first
        since = max(begun, freed.get(gather.unit, begun))
        ready = ran.done_ns(since) if since <= gather.launch.start_ns else None
        yield _Purpose(launch=gather.launch, role=Role.GATHER, what=gather.unit, ready_ns=ready)
        if gather.free_ns is not None:
            freed[gather.unit] = gather.free_ns


def _ddp_purposes(backward: DDPBackward, ran: Executions) -> Iterator[_Purpose]:
    end = ran.backward(backward)[1]
    for bucket in backward.buckets:
        yield _Purpose(
            launch=bucket.launch,
            role=Role.BUCKET,
            what=f"bucket {bucket.index}",
            ready_ns=map_moment(bucket.ready_ns, ran.done_ns),
            gradient_bytes=_least_bytes(bucket),
            backward_end_ns=end,
        )


def _least_bytes(bucket: DDPBucket) -> int | None:
    """The least bytes of gradients in the bucket, in the type that is sent; None where unknown."""
    launch = bucket.launch
    if bucket.least_elements is None or launch.bytes is None or not launch.elements:
        return None
    return bucket.least_elements * launch.bytes // launch.elements
