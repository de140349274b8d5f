"""Backward passes of torch's DDP in a run on GPUs, all of whose gradients and buckets are known."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import prod

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.events import Run, Trace, once_per_run
from overlaplab.evidence.arrays import Fields
from overlaplab.evidence.call_metadata import enclosing_rows, operators
from overlaplab.evidence.ddp import DDPBackward, DDPBucket, ddp_backwards
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import engine_labels
from overlaplab.evidence.sending import collective_places
from overlaplab.simulate.gpus.streams import played_together
from overlaplab.simulate.play_errors import refusal
from overlaplab.vocabulary import label_list

_PADDING = 1024
"""A bucket of the engine holds fewer bytes than this beside its gradients: a flag for each of them, and padding."""


class BucketedPass(Struct, frozen=True, kw_only=True):
    """A backward pass of one rank, all of whose gradients are known."""

    backward: DDPBackward
    key: Hashable
    """Shared by the ranks: the collective that its first bucket was."""
    places: list[int]
    """The places of its buckets' events."""
    sizes: list[int]
    """The bytes of its gradients, in order of arrival."""
    launched: list[tuple[int, int]]
    """The host's range in which each bucket was launched."""

    @property
    def cut(self) -> list[list[int]]:
        """The gradients of each bucket, from 0."""
        return [[gradient.number - 1 for gradient in bucket.gradients] for bucket in self.backward.buckets]


@once_per_run
def bucketed_passes(run: Run) -> tuple[list[BucketedPass], ...]:
    """The passes of each trace. Raises `OverlaplabError` where gradients or buckets are not known."""
    passes = tuple(list(_passes_of_trace(run, place, trace)) for place, trace in enumerate(run.traces))
    if not passes or not all(passes):
        raise refusal(run, "no buckets of torch's DDP are recorded")
    sizes: dict[Hashable, list[int]] = {}
    for bucketed in chain.from_iterable(passes):
        if sizes.setdefault(bucketed.key, bucketed.sizes) != bucketed.sizes:
            raise refusal(run, "gradients arrive in different orders on its ranks")
    return passes


def _passes_of_trace(run: Run, number: int, trace: Trace) -> Iterator[BucketedPass]:
    together, place_of, calls = played_together(run)[number], collective_places(trace), operators(trace)[0]

    backwards = ddp_backwards(trace, executions(trace), engine=True)
    for backward in map(partial(_with_labelled_sizes, run, trace), backwards):
        sources = {bucket.told_by for bucket in backward.buckets}
        if backward.forwards > 1:
            what = f"{backward.forwards} modules under DDP have one backward pass"
            raise refusal(run, f"{what}: which gradients are whose is not known")
        if backward.repeated:
            what = "several backward passes follow one forward pass of DDP"
            raise refusal(run, f"{what}: which gradients are whose is not known")
        if sources == {"order"}:
            raise refusal(run, "the sizes of its gradients are not known", "Record with record_shapes=True.")
        if sources != {"sizes"} or sum(len(bucket.gradients) for bucket in backward.buckets) != backward.gradients:
            raise refusal(run, "which gradients its buckets hold is not known of all")
        if len({bucket.launch.dtype for bucket in backward.buckets}) > 1:
            raise refusal(run, "its gradients are of several types, which DDP sends in buckets of their own")
        places = [place_of.get(bucket.launch.ran or (0, 0), -1) for bucket in backward.buckets]
        if any(place not in together for place in places):
            what = "when all ranks had come to a bucket's all-reduce is not known of all"
            raise refusal(run, what, "Open all ranks' traces together.")
        yield BucketedPass(
            backward=backward,
            key=together[places[0]].key,
            places=places,
            sizes=[size for bucket in backward.buckets for size in _sizes(bucket)],
            launched=_launch_ranges(calls, backward.buckets),
        )


def _with_labelled_sizes(run: Run, trace: Trace, backward: DDPBackward) -> DDPBackward:
    """The pass with run.json's shapes where labels name all gradients and buckets' bytes agree; else unchanged."""
    shapes = {parameter.name: parameter.shape for parameter in run.manifest.parameters or ()} if run.manifest else {}
    arrived = [
        label_list(label.fields["parameter"])[0]
        for label in engine_labels(trace)
        if label.word == "gradient_ready" and backward.start_ns <= label.start_ns <= backward.end_ns
    ]
    if len(arrived) != backward.gradients or not shapes.keys() >= set(arrived):
        return backward
    buckets = []
    for bucket in backward.buckets:
        gradients = [replace(each, shape=shapes[arrived[each.number - 1]]) for each in bucket.gradients]
        buckets.append(replace(bucket, gradients=tuple(gradients), told_by="sizes"))
    sent = [bucket.launch.bytes or 0 for bucket in buckets]
    elements = [sum(prod(gradient.shape or ()) for gradient in bucket.gradients) for bucket in buckets]
    item_bytes = sum(sent) // max(sum(elements), 1)
    agree = all(0 <= size - item_bytes * count < _PADDING for size, count in zip(sent, elements, strict=True))
    return replace(backward, buckets=tuple(buckets)) if agree else backward


def _launch_ranges(calls: Fields, buckets: Sequence[DDPBucket]) -> list[tuple[int, int]]:
    """Start and end of the operator that launched each bucket; of the launch itself where no operator is recorded."""
    launches = [bucket.launch for bucket in buckets]
    threads = np.array([launch.thread for launch in launches], np.int64)
    starts = np.array([launch.start_ns for launch in launches], np.int64)
    spans = list(zip(calls["start_ns"].tolist(), calls["end_ns"].tolist(), strict=True))
    rows = enclosing_rows(calls, threads, starts).tolist()
    pairs = zip(rows, launches, strict=True)
    return [spans[row] if row >= 0 else (launch.start_ns, launch.end_ns) for row, launch in pairs]


def _sizes(bucket: DDPBucket) -> list[int]:
    held = [prod(gradient.shape or ()) for gradient in bucket.gradients]
    return [count * (bucket.launch.bytes or 0) // sum(held) for count in held]
