"""Buckets of torch's DistributedDataParallel in any trace (torch/csrc/distributed/c10d/reducer.cpp).

DDP does not name its buckets. Its hooks run when autograd accumulates a gradient, and the hook that completes a bucket
launches the bucket's all-reduce. So a bucket is an all-reduce launched inside `AccumulateGrad`. It holds the gradients
that arrived last, if their sizes add up to what it sent. Where sizes are not recorded, it is assumed to hold those that
arrived since the previous bucket: after its first step DDP orders its buckets by arrival.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import prod
from typing import Literal

import numpy as np
import pandas as pd

from overlaplab.events import Trace, matching, step_windows
from overlaplab.evidence.arguments import around
from overlaplab.evidence.executions import Executions
from overlaplab.evidence.labels import Span
from overlaplab.evidence.launches import Launch, spans_of
from overlaplab.vocabulary import ANNOTATION_CATEGORIES

_FORWARD = "DistributedDataParallel.forward"
_REDUCER = ("torch.distributed.ddp.reducer::", "torch::distributed::reducer::")
_EVALUATE = "autograd::engine::evaluate_function: "
_ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One gradient, as autograd accumulated it."""

    number: int
    """Its place in the order of arrival in the backward pass, from 1."""
    at_ns: int
    """When it had been accumulated, in absolute host ns."""
    shape: tuple[int, ...] | None
    """None where shapes are not recorded."""
    hooks_end_ns: int
    """When the hooks that followed were over, in absolute host ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPBucket:
    """One bucket in one backward pass."""

    launch: Launch
    ready_ns: int | None
    """When its last gradient was added, in absolute host ns; None if an earlier bucket held it up."""
    gradients: tuple[Gradient, ...] = ()
    """Its gradients; empty where unknown."""
    told_by: Literal["sizes", "order"] | None = None
    """How its gradients are known; None where they are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPBackward(Span):
    """A backward pass that sent gradients, from the start of autograd's first function to the end of its last."""

    buckets: tuple[DDPBucket, ...]
    """In order of launch."""
    gradients: int
    """How many arrived."""
    forwards: int
    """Of how many forward passes of DDP: more than one where several modules, or a module twice, have one backward
    pass.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accumulation(Span):
    """Autograd's range around one gradient's accumulation and the hooks that follow."""

    accumulated_ns: int
    shape: tuple[int, ...] | None
    launched: tuple[Launch, ...]


def ddp_backwards(trace: Trace, ran: Executions) -> tuple[DDPBackward, ...]:
    """The backward passes that sent gradients, in order of time; none without DDP.

    Passes are separated by a forward pass of DDP or the start of a step. Those under `no_sync` send nothing.
    """
    events = trace.events
    annotated = matching(events["category"], ANNOTATION_CATEGORIES.__contains__)
    if not (annotated & matching(events["name"], lambda name: name == _FORWARD or name.startswith(_REDUCER))).any():
        return ()
    borders, evaluated = _evaluated(trace)
    begun = _forwards(trace)
    extents = evaluated.groupby(["number", "thread"], as_index=False).agg({"start_ns": "min", "end_ns": "max"})
    bounds = {(number, thread): (start, end) for number, thread, start, end in extents.to_numpy().tolist()}
    found = []
    seen = 0
    for number, group in groupby(_accumulations(trace, ran), lambda own: bisect_right(borders, own.start_ns)):
        own = list(group)
        before, seen = seen, bisect_right(begun, own[0].start_ns)
        if not any(accumulation.launched for accumulation in own):
            continue
        thread = own[0].thread
        start, end = bounds.get((number, thread), (own[0].start_ns, own[-1].end_ns))
        found.append(
            DDPBackward(
                start_ns=start,
                end_ns=end,
                thread=thread,
                buckets=tuple(_buckets(own)),
                gradients=len(own),
                forwards=seen - before,
            )
        )
    return tuple(found)


def _forwards(trace: Trace) -> list[int]:
    """When each forward pass of DDP began, in order."""
    events = trace.events
    annotated = matching(events["category"], ANNOTATION_CATEGORIES.__contains__)
    forward = annotated & matching(events["name"], _FORWARD.__eq__)
    return sorted(events["ts_ns"].to_numpy()[forward].tolist())


def autograd_passes(trace: Trace) -> tuple[Span, ...]:
    """The backward passes by autograd's own ranges, in order of time, on any threads.

    They are separated as in `ddp_backwards`.
    """
    extents = _evaluated(trace)[1].groupby("number").agg({"start_ns": "min", "end_ns": "max", "thread": "first"})
    return tuple(Span(start_ns=start, end_ns=end, thread=thread) for start, end, thread in extents.to_numpy().tolist())


def _evaluated(trace: Trace) -> tuple[list[int], pd.DataFrame]:
    """The moments between backward passes, in order; and autograd's functions, with the `number` of their pass."""
    events = trace.events
    annotated = matching(events["category"], ANNOTATION_CATEGORIES.__contains__)
    borders = sorted({*_forwards(trace), *(window.host_start_ns for window in step_windows(trace))})
    evaluated = spans_of(trace, annotated & matching(events["name"], lambda name: name.startswith(_EVALUATE)))
    return borders, evaluated.assign(number=np.searchsorted(borders, evaluated["start_ns"], side="right"))


def _accumulations(trace: Trace, ran: Executions) -> Iterator[_Accumulation]:
    """In order of time: the range `evaluate_function` around the hooks, or without it `AccumulateGrad`."""
    events = trace.events
    annotated = matching(events["category"], ANNOTATION_CATEGORIES.__contains__)
    inner = spans_of(trace, annotated & matching(events["name"], _ACCUMULATE.__eq__))
    outer = spans_of(trace, annotated & matching(events["name"], (_EVALUATE + _ACCUMULATE).__eq__))
    outer = outer if len(outer) else inner
    sent = [launch for launch in ran.launches if _is_bucket(launch)]
    threads, starts = (
        np.array([getattr(launch, name) for launch in sent], np.int64) for name in ("thread", "start_ns")
    )
    if not (around(outer, threads, starts) >= 0).any():
        return  # spare the work: none of them launches a bucket
    both = pd.merge_asof(
        outer,
        inner.assign(at_ns=inner["end_ns"]),
        on="start_ns",
        by="thread",
        direction="forward",
        suffixes=("", "_in"),
    )
    within = (both["at_ns"] <= both["end_ns"]).to_numpy()  # else the accumulation belongs to a later range
    inputs = trace.inputs
    shapes = dict(zip(inputs["event"].tolist(), inputs["shapes"], strict=True))
    absent = set(inputs.loc[inputs["types"] == '[""]', "event"])  # parameters without a gradient
    columns = (both[name].tolist() for name in ("start_ns", "end_ns", "thread", "at_ns", "event_in"))
    for (start, end, thread, at, event), known in zip(zip(*columns, strict=True), within.tolist(), strict=True):
        if known and event in absent:
            continue
        span = Span(start_ns=start, end_ns=end, thread=thread)
        launched = tuple(launch for launch in ran.inside(span) if launch.thread == thread and _is_bucket(launch))
        yield _Accumulation(
            start_ns=start,
            end_ns=end,
            thread=thread,
            accumulated_ns=int(at) if known else min((launch.start_ns for launch in launched), default=end),
            shape=_shape(shapes.get(int(event))) if known else None,
            launched=launched,
        )


def _is_bucket(launch: Launch) -> bool:
    """Whether it sends gradients. The flags of `find_unused_parameters`, sent after the last bucket, are integers."""
    return launch.kind in ("all_reduce", None) and not (launch.dtype or "").startswith(("int", "uint", "bool"))


def _shape(dimensions: str | None) -> tuple[int, ...] | None:
    """The shape of the one tensor that `AccumulateGrad` takes, from the text of `Input Dims`: `[[1000, 512]]`."""
    try:
        shape = json.loads(dimensions or "[]")[0]
        return tuple(int(size) for size in shape)
    except (ValueError, IndexError, KeyError, TypeError):
        return None


def _buckets(accumulations: Sequence[_Accumulation]) -> Iterator[DDPBucket]:
    """The buckets that the accumulations of one backward pass launched.

    Gradients wait in a pool until a bucket takes them. The first bucket that an accumulation launches holds the
    gradient just accumulated, and so the last ones of the pool, as many as its size implies. Buckets launched right
    after it were ready before, so their gradients are unknown.
    """
    pool: list[Gradient] = []
    owed = 0  # elements in the pool that belong to buckets already launched
    for number, own in enumerate(accumulations, start=1):
        gradient = Gradient(number=number, at_ns=own.accumulated_ns, shape=own.shape, hooks_end_ns=own.end_ns)
        pool.append(gradient)
        sized = all(gradient.shape is not None for gradient in pool)
        for launch in own.launched:
            taken = 0
            if not sized or launch.elements is None:
                sized = False
                taken = len(pool) if len(own.launched) == 1 else 0
            else:
                taken = _last_of(pool, launch.elements) if launch is own.launched[0] else 0
                owed += 0 if taken else launch.elements
            yield DDPBucket(
                launch=launch,
                ready_ns=launch.start_ns if launch is own.launched[0] else None,
                gradients=tuple(pool[len(pool) - taken :]),
                told_by=("sizes" if sized else "order") if taken else None,
            )
            del pool[len(pool) - taken :]
        if own.launched and (not sized or owed == sum(map(_elements, pool))):
            pool, owed = [], 0


def _last_of(pool: Sequence[Gradient], elements: int) -> int:
    """How many of the last gradients add up to so many elements; 0 if no number does."""
    held = accumulate(_elements(gradient) for gradient in reversed(pool))
    return next((count for count, total in enumerate(held, start=1) if total == elements), 0)


def _elements(gradient: Gradient) -> int:
    return prod(gradient.shape or ())
