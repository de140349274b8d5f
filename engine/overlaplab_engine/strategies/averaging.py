"""Gradients travel in buckets, each as soon as it is full, while the backward pass goes on.

Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704), §3.2: bucketing (3.2.2), overlap by hooks in one order on all
ranks (3.2.3), accumulation (3.2.4); §4.2.3: the bitmap of used parameters; §6.2.1: buckets in the order of arrival.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.base import Options, Strategy
from overlaplab_engine.strategies.gradients.buckets import OrderedLauncher
from overlaplab_engine.strategies.gradients.hooks import after_accumulation


class InBuckets(Strategy):
    """Hooks mark gradients ready; a full bucket's all-reduce is launched at once; one wait after the backward pass.

    At first buckets hold parameters in reverse order, as gradients are expected. After the first synchronised backward
    pass they are rebuilt, once, in the order in which rank 0's gradients arrived.
    """

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        self._arrivals: list[int] | None = []  # None once the buckets are rebuilt
        self._build(list(reversed(range(len(self.parameters)))))
        for i, parameter in enumerate(self.parameters):
            after_accumulation(parameter, partial(self._take_gradient, i))

    # Building

    def _build(self, order: list[int]) -> None:
        keys = [(p.device, self.gradients.dtype(p)) for p in self.parameters]
        self._buckets = self._form_buckets(order, keys, self.options.caps)
        self._slots = {
            i: (index, view)
            for index, bucket in enumerate(self._buckets)
            for i, view in zip(bucket.members, bucket.views, strict=True)
        }
        self._launcher: OrderedLauncher[Work] = OrderedLauncher(len(self._buckets), self._launch)

    def _rebuild(self) -> None:
        """Form the buckets anew, once, in rank 0's order of arrival, what did not arrive last; gradients move along."""
        if self._arrivals is None:
            return
        self._build(self._agree_on_order(self._arrivals))
        self._arrivals = None
        for i, parameter in enumerate(self.parameters):
            if self.gradients.get(parameter) is not None:
                self.gradients.move(parameter, self._slots[i][1])

    @property
    def order(self) -> list[str] | None:
        """The parameters' names as they lie in the buckets, once these are rebuilt."""
        return None if self._arrivals is not None else [self.names[m] for b in self._buckets for m in b.members]

    def rebuild_as(self, order: list[str]) -> None:
        """Rebuild the buckets in another run's `order`, before there are any gradients."""
        number = {name: i for i, name in enumerate(self.names)}
        self._build([number[name] for name in order])
        self._arrivals = None

    # The backward pass

    def _take_gradient(self, i: int, parameter: torch.Tensor) -> None:
        index, view = self._slots[i]
        if self._sync and i not in self._buckets[index].missing:
            raise self._second_gradient_error(i)
        self.gradients.place(parameter, view, self.comm.prescale if self._sync else 1.0)
        if self._sync:
            if self._arrivals is not None:
                self._arrivals.append(i)
            self._mark_ready(i)

    def _mark_ready(self, i: int) -> None:
        index, _ = self._slots[i]
        bucket = self._buckets[index]
        bucket.missing.discard(i)
        if not bucket.missing:
            labels.instant(bucket.marks.ready)
            self._launcher.mark_ready(index)

    def _launch(self, index: int) -> Work:
        bucket = self._buckets[index]
        with bucket.marks.launch:
            return self._average(index, bucket.flat)

    def _average(self, index: int, flat: torch.Tensor) -> Work:
        """Launch the all-reduce of bucket `index`: prescaled gradients become their mean over the ranks, in place."""
        return self.comm.all_reduce_mean(flat)

    @torch.no_grad()
    def _finish(self) -> None:
        absent = self._count_missing_ready()
        with self._wait_label:
            for bucket, work in zip(self._buckets, self._launcher.handles, strict=True):
                work.wait()
                labels.instant(bucket.marks.done)
        if absent:
            self._take_others_gradients(absent)
        self._abandon()
        self._rebuild()

    def _count_missing_ready(self) -> list[int]:
        """Count ready what did not arrive; returns the parameters that this rank has no gradient for."""
        absent = []
        for bucket in self._buckets:
            for k, i in enumerate(bucket.members):
                if i not in bucket.missing:
                    continue
                parameter, view = self.parameters[i], bucket.views[k]
                if self.gradients.get(parameter) is None:
                    view.zero_()
                    bucket.flags[k] = 0
                    absent.append(i)
                else:  # from an earlier microbatch
                    self.gradients.move(parameter, view).mul_(self.comm.prescale)
                self._mark_ready(i)
        return absent

    def _take_others_gradients(self, absent: list[int]) -> None:
        """Give what another rank used its gradient; unused everywhere, the gradient stays untouched."""
        for i in absent:
            index, view = self._slots[i]
            bucket = self._buckets[index]
            if bucket.flags[bucket.members.index(i)] != 0:
                self.gradients.set(self.parameters[i], view)

    def _match_others(self) -> None:
        for index in self._launcher.not_ready:
            self._buckets[index].flat.fill_(torch.nan)
            self._launcher.mark_ready(index)
        for work in self._launcher.handles:
            work.wait()
        self._rebuild()  # other ranks may have come through

    def _abandon(self) -> None:
        for bucket in self._buckets:
            bucket.reset()
        self._launcher.reset()


class ByHand(InBuckets):
    """Averages as `bucketed` does, but the collective is made of messages, whose hops the trace shows one by one.

    The hops of a bucket follow each other, and buckets too, in the order of their launches.
    """

    hops: Any
    """The module of `overlaplab_engine.collectives` whose `all_reduce` sums a bucket over the ranks, in place."""

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        """See `Strategy`. EngineError among phantoms, which send nothing that could be passed on."""
        if comm.phantom_ranks:
            raise EngineError(
                f"--strategy {self.name} needs a process for every rank: record with --nproc and without WORLD"
            )
        super().__init__(model, comm, options)

    def _average(self, index: int, flat: torch.Tensor) -> Work:
        def average() -> None:
            self.hops.all_reduce(self.comm, flat, bucket=index)
            flat.div_(self.comm.prescale * self.comm.world_size)  # by 1 where gradients were divided beforehand

        return self.comm.aside(average)
