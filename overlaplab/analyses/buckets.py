"""Bucket readiness: which gradient held each bucket, and when its collective ran."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

import pandas as pd

from overlaplab.events import Run, Trace, Window, activity, table_of
from overlaplab.evidence.ddp import DDPBackward, autograd_passes, ddp_backwards
from overlaplab.evidence.executions import Executions, executions
from overlaplab.evidence.labels import Label, Span, labels_of
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.intervals import length_before
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import label_list

_IDENTITY = ("rank", "step", "backward_start_ns", "backward_end_ns")
_TIMES = ("ready_ns", "launch_ns", "start_ns", "end_ns", "exposed_ns")
_GRADIENTS = ("parameters", "gradient_ready_ns", "last_parameter")
_SOURCE = ("passes", "arrivals", "shapes", "gradients", "told_by", "source")
_COLUMNS = (*_IDENTITY, "index", "bytes", *_GRADIENTS, *_TIMES, *_SOURCE)


def buckets(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and bucket, in launch order; times in ns from the step window's start.

    Columns: `rank`, `step` (Int64), `backward_start_ns`, `backward_end_ns` (of the backward pass that synchronises, to
    the end of autograd's last operation, before any waiting; if several do, as with zero2's microbatches, of the step's
    last one), `index`, `bytes` (Int64, null where unknown), `parameters` (tuple of names, None for unnamed ones),
    `gradient_ready_ns` (tuple, one per parameter, None where no gradient arrived), `last_parameter` (the one that
    arrived last; None if none did, or it is unnamed), `ready_ns`, `launch_ns` (host time: on a GPU it may precede the
    window), `start_ns`, `end_ns` (of the collective), `exposed_ns` (its time during which this rank computed nothing).
    Times are Int64, null where unknown. On a GPU readiness is device time. Further: `passes` (how many backward passes
    of the step sent gradients), `arrivals` (tuple, one per parameter: the gradient's place in the order of arrival,
    from 1), `shapes` (tuple, one tuple per parameter, None where unknown), `gradients` (Int64: how many arrived in the
    backward pass), `told_by` and `source`.

    Buckets come from the engine's labels (`source` and `told_by` are `engine`), or without them from torch's
    DistributedDataParallel (`source` is `ddp`, see `evidence.ddp`): there a bucket is an all-reduce launched while a
    gradient is accumulated. Its gradients have no names. `told_by` says whether they are known by their `sizes`, or
    assumed from their `order` of arrival; if neither is possible, `parameters` is empty and `told_by` is None.

    Empty if the trace shows no buckets, or device activity was not recorded. Raises `OverlaplabError` for an unknown
    rank or step.
    """
    whole = dict.fromkeys((*_IDENTITY, *_TIMES, "bytes", "gradients"), "Int64") | {"index": "int64", "passes": "int64"}
    return table_of(rows_by_rank(run, selection, _of_trace), {name: whole.get(name, "object") for name in _COLUMNS})


def _of_trace(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    computed, labels, ran = length_before(activity(trace).compute), labels_of(trace), executions(trace)
    if any(label.word == "bucket_launch" for label in labels):
        passes = _synchronising(trace, labels)
        for step in steps:
            own = launched_in(labels, step)
            yield from _of_step(own, launched_in(passes, step), step, ran, computed)
    elif backwards := ddp_backwards(trace, ran):
        for step in steps:
            yield from _of_ddp(launched_in(backwards, step), step, ran, computed)


def _synchronising(trace: Trace, labels: Sequence[Label]) -> Sequence[Span]:
    """The backward passes that send gradients: by label, else those of autograd's passes that launch a bucket."""
    backwards = [label for label in labels if label.word == "backward"]
    if backwards:
        return [label for label in backwards if label.fields["sync"] == "1"]
    launches = [label.start_ns for label in labels if label.word == "bucket_launch"]
    return [own for own in autograd_passes(trace) if own.end_ns >= _first_from(launches, own.start_ns)]


def _first_from(moments: Sequence[int], start_ns: int) -> float:
    """The first of these moments, which are in order, from the start on; infinity where none follows."""
    place = bisect_left(moments, start_ns)
    return moments[place] if place < len(moments) else inf


def _of_step(
    labels: Sequence[Label], backwards: Sequence[Span], step: Window, ran: Executions, computed: Callable[[int], int]
) -> Iterator[dict[str, Any]]:
    if not backwards:
        return
    labels = [label for label in labels if label.start_ns >= backwards[-1].start_ns]
    arrived = _arrivals(labels, ran)
    places = {name: place for place, name in enumerate(sorted(arrived, key=lambda name: arrived[name]), start=1)}
    common = _shared(step, backwards, ran) | {"gradients": len(arrived), "told_by": "engine", "source": "engine"}
    latest_ready: dict[str, Label] = {}
    for label in labels:
        if label.word == "bucket_ready":
            latest_ready[label.fields["bucket"]] = label
        if label.word != "bucket_launch" or label.fields["bucket"] not in latest_ready:
            continue
        ready = latest_ready[label.fields["bucket"]]
        arrivals = {name: arrived.get(name) for name in label_list(ready.fields["parameters"])}
        yield {
            **common,
            "index": int(ready.fields["bucket"]),
            "bytes": int(ready.fields["bytes"]),
            "parameters": tuple(arrivals),
            "gradient_ready_ns": tuple(None if at is None else at - step.start_ns for at in arrivals.values()),
            "last_parameter": _latest(arrivals),
            "arrivals": tuple(places.get(name) for name in arrivals),
            "shapes": (None,) * len(arrivals),
            **_times(ready.start_ns, label, ran.of_launch(label), step, ran, computed),
        }


def _of_ddp(
    backwards: Sequence[DDPBackward], step: Window, ran: Executions, computed: Callable[[int], int]
) -> Iterator[dict[str, Any]]:
    if not backwards:
        return
    common = _shared(step, backwards, ran) | {"gradients": backwards[-1].gradients, "source": "ddp"}
    for index, bucket in enumerate(backwards[-1].buckets):
        held = bucket.gradients
        yield {
            **common,
            "index": index,
            "bytes": bucket.launch.bytes,
            "parameters": (None,) * len(held),
            "gradient_ready_ns": tuple(ran.reached(gradient.at_ns) - step.start_ns for gradient in held),
            "last_parameter": None,
            "arrivals": tuple(gradient.number for gradient in held),
            "shapes": tuple(gradient.shape for gradient in held),
            "told_by": bucket.told_by,
            **_times(bucket.ready_ns, bucket.launch, bucket.launch.ran, step, ran, computed),
        }


def _shared(step: Window, backwards: Sequence[Span], ran: Executions) -> dict[str, Any]:
    """What all buckets of a step share, from its last backward pass."""
    begins, ends = ran.backward(backwards[-1])
    return {
        "step": step.step,
        "backward_start_ns": begins - step.start_ns,
        "backward_end_ns": ends - step.start_ns,
        "passes": len(backwards),
    }


def _times(
    ready_ns: int | None,
    launch: Span,
    bounds: tuple[int, int] | None,
    step: Window,
    ran: Executions,
    computed: Callable[[int], int],
) -> dict[str, Any]:
    """A bucket's times, from when it was ready on the host, and when its collective ran."""
    return {
        "ready_ns": None if ready_ns is None else ran.reached(ready_ns) - step.start_ns,
        "launch_ns": launch.start_ns - step.start_ns,
        "start_ns": bounds and bounds[0] - step.start_ns,
        "end_ns": bounds and bounds[1] - step.start_ns,
        "exposed_ns": bounds and max(bounds[1] - bounds[0], 0) - (computed(max(bounds)) - computed(bounds[0])),
    }


def _arrivals(labels: Sequence[Label], ran: Executions) -> dict[str, int]:
    """When each parameter's gradient was last accumulated; parameters without one are absent."""
    return {
        name: ran.reached(label.start_ns)
        for label in labels
        if label.word == "gradient_ready"
        for name in label_list(label.fields["parameter"])
    }


def _latest(arrivals: dict[str, int | None]) -> str | None:
    arrived = [(at, name) for name, at in arrivals.items() if at is not None]
    return max(arrived)[1] if arrived else None
