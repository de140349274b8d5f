"""Gradients that a loop averages with all-reduces of its own: each by one of its size, as in hooks or after the
backward pass, or all as one tensor. On CPUs, without torch's DistributedDataParallel, FSDP2, or the engine's labels.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias
from urllib.parse import quote

import numpy as np
import pandas as pd
from msgspec import Struct

from overlaplab.dtypes import DTYPE_BYTES
from overlaplab.events import Trace, activity, once_per_trace, rule_of, step_windows
from overlaplab.evidence.ddp import (
    Gradient,
    all_gradients,
    autograd_passes,
    data_loadings,
    is_bucket,
    is_with_ddp,
    is_with_fsdp1,
    optimizer_steps,
)
from overlaplab.evidence.executions import executions
from overlaplab.evidence.fsdp2 import fsdp2_ranges
from overlaplab.evidence.labels import Label, Ordered, Span, engine_labels
from overlaplab.evidence.launches import LaunchSpan
from overlaplab.intervals import Mask, clip
from overlaplab.vocabulary import Rule, label_list

_SENDING = {"forward", "backward", "bucket_launch", "gather_launch", "scatter_launch"}
"""Words of labels: whoever writes one of them does not average by hand."""
_MOST = 0.95
"""At least this share of all gradients' elements is sent; inputs may want gradients that are not sent."""
_SUMMING, _SPREADING = ("all_reduce", "reduce", "reduce_scatter"), ("broadcast", "all_gather")
"""Kinds of collectives that add gradients up, and that give all ranks the sums."""


Sent: TypeAlias = tuple[tuple[Gradient, ...], LaunchSpan]
"""Gradients, and the all-reduce that sends them."""


class Averaging(Span, frozen=True, kw_only=True):
    """A backward pass, until its gradients had been averaged."""

    forward_ns: int
    """When its forward pass could begin: after the step, the update or the data loading before it."""
    sent: tuple[Sent, ...]
    """In order of launch; empty where the pass only accumulates gradients."""


@once_per_trace
def averaged_by_hand(trace: Trace) -> tuple[Averaging, ...]:
    """The backward passes, in order of time.

    Empty where an update begins within a step's backward pass, and unless each pass that sends gradients sends nearly
    all of its own until the next update: at least two, the same ones each time.
    """
    if rule_of(trace) is not Rule.CPU or _sends_otherwise(trace):
        return ()
    launches = [launch for launch in executions(trace).launches if is_bucket(launch) and launch.ran is not None]
    updates = optimizer_steps(trace)
    gradients = all_gradients(trace, launches) if launches and updates else ()
    if any(gradient.shape is None for gradient in gradients):
        return ()
    moments = [launch.start_ns for launch in launches]
    until_forward = sorted(span.end_ns for span in (*updates, *data_loadings(trace)))
    averagings: list[Averaging] = []
    for each in _passes(trace, gradients):
        backward, arrived, limit_ns = each.backward, each.gradients, each.limit_ns
        of_pass = launches[bisect_left(moments, backward.start_ns) : bisect_left(moments, limit_ns)]
        sent = _as_one(arrived, of_pass) or _one_by_one(arrived, of_pass)
        averaged = [gradient for together, _ in sent for gradient in together]
        if each.updates_within or len(averaged) == 1 or 0 < _elements(averaged) < _MOST * _elements(arrived):
            return ()
        ends = [launch.ran[1] for _, launch in sent if launch.ran is not None]
        averagings.append(
            Averaging(
                start_ns=backward.start_ns,
                end_ns=min(max([backward.end_ns, *ends]), limit_ns),
                thread=backward.thread,
                forward_ns=max([each.step_ns, *until_forward[: bisect_right(until_forward, backward.start_ns)][-1:]]),
                sent=tuple(sent),
            )
        )
    shapes = {tuple(each.shape for together, _ in averaging.sent for each in together) for averaging in averagings}
    return tuple(averagings) if len(shapes - {()}) == 1 and _are_named_once(trace, averagings) else ()


def _sends_otherwise(trace: Trace) -> bool:
    labelled = not _SENDING.isdisjoint(label.word for label in engine_labels(trace))
    return labelled or is_with_ddp(trace) or bool(fsdp2_ranges(trace)) or is_with_fsdp1(trace)


class _Pass(Struct, frozen=True, kw_only=True):
    """A backward pass, and what may send its gradients."""

    backward: Span
    gradients: Sequence[Gradient]
    step_ns: int
    """When its step begins."""
    limit_ns: int
    """When the update after it begins, or the step ends."""
    updates_within: bool


def _passes(trace: Trace, gradients: Sequence[Gradient]) -> Iterator[_Pass]:
    """The backward passes in which gradients arrive, in order of time."""
    windows, begun = step_windows(trace), [update.start_ns for update in optimizer_steps(trace)]
    starts, arrivals = [window.start_ns for window in windows], [gradient.at_ns for gradient in gradients]
    for backward in autograd_passes(trace) if gradients else ():
        place = bisect_right(starts, backward.start_ns) - 1
        arrived = gradients[bisect_left(arrivals, backward.start_ns) : bisect_right(arrivals, backward.end_ns)]
        if place >= 0 and arrived:
            after = bisect_left(begun, backward.end_ns)
            yield _Pass(
                backward=backward,
                gradients=arrived,
                step_ns=starts[place],
                limit_ns=min([windows[place].host_end_ns, *begun[after : after + 1]]),
                updates_within=bisect_left(begun, backward.start_ns) < after,
            )


def is_of_gradients(trace: Trace, table: pd.DataFrame) -> Mask:
    """Mark those of `recorded_collectives` that a loop without DDP, FSDP, or labels sends its gradients with, be it in
    several of them, as a reduce and a broadcast.

    They are launched between the arrival of a gradient, or of all, of its size, and the update, each kind once for each
    gradient; what gives all ranks the sums follows what adds them up. Together they send nearly all gradients.
    """
    marked = np.zeros(len(table), dtype=bool)
    gradients = () if _sends_otherwise(trace) else all_gradients(trace, ())
    if any(gradient.shape is None for gradient in gradients):
        return marked
    sizes = table["bytes"].to_numpy() // table["dtype"].map(DTYPE_BYTES).fillna(1).to_numpy()
    sizes = np.where(table["bytes"] < 0, table["elements"], sizes)
    kinds, hosts_ns = table["kind"].tolist(), table["host_ns"].to_numpy()
    for each in _passes(trace, gradients):
        arrivals: dict[int, list[int]] = defaultdict(list)
        for gradient in each.gradients:
            arrivals[gradient.elements].append(gradient.at_ns)
        whole = _elements(each.gradients)
        arrivals.setdefault(whole, [max(gradient.at_ns for gradient in each.gradients)])
        counts = Counter[tuple[str, int]]()
        of_pass: list[int] = []
        within = np.flatnonzero((each.backward.start_ns <= hosts_ns) & (hosts_ns < each.limit_ns))
        for row in sorted(within.tolist(), key=hosts_ns.__getitem__):
            kind, size = kinds[row], int(sizes[row])
            most = bisect_right(arrivals.get(size, []), hosts_ns[row])  # gradients that it may be one of
            if kind in _SPREADING:
                most = min(most, max(counts[summing, size] for summing in _SUMMING))
            if kind in (*_SUMMING, *_SPREADING) and counts[kind, size] < most:
                counts[kind, size] += 1
                of_pass.append(row)
        sent = {size: max(counts[kind, size] for kind in _SUMMING) for _, size in counts}
        if sent.pop(whole, 0) or sum(size * number for size, number in sent.items()) >= _MOST * whole:
            marked[of_pass] = True
    return marked


def _as_one(gradients: Sequence[Gradient], launches: Sequence[LaunchSpan]) -> list[Sent]:
    """The all-reduce that sends all of these, perhaps but one small one, once they have arrived; empty without."""
    whole = _elements(gradients)
    # by how many elements a launch lacks, the gradient that it leaves out
    left_out = {0: None} | {size: each for each in gradients if (size := each.elements) <= (1 - _MOST) * whole}
    for launch in launches:
        left_elements = whole - _elements_sent(launch)
        if gradients[-1].at_ns <= launch.start_ns and left_elements in left_out:
            return [(tuple(each for each in gradients if each is not left_out[left_elements]), launch)]
    return []


def _one_by_one(gradients: Sequence[Gradient], launches: Sequence[LaunchSpan]) -> list[Sent]:
    """Each all-reduce with the first of the gradients of its size that had arrived and was not sent before."""
    left: dict[int, deque[Gradient]] = defaultdict(deque)
    for gradient in gradients:
        left[gradient.elements].append(gradient)
    sent: list[Sent] = []
    for launch in launches:
        of_size = left.get(_elements_sent(launch))
        if of_size and of_size[0].at_ns <= launch.start_ns:
            sent.append(((of_size.popleft(),), launch))
    return sent


def _are_named_once(trace: Trace, averagings: Sequence[Averaging]) -> bool:
    """False where a Recorder's labels name a gradient of a pass twice: two microbatches look like one."""
    named = _names_by_recorder(trace)
    if named is None:
        return True
    for averaging in averagings:
        gradients = [gradient for together, _ in averaging.sent for gradient in together]
        if len({_name(gradient, named, averaging.thread) for gradient in gradients}) < len(gradients):
            return False
    return True


def _elements_sent(launch: LaunchSpan) -> int:
    return (launch.bytes or 0) // DTYPE_BYTES.get(launch.dtype or "", 1)


def _elements(gradients: Iterable[Gradient]) -> int:
    return sum(each.elements for each in gradients)


def hand_passes(trace: Trace) -> Iterator[Label]:
    """The labels `forward` and `backward`, as the engine writes them."""
    for each in averaged_by_hand(trace):
        fields = {"microbatch": "0"}
        yield Label.make(each, "forward", fields, each.forward_ns, each.start_ns)
        yield Label.make(each, "backward", fields | {"sync": "1" if each.sent else "0"})


def hand_buckets(trace: Trace) -> Iterator[Label]:
    """The labels of a bucket for each all-reduce, and where the loop computed nothing until it had been sent, waits."""
    compute, named = activity(trace).compute, _names_by_recorder(trace)
    for each in averaged_by_hand(trace):
        for index, (gradients, launch) in enumerate(each.sent):
            bucket, names = {"bucket": str(index)}, [_name(gradient, named, each.thread) for gradient in gradients]
            for name, gradient in zip(names, gradients, strict=True):
                if named is None:
                    yield Label.make(each, "gradient_ready", {"parameter": quote(name)}, gradient.at_ns)
            ready = bucket | {"bytes": str(launch.bytes or 0), "parameters": ",".join(map(quote, names))}
            yield Label.make(each, "bucket_ready", ready, gradients[-1].at_ns)
            yield Label.make(launch, "bucket_launch", bucket)
            end_ns = launch.ran[1] if launch.ran is not None else launch.end_ns
            if end_ns > launch.end_ns and not len(clip(compute, launch.end_ns, end_ns)):
                yield Label.make(launch, "wait", {"by": "hand"}, launch.end_ns, end_ns)
                yield Label.make(launch, "bucket_done", bucket, end_ns)


@once_per_trace
def hand_gradients(trace: Trace) -> dict[str, int]:
    """The elements of each gradient that is averaged by hand, by its name."""
    named = _names_by_recorder(trace)
    return {
        _name(gradient, named, each.thread): gradient.elements
        for each in averaged_by_hand(trace)
        for gradients, _ in each.sent
        for gradient in gradients
    }


def _names_by_recorder(trace: Trace) -> Ordered[Label] | None:
    """A Recorder's labels of gradients, which have their parameters' names; None without."""
    labels = [label for label in engine_labels(trace) if label.word == "gradient_ready"]
    return Ordered(labels, lambda label: label.thread) if labels else None


def _name(gradient: Gradient, named: Ordered[Label] | None, thread: int) -> str:
    label = None if named is None else named.last_before(thread, gradient.hooks_end_ns)  # of one of its hooks
    return gradient.name if label is None else label_list(label.fields["parameter"])[0]
