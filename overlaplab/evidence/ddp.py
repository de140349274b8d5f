"""Buckets of torch's DistributedDataParallel in any trace (torch/csrc/distributed/c10d/reducer.cpp).

DDP does not name its buckets. Its hooks run when autograd accumulates a gradient, and the hook that completes a bucket
launches the bucket's all-reduce. So a bucket is an all-reduce launched inside `AccumulateGrad`. It holds the gradients
that arrived last, if their sizes add up to what it sent. Where sizes are not recorded, it is assumed to hold those that
arrived since the previous bucket: after its first step DDP orders its buckets by arrival.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby
from math import prod
from typing import Literal

import numpy as np
import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.events import Trace, host_ranges, once_per_trace, step_windows
from overlaplab.evidence.call_metadata import enclosing_rows
from overlaplab.evidence.executions import Executions
from overlaplab.evidence.labels import Ordered, Ranges, Span, engine_labels
from overlaplab.evidence.launches import LaunchSpan, event_spans
from overlaplab.intervals import Integers
from overlaplab.vocabulary import DATA_LOADING, label_list

_FORWARD = "DistributedDataParallel.forward"
_REDUCER = ("torch.distributed.ddp.reducer::", "torch::distributed::reducer::")
_EVALUATE = "autograd::engine::evaluate_function: "
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_FIRST_GRADIENT = "aten::detach"
"""What `AccumulateGrad` does with a parameter's first gradient."""
_FURTHER_GRADIENT = "aten::add_"
"""What it does with further ones."""
_UPDATE = "Optimizer.step#"


class Gradient(Struct, frozen=True, kw_only=True):
    """One gradient, as autograd accumulated it."""

    number: int
    """Its place in the order of arrival in the backward pass, from 1."""
    at_ns: int
    """When it had been accumulated, in absolute host ns."""
    shape: tuple[int, ...] | None
    """None where shapes are not recorded."""
    hooks_end_ns: int
    """When the hooks that followed were over, in absolute host ns."""

    @property
    def elements(self) -> int:
        """How many elements it has; 1 where its shape is unknown."""
        return prod(self.shape or ())

    @property
    def name(self) -> str:
        """By its order of arrival: `gradient 3 (512 × 64)`."""
        return f"gradient {self.number} ({' × '.join(map(str, self.shape or ()))})"


class DDPBucket(Struct, frozen=True, kw_only=True):
    """One bucket in one backward pass."""

    index: int
    """Its place in the order of launches, from 0, or in `unlabelled_backwards` after the labels' last bucket. If
    several models share an update, the second one counts on.
    """
    launch: LaunchSpan
    ready_ns: int | None
    """When its last gradient was added, in absolute host ns; None if an earlier bucket held it up."""
    gradients: tuple[Gradient, ...] = ()
    """Its gradients; empty where unknown."""
    told_by: Literal["sizes", "order"] | None = None
    """How its gradients are known; None where they are not."""
    least_elements: int | None = None
    """Elements of the gradient that completed it, so the fewest it holds. None where unknown."""


class DDPBackward(Span, frozen=True, kw_only=True):
    """A backward pass that sent gradients, from the start of autograd's first function to the end of its last."""

    buckets: tuple[DDPBucket, ...]
    """In order of launch."""
    gradients: int
    """How many arrived."""
    forwards: int
    """Forward passes of DDP since the pass before: several of several modules, or of one that ran twice."""
    repeated: bool
    """Whether it is several calls of `backward` after one forward pass: an optimizer's step begins between its buckets,
    or labels launch one of them twice.
    """


class _Accumulation(Span, frozen=True, kw_only=True):
    """Autograd's range around one gradient's accumulation and the hooks that follow."""

    accumulated_ns: int
    shape: tuple[int, ...] | None
    launched: tuple[LaunchSpan, ...]
    is_first: bool
    """Whether the parameter had no gradient before."""

    def gradient(self, number: int) -> Gradient:
        return Gradient(number=number, at_ns=self.accumulated_ns, shape=self.shape, hooks_end_ns=self.end_ns)


def ddp_backwards(trace: Trace, ran: Executions, *, engine: bool = False) -> tuple[DDPBackward, ...]:
    """The backward passes that sent gradients, in order of time; none in a trace without DDP.

    A forward pass of DDP or the start of a step ends a pass. Those under `no_sync` send nothing. With `engine`, buckets
    that the engine itself launches count as DDP's.
    """
    launches = _gradient_launches(trace, ran)
    if engine and not launches and any(label.word == "bucket_launch" for label in engine_labels(trace)):
        launches = [launch for launch in ran.launches if is_bucket(launch)]
    return _backward_passes(trace, _accumulations(trace, launches), first_index=0)


def unlabelled_backwards(trace: Trace, ran: Executions) -> tuple[DDPBackward, ...]:
    """The backward passes of `ddp_backwards`, with only those gradients and buckets that no label names.

    The engine's Recorder labels one of a loop's models; DDP sends the gradients of the others as well.
    """
    labels = engine_labels(trace)
    launching = [label for label in labels if label.word == "bucket_launch"]
    if not launching:
        return ddp_backwards(trace, ran)
    around_launches = Ordered(launching, lambda label: label.thread)
    launches = _gradient_launches(trace, ran)
    launches = [each for each in launches if around_launches.range_around(each.thread, each.start_ns) is None]
    ready = [label_list(label.fields["parameters"]) for label in labels if label.word == "bucket_ready"]
    in_buckets = {*chain.from_iterable(ready)}
    arrived = [label for label in labels if label.word == "gradient_ready"]
    arrived = [label for label in arrived if in_buckets.intersection(label_list(label.fields["parameter"]))]
    arrivals = Ordered(arrived, lambda label: label.thread)
    accumulations = (
        each
        for each in _accumulations(trace, launches)
        if not arrivals.starting_in(each.thread, each.start_ns, each.end_ns)
        and not around_launches.starting_in(each.thread, each.start_ns, each.end_ns)
    )
    first_index = 1 + max(int(label.fields["bucket"]) for label in launching)
    return _backward_passes(trace, accumulations, first_index=first_index)


def _gradient_launches(trace: Trace, ran: Executions) -> list[LaunchSpan]:
    """The all-reduces that may send gradients, in order of launch; none in a trace without DDP."""
    return [launch for launch in ran.launches if is_bucket(launch)] if is_with_ddp(trace) else []


def _backward_passes(
    trace: Trace, accumulations: Iterable[_Accumulation], *, first_index: int
) -> tuple[DDPBackward, ...]:
    """The passes of these accumulations, which are in order of time; the first bucket of a model has this index."""
    accumulations = list(accumulations)
    if not accumulations:
        return ()
    borders, evaluated = _numbered_functions(trace)
    forward_starts = [forward.start_ns for forward in forward_passes(trace)]
    extents = evaluated.groupby(["number", "thread"], as_index=False).agg({"start_ns": "min", "end_ns": "max"})
    bounds = {(number, thread): (start, end) for number, thread, start, end in extents.to_numpy().tolist()}
    updates = [update.start_ns for update in optimizer_steps(trace)]
    labelled = [label for label in engine_labels(trace) if label.word == "bucket_launch"]
    steps = [window.host_start_ns for window in step_windows(trace)]
    backwards: list[DDPBackward] = []
    forwards_before = index = 0
    begun_before: tuple[int, int] | None = None  # how many steps and updates had begun before the last pass
    for number, group in groupby(accumulations, lambda accumulation: bisect_right(borders, accumulation.start_ns)):
        of_pass = list(group)
        forwards = bisect_right(forward_starts, of_pass[0].start_ns) - forwards_before
        forwards_before += forwards
        if not any(accumulation.launched for accumulation in of_pass):
            continue
        thread = of_pass[0].thread
        start, end = bounds.get((number, thread), (of_pass[0].start_ns, of_pass[-1].end_ns))
        launched = [launch.start_ns for accumulation in of_pass for launch in accumulation.launched]
        updated = bisect_right(updates, launched[0]) < bisect_right(updates, launched[-1])
        indices = [label.fields["bucket"] for label in labelled if start <= label.start_ns <= end]
        begun = (bisect_right(steps, start), bisect_right(updates, start))
        # otherwise it is a further model's under the same update, and counts on
        if begun != begun_before or not any(accumulation.is_first for accumulation in of_pass):
            index = first_index
        begun_before = begun
        buckets = tuple(_buckets(of_pass, index))
        index += len(buckets)
        backwards.append(
            DDPBackward(
                start_ns=start,
                end_ns=end,
                thread=thread,
                buckets=buckets,
                gradients=len(of_pass),
                forwards=forwards,
                repeated=updated or len(set(indices)) < len(indices),
            )
        )
    return tuple(backwards)


def _named_ranges(trace: Trace, chosen: Callable[[str], bool]) -> pd.DataFrame:
    """The host's ranges with such a name, as `event_spans`."""
    return event_spans(trace, host_ranges(trace.events, chosen))


def autograd_passes(trace: Trace) -> tuple[Span, ...]:
    """The backward passes by autograd's own ranges, in order of time, on any threads.

    They are separated as in `ddp_backwards`.
    """
    functions = _numbered_functions(trace)[1]
    return join_ranges(functions, functions["number"])


def join_ranges(ranges: pd.DataFrame, number: pd.Series | Integers) -> tuple[Span, ...]:
    """For each number, in order, one range from the first start to the last end of those that have it."""
    return _spans(ranges.groupby(number).agg({"start_ns": "min", "end_ns": "max", "thread": "first"}))


@once_per_trace
def forward_passes(trace: Trace) -> tuple[Span, ...]:
    """DDP's forward passes, in order of time."""
    return _spans(_named_ranges(trace, _FORWARD.__eq__))


def data_loadings(trace: Trace) -> tuple[Span, ...]:
    """Where a loop waits for its next batch, in order of time."""
    return _spans(_named_ranges(trace, lambda name: name.startswith(DATA_LOADING)))


def is_with_ddp(trace: Trace) -> bool:
    """Whether DDP's forward passes or its reducer have ranges."""
    return bool(len(_named_ranges(trace, lambda name: name == _FORWARD or name.startswith(_REDUCER))))


def is_with_fsdp1(trace: Trace) -> bool:
    """Whether FSDP's first version has ranges."""
    return bool(len(_named_ranges(trace, lambda name: name.startswith("FullyShardedDataParallel"))))


@once_per_trace
def optimizer_steps(trace: Trace) -> tuple[Span, ...]:
    """The optimizer's steps, as torch names them, in order of time; one inside another optimizer's step is left out."""
    spans = _spans(_named_ranges(trace, lambda name: name.startswith(_UPDATE)))
    ends_ns = accumulate((span.end_ns for span in spans), max, initial=0)
    return tuple(span for span, before_ns in zip(spans, ends_ns, strict=False) if span.start_ns >= before_ns)


def cut_after_passes(updates: Iterable[Ranges], passes: Iterable[Span]) -> Iterator[Ranges]:
    """The updates, each from the end of the last pass within it on: `Optimizer.step(closure)` runs passes, as in
    Lightning.
    """
    in_order = sorted(passes, key=lambda span: span.start_ns)
    starts = [span.start_ns for span in in_order]
    for update in updates:
        within = in_order[bisect_left(starts, update.start_ns) : bisect_left(starts, update.end_ns)]
        ends = [span.end_ns for span in within if span.end_ns <= update.end_ns]
        yield replace(update, start_ns=max([update.start_ns, *ends]))


def _spans(ranges: pd.DataFrame) -> tuple[Span, ...]:
    rows = ranges.sort_values("start_ns")[["start_ns", "end_ns", "thread"]].to_numpy().tolist()
    return tuple(Span(start_ns=start, end_ns=end, thread=thread) for start, end, thread in rows)


def autograd_functions(trace: Trace) -> pd.DataFrame:
    """The ranges in which autograd evaluates a function, as `event_spans`."""
    return _named_ranges(trace, lambda name: name.startswith(_EVALUATE))


def _numbered_functions(trace: Trace) -> tuple[list[int], pd.DataFrame]:
    """The moments between backward passes, in order; and autograd's functions, with the `number` of their pass."""
    forwards = {forward.start_ns for forward in forward_passes(trace)}
    borders = sorted(forwards | {window.host_start_ns for window in step_windows(trace)})
    evaluated = autograd_functions(trace)
    return borders, evaluated.assign(number=np.searchsorted(borders, evaluated["start_ns"], side="right"))


def all_gradients(trace: Trace, launches: Sequence[LaunchSpan]) -> tuple[Gradient, ...]:
    """The gradients of all backward passes, in order of time, numbered from 1 in each pass.

    `launches`, in order, may send them; those within a gradient's hooks come after it.
    """
    starts = [span.start_ns for span in autograd_passes(trace)]
    gradients: list[Gradient] = []
    of_pass, number = 0, 0
    for each in _every_accumulation(trace, launches):
        before, of_pass = of_pass, bisect_right(starts, each.start_ns)
        number = number + 1 if of_pass == before else 1
        gradients.append(each.gradient(number))
    return tuple(gradients)


def _accumulations(trace: Trace, launches: Sequence[LaunchSpan]) -> Iterator[_Accumulation]:
    """Those of `_every_accumulation`, if any of `launches` is made within one; else none."""
    if not launches:
        return
    ranges = _accumulation_ranges(trace)[1]
    places = np.array([(launch.thread, launch.start_ns) for launch in launches], np.int64)
    if (enclosing_rows(ranges, places[:, 0], places[:, 1]) >= 0).any():
        yield from _every_accumulation(trace, launches)


def _accumulation_ranges(trace: Trace) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`AccumulateGrad`, and what is around it and the hooks: `evaluate_function`, where there is one."""
    inner = _named_ranges(trace, _ACCUMULATE.__eq__)
    outer = _named_ranges(trace, (_EVALUATE + _ACCUMULATE).__eq__)
    return inner, outer if len(outer) else inner


def _every_accumulation(trace: Trace, launches: Sequence[LaunchSpan]) -> Iterator[_Accumulation]:
    """Yield each accumulation in order of time, with those of `launches`, which are in order, made within it."""
    inner, outer = _accumulation_ranges(trace)
    inner = inner.assign(at_ns=inner["end_ns"].astype("Int64"))  # floats, where some are missing, are not exact
    both = pd.merge_asof(outer, inner, on="start_ns", by="thread", direction="forward", suffixes=("", "_in"))
    is_within = both["at_ns"] <= both["end_ns"]  # else the accumulation belongs to a later range
    within = is_within.to_numpy(bool, na_value=False)
    inputs = trace.inputs
    shapes = dict(zip(inputs["event"].tolist(), inputs["shapes"], strict=True))
    absent = set(inputs.loc[inputs["types"] == '[""]', "event"])  # parameters without a gradient
    columns = (both[name].tolist() for name in ("start_ns", "end_ns", "thread", "at_ns", "event_in"))
    by_thread = Ordered(launches, lambda launch: launch.thread)
    makes, adds = (
        Ordered(_spans(_named_ranges(trace, name.__eq__)), lambda span: span.thread)
        for name in (_FIRST_GRADIENT, _FURTHER_GRADIENT)
    )
    for (start, end, thread, at, event), has_inner in zip(zip(*columns, strict=True), within.tolist(), strict=True):
        if has_inner and event in absent:
            continue
        launched = tuple(by_thread.starting_in(thread, start, end))
        # A hook only launches what has been accumulated; in 2021 hooks ran inside `AccumulateGrad`.
        accumulated = min([int(at) if has_inner else end, *(launch.start_ns for launch in launched)])
        yield _Accumulation(
            start_ns=start,
            end_ns=end,
            thread=thread,
            accumulated_ns=accumulated,
            shape=_shape(shapes.get(int(event))) if has_inner else None,
            launched=launched,
            is_first=bool(makes.starting_in(thread, start, accumulated))
            and not adds.starting_in(thread, start, accumulated),
        )


def is_bucket(launch: LaunchSpan) -> bool:
    """Whether it sends gradients. The flags of `find_unused_parameters`, sent after the last bucket, are integers."""
    return launch.kind in ("all_reduce", None) and not (launch.dtype or "").startswith(("int", "uint", "bool"))


def _shape(dimensions: str | None) -> tuple[int, ...] | None:
    """The shape of the one tensor that `AccumulateGrad` takes, from the text of `Input Dims`: `[[1000, 512]]`."""
    try:
        shape = json.loads(dimensions or "[]")[0]
        return tuple(int(size) for size in shape)
    except (ValueError, IndexError, KeyError, TypeError):
        return None


def _buckets(accumulations: Sequence[_Accumulation], first_index: int) -> Iterator[DDPBucket]:
    """The buckets that the accumulations of one backward pass launched.

    Gradients wait in a pool until a bucket takes them. The first bucket that an accumulation launches holds the
    gradient just accumulated, and so the last ones of the pool, as many as its size implies. If no number of them adds
    up to it, the bucket holds that gradient and others that are unknown. Buckets launched right after it were ready
    before, so their gradients are unknown.
    """
    pool: list[Gradient] = []
    owed = 0  # elements in the pool that belong to buckets already launched
    index = first_index
    for number, accumulation in enumerate(accumulations, start=1):
        gradient = accumulation.gradient(number)
        pool.append(gradient)
        sized = all(pooled.shape is not None for pooled in pool)
        for place, launch in enumerate(accumulation.launched):
            count = 0
            # the first accumulation may launch only buckets without used parameters
            completes = place == 0 and number > 1
            if not sized or launch.elements is None:
                sized = False
                count = len(pool) if len(accumulation.launched) == 1 else 0
            else:
                count = _count_last(pool, launch.elements) if place == 0 else 0
                owed += 0 if count else launch.elements
            yield DDPBucket(
                index=index,
                launch=launch,
                ready_ns=launch.start_ns if place == 0 else None,
                gradients=tuple(pool[len(pool) - count :]),
                told_by=("sizes" if sized else "order") if count else None,
                least_elements=gradient.elements if sized and completes else None,
            )
            index += 1
            del pool[len(pool) - count :]
            if sized and completes and count == 0:  # at least the gradient just accumulated leaves the pool
                owed -= pool.pop().elements
        if accumulation.launched and (not sized or owed == sum(each.elements for each in pool)):
            pool, owed = [], 0


def _count_last(pool: Sequence[Gradient], elements: int) -> int:
    """How many of the last gradients add up to so many elements; 0 if no number does."""
    totals = accumulate(gradient.elements for gradient in reversed(pool))
    return next((count for count, total in enumerate(totals, start=1) if total == elements), 0)
