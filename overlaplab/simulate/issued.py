"""What one rank's host issued in a step: launches, waits, the arrival of gradients.

From the engine's labels, and without them from torch's DistributedDataParallel or FSDP2 (see `overlaplab.evidence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.events import (
    Trace,
    Window,
    WorkKind,
    activity,
    counting_as,
    launchers,
    main_stream,
    once_per_trace,
    rule_of,
)
from overlaplab.evidence.ddp import DDPBackward, autograd_passes, ddp_backwards, unlabelled_backwards
from overlaplab.evidence.executions import executions
from overlaplab.evidence.fsdp2 import fsdp2_gathers, fsdp2_ranges, fsdp2_scatters, unit_sizes
from overlaplab.evidence.gathers import Gather
from overlaplab.evidence.labels import Label, Span, engine_labels
from overlaplab.evidence.selection import launched_in
from overlaplab.intervals import clip, length_before
from overlaplab.manifest import Manifest
from overlaplab.simulate.blocked import collective_name
from overlaplab.simulate.fill_buckets import share_bytes
from overlaplab.vocabulary import Rule, label_list

_SENDERS = {"bucket_launch": "all_reduce", "gather_launch": "all_gather", "scatter_launch": "reduce_scatter"}
_DDP_KINDS = ("all_reduce", "broadcast", "barrier", None)
"""What a step of DDP alone launches: buckets, buffers and flags."""
_WAITERS = ("bucket_done", "gather_wait", "scatter_done")


class Sent(Struct, frozen=True, kw_only=True):
    """A collective, as the host range that launched it."""

    launch: Span
    kind: str
    bytes: int | None


class Issued(Struct, frozen=True, kw_only=True):
    """What was issued in one step; each with its host time, in absolute ns."""

    sent: tuple[tuple[int, Sent], ...]
    """In order of launch."""
    waits: tuple[tuple[int, int], ...]
    """When computation began to wait for which launch."""
    gradients: tuple[tuple[int, int], ...] | None
    """Arrival (host time) and bytes of each gradient that was averaged by all-reduces, in order of arrival; None if the
    step has several backward passes that do so, or sizes are unknown."""


def issued_by_step(trace: Trace, steps: Sequence[Window], manifest: Manifest | None) -> Iterator[tuple[Window, Issued]]:
    """What was issued in each of these steps; steps of which the trace does not show all are left out."""
    labels, ran, ranges = engine_labels(trace), executions(trace), fsdp2_ranges(trace)
    backwards, unlabelled = ddp_backwards(trace, ran), unlabelled_backwards(trace, ran)
    gathers, size_of = fsdp2_gathers(ranges, ran), unit_sizes(manifest, ranges)
    scattered = fsdp2_scatters(ranges, ran)
    elements = {parameter.name: prod(parameter.shape) for parameter in manifest.parameters} if manifest else {}
    words = {label.word for label in labels}
    passes = autograd_passes(trace) if "bucket_launch" in words and "backward" not in words else ()
    for step in steps:
        labelled = _issued_by_labels(launched_in(labels, step), launched_in(passes, step), elements)
        sending = launched_in(backwards if labelled is None else unlabelled, step)
        only_ddp = all(launch.kind in _DDP_KINDS for launch in launched_in(ran.launches, step))
        issued: Issued | None = None
        if labelled is not None:
            if only_ddp or not passes:  # the engine labels all that it sends, a Recorder only one of a loop's models
                issued = _with_others(labelled, _issued_by_ddp(sending)) if sending else labelled
        elif sending:
            issued = _issued_by_ddp(sending) if only_ddp else None
        elif ranges:
            gathered = [gather for gather in gathers if step.host_start_ns <= gather.launch.start_ns < step.host_end_ns]
            step_ranges = launched_in(ranges, step)
            ahead = rule_of(trace) is Rule.GPU
            issued = _issued_by_fsdp2(gathered, launched_in(scattered, step), step_ranges, size_of, host_is_ahead=ahead)
        if issued is not None:
            yield step, issued


def _with_others(labelled: Issued, others: Issued) -> Issued:
    """The launches and waits of both: labels tell of one model, DDP's ranges of others. Gradients are left out."""
    further = [(at_ns, len(labelled.sent) + number) for at_ns, number in others.waits]
    return _in_order([*labelled.sent, *others.sent], [*labelled.waits, *further])


def _in_order(sent: Sequence[tuple[int, Sent]], waits: Sequence[tuple[int, int]]) -> Issued:
    """What was issued, in order of launch, without gradients; each of `waits` names a place in `sent`."""
    order = sorted(range(len(sent)), key=lambda number: sent[number][0])
    place = {number: place for place, number in enumerate(order)}
    placed = tuple((at_ns, place[number]) for at_ns, number in waits)
    return Issued(sent=tuple(sent[number] for number in order), waits=placed, gradients=None)


def _issued_by_labels(labels: Sequence[Label], passes: Sequence[Span], elements: Mapping[str, int]) -> Issued | None:
    """What a step's labels, in order of time, tell; None if nothing is sent, or a wait for an all-reduce is unknown.

    `passes`: autograd's, of a loop that labels neither its backward passes nor its waits, since it is not the engine's:
    DDP waits for a pass's buckets at its end.
    """
    sizes: dict[str, str] = {}  # of the bucket that was ready last under each index
    due_ns = max((label.end_ns for label in labels if label.word == "backward"), default=0)
    sent: list[tuple[int, Sent]] = []
    waits: list[tuple[int, int]] = []
    launched: dict[str, int] = {}
    for label in labels:
        if label.word == "bucket_ready":
            sizes[label.fields["bucket"]] = label.fields["bytes"]
        size = label.fields.get("bytes") or sizes.get(label.fields.get("bucket", ""))
        if label.word in _SENDERS and size is not None:
            launched[collective_name(label)] = len(sent)
            if label.word == "bucket_launch":
                waits += [(each.end_ns, len(sent)) for each in passes if each.start_ns <= label.start_ns <= each.end_ns]
            sent.append((label.start_ns, Sent(launch=label, kind=_SENDERS[label.word], bytes=int(size))))
        elif label.word in _WAITERS and collective_name(label) in launched:
            at_ns = max(label.start_ns, due_ns) if label.word == "scatter_done" else label.start_ns
            waits.append((at_ns, launched[collective_name(label)]))
    waited = {number for _, number in waits}
    reduces = (number for number, (_, collective) in enumerate(sent) if collective.kind == "all_reduce")
    if not sent or not waited.issuperset(reduces):
        return None  # when the optimizer could begin is unknown
    backwards: list[Span] = [label for label in labels if label.word == "backward" and label.fields["sync"] == "1"]
    sending = backwards or [each for each in passes if any(each.start_ns <= at <= each.end_ns for at, _ in sent)]
    gradients = _labelled_gradients(labels, sending[0], elements) if len(sending) == 1 else None
    return Issued(sent=tuple(sent), waits=tuple(waits), gradients=gradients)


def _labelled_gradients(
    labels: Sequence[Label], backward: Span, elements: Mapping[str, int]
) -> tuple[tuple[int, int], ...] | None:
    """See `Issued.gradients`; a parameter without a gradient arrives when its bucket is ready, as it is sent, too.

    None where a parameter is sent twice: there are several passes, which nothing tells apart, or several models.
    """
    arrived: dict[str, int] = {}
    sent: set[str] = set()
    gradients: list[tuple[int, int]] = []
    for label in labels:
        if label.start_ns < backward.start_ns:
            continue
        if label.word == "gradient_ready":
            arrived |= dict.fromkeys(label_list(label.fields["parameter"]), label.start_ns)
        elif label.word == "bucket_ready":
            names = label_list(label.fields["parameters"])
            if not names or any(name not in elements or name in sent for name in names):
                return None
            sent.update(names)
            sizes = share_bytes(int(label.fields["bytes"]), [elements[name] for name in names])
            gradients += [(arrived.get(name, label.start_ns), size) for name, size in zip(names, sizes, strict=True)]
    return tuple(sorted(gradients)) or None


def _issued_by_ddp(backwards: Sequence[DDPBackward]) -> Issued:
    """DDP waits for all buckets at the end of the backward pass."""
    sent: list[tuple[int, Sent]] = []
    waits: list[tuple[int, int]] = []
    for backward in backwards:
        for bucket in backward.buckets:
            waits.append((backward.end_ns, len(sent)))
            bucket_sent = Sent(launch=bucket.launch, kind="all_reduce", bytes=bucket.launch.bytes)
            sent.append((bucket.launch.start_ns, bucket_sent))
    gradients = _ddp_gradients(backwards[0]) if len(backwards) == 1 else None
    return Issued(sent=tuple(sent), waits=tuple(waits), gradients=gradients)


def _ddp_gradients(backward: DDPBackward) -> tuple[tuple[int, int], ...] | None:
    if backward.repeated:
        return None
    gradients: list[tuple[int, int]] = []
    for bucket in backward.buckets:
        if bucket.told_by != "sizes" or bucket.launch.bytes is None:
            return None
        sizes = share_bytes(bucket.launch.bytes, [prod(gradient.shape or ()) for gradient in bucket.gradients])
        gradients += [(gradient.at_ns, size) for gradient, size in zip(bucket.gradients, sizes, strict=True)]
    return tuple(sorted(gradients)) or None


def _issued_by_fsdp2(
    gathers: Sequence[Gather],
    scattered: Sequence[Label],
    ranges: Sequence[Label],
    size_of: Callable[[str], int | None],
    *,
    host_is_ahead: bool,
) -> Issued | None:
    """FSDP2 waits for a gather before it copies it out, and for reductions at the end of the backward pass.

    On a GPU a gather does not wait for the computation launched before it, only for the last copying out: both use the
    same buffer (`wait_for_unshard` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
    """
    copied = [label.end_ns for label in ranges if label.word == "all_gather_copy_out"] if host_is_ahead else []
    due = [label.end_ns for label in ranges if label.word == "root_post_backward_callback"]
    sent: list[tuple[int, Sent]] = []
    waits: list[tuple[int, int]] = []
    for gather in gathers:
        at_ns = gather.launch.start_ns
        earliest_ns = max((end for end in copied if end <= at_ns), default=at_ns)
        if gather.blocked:
            waits.append((gather.blocked[0].start_ns, len(sent)))
        size = size_of(gather.unit) if gather.bytes is None else gather.bytes
        sent.append((earliest_ns, Sent(launch=gather.launch, kind="all_gather", bytes=size)))
    for label in scattered:
        waits += [(at_ns, len(sent)) for at_ns in due if at_ns >= label.start_ns][:1]
        scatter_sent = Sent(launch=label, kind="reduce_scatter", bytes=size_of(label.fields["unit"]))
        sent.append((label.start_ns, scatter_sent))
    return _in_order(sent, waits) if sent else None


def progress(trace: Trace, step: Window) -> Callable[[int], int]:
    """A function that gives the step's computation issued before a host time, in ns."""
    if rule_of(trace) is not Rule.GPU:
        computed = clip(activity(trace).compute, step.start_ns, step.end_ns)
        return length_before(computed)
    main_work = _main_stream_work(trace)
    first, last = np.searchsorted(main_work[0], (step.host_start_ns, step.host_end_ns))
    hosts, starts, ends = (times[first:last] for times in main_work)
    over_until = np.maximum.accumulate(ends)
    over_before = np.concatenate((starts[:1], over_until[:-1]))
    worked = np.concatenate(([0], np.cumsum(np.maximum(ends - np.maximum(starts, over_before), 0))))
    return lambda host_ns: int(worked[np.searchsorted(hosts, host_ns)])


@once_per_trace
def _main_stream_work(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """When what ran on the main stream was launched, in order, when it started, and when it ended."""
    events, calls = trace.events, launchers(trace)
    works = counting_as(trace, WorkKind.COMPUTE) | counting_as(trace, WorkKind.MEMORY)
    rows = np.flatnonzero(works & (events["stream"] == main_stream(trace)).to_numpy() & (calls >= 0))
    times, took = (events[name].to_numpy(np.int64) for name in ("ts_ns", "dur_ns"))
    rows = rows[np.lexsort((times[rows], times[calls[rows]]))]
    return times[calls[rows]], times[rows], times[rows] + took[rows]
