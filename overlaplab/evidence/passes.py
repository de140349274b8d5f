"""Forward passes, backward passes and optimizer steps of a trace, with labels or without."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

from msgspec.structs import replace

from overlaplab.events import Trace, once_per_trace, rule_of, step_windows
from overlaplab.evidence.by_hand import hand_buckets, hand_passes
from overlaplab.evidence.ddp import (
    autograd_passes,
    cut_after_passes,
    ddp_backwards,
    forward_passes,
    optimizer_steps,
    unlabelled_backwards,
)
from overlaplab.evidence.executions import Executions, executions
from overlaplab.evidence.fsdp2 import fsdp2_passes, fsdp2_ranges
from overlaplab.evidence.labels import Label, engine_labels
from overlaplab.vocabulary import Rule

PASSES = ("forward", "backward", "optimizer")


@once_per_trace
def pass_labels(trace: Trace) -> tuple[Label, ...]:
    """The labels `forward`, `backward` and `optimizer`, in order of start, as the engine writes them.

    A trace without a label `forward` gets those of DDP, by torch's own ranges: a forward pass is a range
    `DistributedDataParallel.forward`. A backward pass lasts from the first of autograd's functions after it to the end
    of the last one and of the buckets launched within, by the Recorder's labels and `bucket_labels`, for which DDP
    waits before it returns. It sends gradients (`sync=1`) if there are such buckets.
    Where a loop averages gradients by hand they are `hand_passes`, of FSDP2 `fsdp2_passes`. Empty without any of these.
    """
    labels = engine_labels(trace)
    if any(label.word == "forward" for label in labels):
        return tuple(label for label in labels if label.word in PASSES)
    if by_hand := [*hand_passes(trace)]:
        return _with_updates(trace, by_hand)
    launches = _in_order(label for label in (*labels, *bucket_labels(trace)) if label.word == "bucket_launch")
    forwards = forward_passes(trace) if launches else ()
    if not forwards:
        passes = [*fsdp2_passes(fsdp2_ranges(trace))]
        return _with_updates(trace, [*_number_passes(trace, passes)]) if passes else ()
    backwards = _number_passes(trace, (Label.make(span, "backward", {}) for span in autograd_passes(trace)))
    numbered = [*_number_passes(trace, (Label.make(span, "forward", {}) for span in forwards))]
    others = _in_order((*numbered, *update_labels(trace))) if rule_of(trace) is Rule.CPU else ()
    return _with_updates(trace, [*numbered, *_extend_to_buckets(backwards, launches, executions(trace), others)])


@once_per_trace
def bucket_labels(trace: Trace) -> tuple[Label, ...]:
    """The labels `gradient_ready`, `bucket_ready` and `bucket_launch` that the Recorder would have written for DDP on a
    CPU, in order of start; or `hand_buckets`. Where some buckets have labels, those of the other models alone.

    Gradients are called by their order of arrival (see `ddp_gradients`), and have no labels where passes differ in it,
    or other buckets have labels.
    """
    if rule_of(trace) is not Rule.CPU:
        return ()
    are_labelled = any(label.word == "bucket_launch" for label in engine_labels(trace))
    elements = {} if are_labelled else ddp_gradients(trace)
    names = {number: quote(name) for number, name in enumerate(elements, start=1)}
    labels = [] if are_labelled else [*hand_buckets(trace)]
    for backward in unlabelled_backwards(trace, executions(trace)):
        for bucket in backward.buckets:
            index, named = str(bucket.index), [gradient for gradient in bucket.gradients if names]
            for gradient in named:
                arrived = {"parameter": names[gradient.number]}
                labels.append(Label.make(backward, "gradient_ready", arrived, gradient.at_ns))
            parameters = ",".join(names[gradient.number] for gradient in named)
            fields = {"bucket": index, "bytes": str(bucket.launch.bytes or 0), "parameters": parameters}
            labels.append(Label.make(backward, "bucket_ready", fields, bucket.ready_ns or bucket.launch.start_ns))
            labels.append(Label.make(bucket.launch, "bucket_launch", {"bucket": index}))
    return _in_order(labels)


@once_per_trace
def labels_some_models(trace: Trace) -> bool:
    """Whether some buckets of DDP have labels, and those of other models have none."""
    return any(label.word == "bucket_launch" for label in engine_labels(trace)) and bool(bucket_labels(trace))


@once_per_trace
def ddp_gradients(trace: Trace) -> dict[str, int]:
    """The elements of each gradient that DDP sends, in order of arrival, called such as `gradient 3 (512 × 64)`.

    Empty where a pass does not tell all of them, or its gradients arrive in another order than in the first.
    """
    first_elements: dict[str, int] = {}
    for backward in ddp_backwards(trace, executions(trace)):
        gradients = [gradient for bucket in backward.buckets for gradient in bucket.gradients]
        is_known = not backward.repeated and backward.forwards == 1 and len(gradients) == backward.gradients
        if not is_known or any(bucket.told_by != "sizes" for bucket in backward.buckets):
            return {}
        gradients.sort(key=lambda gradient: gradient.number)
        elements = {gradient.name: gradient.elements for gradient in gradients}
        if first_elements and elements != first_elements:
            return {}
        first_elements = elements
    return first_elements


def _in_order(labels: Iterable[Label]) -> tuple[Label, ...]:
    return tuple(sorted(labels, key=lambda label: label.start_ns))


def _with_updates(trace: Trace, passes: Sequence[Label]) -> tuple[Label, ...]:
    return _in_order((*passes, *cut_after_passes(update_labels(trace), passes)))


def update_labels(trace: Trace) -> tuple[Label, ...]:
    """The labels `optimizer`, by torch's own ranges, which any loop has."""
    return tuple(Label.make(span, "optimizer", {}) for span in optimizer_steps(trace))


def _number_passes(trace: Trace, passes: Iterable[Label]) -> Iterator[Label]:
    """Yield the passes with `microbatch`: the pass's place among those of its word in its step."""
    starts = [window.host_start_ns for window in step_windows(trace)]
    before: Counter[tuple[str, int]] = Counter()
    for label in passes:
        place = label.word, bisect_right(starts, label.start_ns)
        yield replace(label, fields={"microbatch": str(before[place]), **label.fields})
        before[place] += 1


def _extend_to_buckets(
    backwards: Iterable[Label], launches: Sequence[Label], ran: Executions, others: Sequence[Label]
) -> Iterator[Label]:
    """Yield the backward passes, each until its buckets are sent, or until the next of the `others` begins before."""
    starts, others_ns = ([label.start_ns for label in labels] for labels in (launches, others))
    for backward in backwards:
        within = launches[bisect_left(starts, backward.start_ns) : bisect_right(starts, backward.end_ns)]
        ends = [bounds[1] for label in within if (bounds := ran.communication_span(label)) is not None]
        fields = backward.fields | {"sync": "1" if within else "0"}
        next_ns = others_ns[bisect_left(others_ns, backward.end_ns) :][:1]
        end_ns = min([max([backward.end_ns, *ends]), *next_ns])
        yield Label.make(backward, "backward", fields, backward.start_ns, end_ns)
