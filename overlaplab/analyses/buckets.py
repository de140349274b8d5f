"""Bucket readiness: which gradient held each bucket, and when its collective ran."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import Any

import pandas as pd
from msgspec import Struct

from overlaplab.events import Run, Trace, Window, activity, table_of
from overlaplab.evidence.by_hand import averaged_by_hand
from overlaplab.evidence.ddp import DDPBackward, autograd_passes, unlabelled_backwards
from overlaplab.evidence.executions import Executions, executions
from overlaplab.evidence.labels import Label, Span, engine_labels
from overlaplab.evidence.purposes import has_sent_halves
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.intervals import length_before
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import label_list

_IDENTITY = ("rank", "step", "backward_start_ns", "backward_end_ns")
_TIMES = ("ready_ns", "launch_ns", "start_ns", "end_ns", "exposed_ns")
_GRADIENTS = ("parameters", "gradient_ready_ns", "last_parameter")
_SOURCE = ("passes", "arrivals", "shapes", "gradients", "told_by", "source")
_COLUMNS = (*_IDENTITY, "index", "bytes", *_GRADIENTS, *_TIMES, *_SOURCE)


class _Arrival(Struct, frozen=True):
    """When a gradient arrived in the pass: its place in the order, from 1, and its time in absolute ns."""

    number: int
    at_ns: int


def buckets(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and launch of a bucket, in launch order; times in ns from the step window's start.

    Columns: `rank`, `step` (Int64), `backward_start_ns`, `backward_end_ns` (of the backward pass that synchronises, to
    the end of autograd's last operation, before any waiting; if several do, as with zero2's microbatches, of the last
    one of its model), `index`, `bytes` (Int64, null where unknown), `parameters` (tuple of names, None for unnamed
    ones), `gradient_ready_ns` (tuple, one per parameter, None where no gradient arrived since the parameter was last
    sent; so none is later than `ready_ns`), `last_parameter` (the one that arrived last; None if none did, or it is
    unnamed), `ready_ns`, `launch_ns` (host time: on a GPU it may precede the window), `start_ns`, `end_ns` (of the
    collective), `exposed_ns` (communication in that time during which this rank computed nothing; of buckets that are
    sent at once each counts it). Times are Int64, null where unknown. On a GPU readiness is device time. Further:
    `passes` (how many backward passes of the step sent its model's gradients), `arrivals` (tuple, one per parameter:
    the gradient's place in the order of arrival, from 1), `shapes` (tuple, one tuple per parameter, None where
    unknown), `gradients` (Int64: how many arrived in the backward pass), `told_by` and `source`.

    A bucket has several rows in a step where several calls of `backward` follow one of DDP's forward passes: torch's
    ranges do not tell such passes apart.

    Buckets come from the engine's labels (`source` and `told_by` are `engine`), and those without labels from torch's
    DistributedDataParallel (`source` is `ddp`, see `evidence.ddp`): there a bucket is an all-reduce launched while a
    gradient is accumulated. Its gradients have no names, and its `index` follows those of the labels. `told_by` says
    whether they are known by their `sizes`, or assumed from their `order` of arrival; if neither is possible,
    `parameters` is empty and `told_by` is None. Where a Recorder labels one of several models, a step has buckets of
    both sources, and `passes`, `gradients` and the backward pass are each source's own.

    Empty if the trace shows no buckets, or device activity was not recorded. Raises `OverlaplabError` for an unknown
    rank or step.
    """
    integer_columns = dict.fromkeys((*_IDENTITY, *_TIMES, "bytes", "gradients"), "Int64")
    integer_columns |= {"index": "int64", "passes": "int64"}
    dtypes = {name: integer_columns.get(name, "object") for name in _COLUMNS}
    return table_of(rows_by_rank(run, selection, _trace_rows), dtypes)


def _trace_rows(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    labels, ran = engine_labels(trace), executions(trace)
    exposed_before = length_before(activity(trace).exposed_communication)
    labelled = _synchronising_passes(trace, labels) if any(label.word == "bucket_launch" for label in labels) else ()
    unlabelled = unlabelled_backwards(trace, ran)
    for step in steps:
        rows = [
            *chain.from_iterable(
                _label_rows(of_pass, backwards, step, ran, exposed_before)
                for of_pass, backwards in _last_passes(launched_in(labels, step), launched_in(labelled, step))
            ),
            *_ddp_rows(launched_in(unlabelled, step), step, ran, exposed_before),
        ]
        yield from sorted(rows, key=lambda row: int(row["launch_ns"]))


def _synchronising_passes(trace: Trace, labels: Sequence[Label]) -> Sequence[Span]:
    """The backward passes that send gradients: by label, else those of autograd's passes that launch a bucket."""
    backwards = [label for label in labels if label.word == "backward"]
    if backwards:
        return [label for label in backwards if label.fields["sync"] == "1"]
    launches = [label.start_ns for label in labels if label.word == "bucket_launch"]
    passes = autograd_passes(trace)
    return [each for each in passes if bisect_left(launches, each.start_ns) < bisect_right(launches, each.end_ns)]


def _last_passes(
    labels: Sequence[Label], backwards: Sequence[Span]
) -> Iterator[tuple[Sequence[Label], Sequence[Span]]]:
    """Yield for each model of a step the labels of its last backward pass, and all its passes: those that launch one of
    that pass's buckets.
    """
    starts = [label.start_ns for label in labels]
    borders = [label.start_ns for label in labels if label.word == "backward"] or [each.start_ns for each in backwards]
    labels_of_pass = []
    for backward in backwards:
        end_ns = min((border for border in borders if border > backward.start_ns), default=inf)
        labels_of_pass.append(labels[bisect_left(starts, backward.start_ns) : bisect_left(starts, end_ns)])
    buckets_of_pass = [
        {label.fields["bucket"] for label in each if label.word == "bucket_launch"} for each in labels_of_pass
    ]
    for place, buckets in enumerate(buckets_of_pass):
        if buckets and not buckets & set().union(*buckets_of_pass[place + 1 :]):
            passes = [each for each, sent in zip(backwards, buckets_of_pass, strict=True) if sent & buckets]
            yield labels_of_pass[place], passes


def _label_rows(
    labels: Sequence[Label],
    backwards: Sequence[Span],
    step: Window,
    ran: Executions,
    exposed_before: Callable[[int], int],
) -> Iterator[dict[str, Any]]:
    """The buckets of one pass's labels, which must be in order of time; that pass is the last of `backwards`.

    A bucket holds of each of its parameters the last gradient that no bucket took before, and a launch sends the bucket
    that was ready last under its index.
    """
    gradients = sum(len(_arrived_parameters(label)) for label in labels)
    common = _shared_columns(step, backwards, ran) | {"gradients": gradients, "source": "engine"}
    number = 0
    arrived: dict[str, _Arrival] = {}  # by parameter, of a gradient that no bucket took
    ready: dict[str, tuple[Label, dict[str, _Arrival | None]]] = {}
    for label in labels:
        for name in _arrived_parameters(label):
            number += 1
            arrived[name] = _Arrival(number, ran.done_ns(label.start_ns))
        if label.word == "bucket_ready":
            names = label_list(label.fields["parameters"])
            ready[label.fields["bucket"]] = label, {name: arrived.pop(name, None) for name in names}
        if label.word != "bucket_launch":
            continue
        completed, held = ready.pop(label.fields["bucket"], (None, {}))
        ready_ns = None if completed is None else completed.start_ns
        yield {
            **common,
            "index": int(label.fields["bucket"]),
            "bytes": None if completed is None else int(completed.fields["bytes"]),
            "parameters": tuple(held),
            "gradient_ready_ns": tuple(gradient and gradient.at_ns - step.start_ns for gradient in held.values()),
            "last_parameter": _latest_parameter(held),
            "arrivals": tuple(gradient and gradient.number for gradient in held.values()),
            "shapes": (None,) * len(held),
            "told_by": None if completed is None else "engine",
            **_times(ready_ns, label, ran.communication_span(label), step, ran, exposed_before),
        }


def _arrived_parameters(label: Label) -> Sequence[str]:
    """The parameters whose gradient this label says has arrived."""
    return label_list(label.fields["parameter"]) if label.word == "gradient_ready" else ()


def _ddp_rows(
    backwards: Sequence[DDPBackward], step: Window, ran: Executions, exposed_before: Callable[[int], int]
) -> Iterator[dict[str, Any]]:
    if not backwards:
        return
    common = _shared_columns(step, backwards, ran) | {"gradients": backwards[-1].gradients, "source": "ddp"}
    for bucket in backwards[-1].buckets:
        held = bucket.gradients
        yield {
            **common,
            "index": bucket.index,
            "bytes": bucket.launch.bytes,
            "parameters": (None,) * len(held),
            "gradient_ready_ns": tuple(ran.done_ns(gradient.at_ns) - step.start_ns for gradient in held),
            "last_parameter": None,
            "arrivals": tuple(gradient.number for gradient in held),
            "shapes": tuple(gradient.shape for gradient in held),
            "told_by": bucket.told_by,
            **_times(bucket.ready_ns, bucket.launch, bucket.launch.ran, step, ran, exposed_before),
        }


def _shared_columns(step: Window, backwards: Sequence[Span], ran: Executions) -> dict[str, Any]:
    """What all buckets of a step and source share, from the last of these backward passes."""
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
    exposed_before: Callable[[int], int],
) -> dict[str, Any]:
    """A bucket's times, from when it was ready on the host, and when its collective ran."""
    return {
        "ready_ns": None if ready_ns is None else ran.done_ns(ready_ns) - step.start_ns,
        "launch_ns": launch.start_ns - step.start_ns,
        "start_ns": bounds and bounds[0] - step.start_ns,
        "end_ns": bounds and bounds[1] - step.start_ns,
        "exposed_ns": bounds and exposed_before(max(bounds)) - exposed_before(bounds[0]),
    }


def _latest_parameter(held: dict[str, _Arrival | None]) -> str | None:
    numbers = [(gradient.number, name) for name, gradient in held.items() if gradient is not None]
    return max(numbers)[1] if numbers else None


def sends_halves(run: Run) -> bool:
    """Whether gradients or parameters are sent in types of 16 bits, or compressed."""
    return any(map(has_sent_halves, run.traces))


def averages_by_hand(run: Run) -> bool:
    """Whether the loop averages gradients by all-reduces of its own (`evidence.by_hand`), on every rank."""
    return bool(run.traces) and all(map(averaged_by_hand, run.traces))
