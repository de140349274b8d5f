"""Buckets of torch's DistributedDataParallel in a trace of anybody's (torch/csrc/distributed/c10d/reducer.cpp).

DDP does not name its buckets. Its hooks run as autograd accumulates a gradient, and the one that completes a bucket
launches the bucket's all-reduce: so a bucket is an all-reduce launched inside `AccumulateGrad`. Which gradients it
holds is known where their sizes add up to what it sent. Where sizes are not recorded they are taken to be those that
arrived since the bucket before, since after its first step DDP orders its buckets by arrival.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Literal

import numpy as np
import pandas as pd

from overlaplab.analyses.executions import Executions
from overlaplab.analyses.labels import Span
from overlaplab.analyses.launches import Launch, spans_of
from overlaplab.events import Trace, matching
from overlaplab.vocabulary import ANNOTATION_CATEGORIES

__all__ = ["DDPBackward", "DDPBucket", "Gradient", "ddp_backwards"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPBucket:
    """One bucket in one backward pass."""

    launch: Launch
    ready_ns: int | None
    """When its last gradient was in it, in absolute host ns; None where it stood ready behind an earlier bucket."""
    gradients: tuple[Gradient, ...] = ()
    """Those in it; none where that is unknown."""
    told_by: Literal["sizes", "order"] | None = None
    """How it is known which gradients it holds; None where it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPBackward(Span):
    """A backward pass that sent gradients, from the start of autograd's first function to the end of its last."""

    buckets: tuple[DDPBucket, ...]
    """In order of launch."""
    gradients: int
    """How many arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accumulation(Span):
    """Autograd's range around one gradient's accumulation and the hooks that follow."""

    accumulated_ns: int
    shape: tuple[int, ...] | None
    launched: tuple[Launch, ...]


def ddp_backwards(trace: Trace, ran: Executions) -> tuple[DDPBackward, ...]:
    """The backward passes that sent gradients, in order of time; none where DDP is not at work.

    Between two backward passes lies one of DDP's forward passes. Those under `no_sync` send nothing.
    """
    events = trace.events
    annotated = events["category"].isin(ANNOTATION_CATEGORIES).to_numpy()
    if not (annotated & matching(events["name"], lambda name: name == _FORWARD or name.startswith(_REDUCER))).any():
        return ()
    spans = spans_of(trace)[annotated]
    names = events["name"][annotated]
    forwards = np.unique(spans.loc[matching(names, lambda name: name == _FORWARD), "start_ns"].to_numpy()).tolist()
    evaluated = spans[matching(names, lambda name: name.startswith(_EVALUATE))]
    found = []
    for number, group in groupby(_accumulations(trace, ran), lambda own: bisect_right(forwards, own.start_ns)):
        own = list(group)
        if not any(accumulation.launched for accumulation in own):
            continue
        first = forwards[number - 1] if number else own[0].start_ns
        last = forwards[number] if number < len(forwards) else own[-1].end_ns
        near = evaluated[(evaluated["lane"] == own[0].lane) & evaluated["start_ns"].between(first, last)]
        found.append(
            DDPBackward(
                start_ns=int(near["start_ns"].min()) if len(near) else own[0].start_ns,
                end_ns=int(near["end_ns"].max()) if len(near) else own[-1].end_ns,
                lane=own[0].lane,
                buckets=tuple(_buckets(own)),
                gradients=len(own),
            )
        )
    return tuple(found)


def _accumulations(trace: Trace, ran: Executions) -> Iterator[_Accumulation]:
    """In order of time. The range around the hooks is `evaluate_function`'s; without one, the accumulation's own."""
    events, spans = trace.events, spans_of(trace).assign(event=np.arange(len(trace.events)))
    annotated = events["category"].isin(ANNOTATION_CATEGORIES).to_numpy()
    inner = spans[annotated & matching(events["name"], lambda name: name == _ACCUMULATE)]
    outer = spans[annotated & matching(events["name"], lambda name: name == _EVALUATE + _ACCUMULATE)]
    outer = outer if len(outer) else inner
    both = pd.merge_asof(
        outer, inner.assign(at_ns=inner["end_ns"]), on="start_ns", by="lane", direction="forward", suffixes=("", "_in")
    )
    within = (both["at_ns"] <= both["end_ns"]).to_numpy()  # the first accumulation after the start may be another's
    shapes = dict(zip(trace.inputs["event"].tolist(), trace.inputs["shapes"], strict=True))
    columns = (both[name].tolist() for name in ("start_ns", "end_ns", "lane", "at_ns", "event_in"))
    for (start, end, lane, at, event), known in zip(zip(*columns, strict=True), within.tolist(), strict=True):
        span = Span(start_ns=start, end_ns=end, lane=lane)
        launched = tuple(launch for launch in ran.inside(span) if launch.lane == lane and _is_bucket(launch))
        yield _Accumulation(
            start_ns=start,
            end_ns=end,
            lane=lane,
            accumulated_ns=int(at) if known else min((launch.start_ns for launch in launched), default=end),
            shape=_shape(shapes.get(int(event))) if known else None,
            launched=launched,
        )


def _is_bucket(launch: Launch) -> bool:
    """Not the flags of `find_unused_parameters`, which follow the last bucket as whole numbers."""
    return launch.kind in ("all_reduce", None) and not (launch.dtype or "").startswith(("int", "uint", "bool"))


def _shape(dimensions: str | None) -> tuple[int, ...] | None:
    """Of the one tensor that `AccumulateGrad` takes, from the text of `Input Dims`: `[[1000, 512]]`."""
    try:
        shape = json.loads(dimensions or "[]")[0]
        return tuple(int(size) for size in shape)
    except (ValueError, IndexError, KeyError, TypeError):
        return None


def _buckets(accumulations: Sequence[_Accumulation]) -> Iterator[DDPBucket]:
    """The buckets that these accumulations, one backward pass's, launched.

    Gradients wait in a pool until what was launched accounts for them.
    """
    pool: list[Gradient] = []
    launched: list[Launch] = []  # since the pool was last empty
    for number, own in enumerate(accumulations, start=1):
        pool.append(Gradient(number=number, at_ns=own.accumulated_ns, shape=own.shape))
        for launch in own.launched:
            launched.append(launch)
            told_by = _told_by(pool, launched)
            if told_by == "order" and len(own.launched) > 1:  # the later ones stood ready behind the first
                told_by = None
            yield DDPBucket(
                launch=launch,
                ready_ns=launch.start_ns if launch is own.launched[0] else None,
                gradients=tuple(pool) if told_by and len(launched) == 1 else (),
                told_by=told_by if len(launched) == 1 else None,
            )
            if told_by == "sizes":
                pool, launched = [], []
        if own.launched and _told_by(pool, launched) == "order":
            pool, launched = [], []


def _told_by(pool: Sequence[Gradient], launched: Sequence[Launch]) -> Literal["sizes", "order"] | None:
    """`sizes` where the gradients and the collectives are of one size, `order` where either's is not recorded."""
    held = [None if gradient.shape is None else prod(gradient.shape) for gradient in pool]
    sent = [launch.elements for launch in launched]
    if None in held or None in sent:
        return "order"
    return "sizes" if sum(map(int, held)) == sum(map(int, sent)) else None  # type: ignore[arg-type]
