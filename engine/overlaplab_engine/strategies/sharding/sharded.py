"""What ZeRO's stages share: each rank's optimizer updates only its own part of the parameters.

Rajbhandari et al. 2020, "ZeRO" (arXiv 1910.02054), §5: gradients are reduce-scattered, so that each rank gets the mean
of the part that it updates. With HSDP ("hybrid sharding", Zhao et al. 2023, arXiv 2304.11277, §3.2.2) they are
reduce-scattered within groups of ranks, and each part is then all-reduced across these groups, the replicas.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast as Span

from overlaplab_engine import labels
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.network.host_link import Copy, StreamCopy, Way, host_allocation, host_memory
from overlaplab_engine.strategies.base import Options, Strategy
from overlaplab_engine.strategies.sharding.shards import Flat


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A reduce-scatter, or what follows it: HSDP's all-reduce of its result, or the copy of its mean to the host."""

    flat: Flat
    received: torch.Tensor
    """(chunk,), what this rank gets."""
    work: Work | Copy | StreamCopy
    done_label: Span
    average_label: Span | None
    """HSDP: that of its all-reduce."""


class Sharded(Strategy):
    """After `backward` each rank holds the mean gradients of its own pieces, and `optimized` are those pieces.

    A piece's gradient is None if no rank had one for the parameter. Accumulation is the pieces': `backward` adds to
    what they have.
    """

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        self.flats: list[Flat] = []
        """This rank's parts, in the same order on every rank."""
        self.whole_gradients = self.gradients
        """Where gradients of whole parameters accumulate until sent; with `reduce_dtype` zero3 replaces it."""
        self._replicas = comm.axis("replicate")  # HSDP: the ranks that hold the same shards
        self._in_forward = False
        self._in_flight: deque[_UnderWay] = deque()  # reduce-scatters
        self._averaging: deque[_UnderWay] = deque()  # HSDP: all-reduces across the replicas
        self._host = comm.host_link(options.host_link) if options.offload else None
        # Mean gradients (chunk,) on their way to the host, and parameters to the device, by the flat's identity.
        self._host_copies: deque[_UnderWay] = deque()
        self._device_copies: dict[int, Copy | StreamCopy] = {}
        self._first_gradients: dict[str, torch.Tensor] = {}  # pieces whose gradient is this pass's alone

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._in_forward = True
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._in_forward = False

    def named_optimized(self) -> list[tuple[str, torch.Tensor]]:
        """This rank's pieces of the parameters, flat; none of a parameter that lies with other ranks."""
        return [named for flat in self.flats for named in flat.pieces.items()]

    def assemble(self, flat: Flat, shard: torch.Tensor) -> dict[str, torch.Tensor]:
        """Gather every rank's (chunk,) of something that lies as `flat` does; returns it in the parameters' shapes."""
        resident = shard.to(flat.resident.device)
        full = resident.new_empty(flat.layout.padded)
        self.comm.shards.all_gather(full, resident).wait()
        return dict(zip(flat.names, flat.layout.views(full), strict=True))

    # Gradients on their way

    def _has_gradient(self, parameter: torch.Tensor) -> bool:
        """Whether this rank has one, from this microbatch or from earlier ones."""
        return parameter.grad is not None or self.whole_gradients.get(parameter) is not None

    def _move_prescaled(self, parameter: torch.Tensor, view: torch.Tensor) -> None:
        """Move a parameter's gradient, with what earlier microbatches left, to a flat buffer, prescaled."""
        grad = self.whole_gradients.get(parameter)
        if self.whole_gradients.main is not None and parameter.grad is not None:  # `.grad` is this microbatch's alone
            grad = parameter.grad if grad is None else grad.add_(parameter.grad)
        assert grad is not None
        if grad.dtype == view.dtype:
            torch.mul(grad, self.comm.prescale, out=view)
        else:
            view.copy_(grad).mul_(self.comm.prescale)
        parameter.grad = None
        self.whole_gradients.set(parameter, None)

    def _reduce_scatter(
        self,
        flat: Flat,
        full: torch.Tensor,
        received: torch.Tensor,
        launch_label: Span,
        done_label: Span,
        average_label: Span | None = None,
    ) -> None:
        """Launch the reduce-scatter of prescaled gradients (padded,) to `received` (chunk,).

        With HSDP the results are then averaged across the replicas.
        """
        with launch_label:
            work = self.comm.shards.reduce_scatter_mean(received, full)
        self._in_flight.append(_UnderWay(flat, received, work, done_label, average_label))

    def _wait_for_scatters(self, leave: int = 0) -> None:
        """Accumulate the results of reduce-scatters, and wait until no more than `leave` are under way."""
        for scatter in _pop_completed(self._in_flight, leave, self._wait_label):
            labels.instant(scatter.done_label)
            if self._replicas is None:
                self._take_mean(scatter)
                continue
            with scatter.average_label or nullcontext():
                work = self._replicas.all_reduce_mean(scatter.received)
            self._averaging.append(replace(scatter, work=work))
        for average in _pop_completed(self._averaging, leave, self._wait_label):
            self._take_mean(average)
        for copied in _pop_completed(self._host_copies, leave, nullcontext()):
            with host_allocation():
                self._first_gradients |= copied.flat.accumulate(self.gradients, copied.received)

    def _take_mean(self, scatter: _UnderWay) -> None:
        """Accumulate the mean gradients, or with `offload` begin their copy to the host."""
        if self._host is None:
            self._first_gradients |= scatter.flat.accumulate(self.gradients, scatter.received)
            return
        gradients = host_memory(scatter.received)
        copy = self._host.copy(Way.DOWN, gradients, scatter.received)
        self._host_copies.append(replace(scatter, received=gradients, work=copy))

    def _copy_to_device(self, flats: Iterable[Flat]) -> None:
        """Copy what the host has updated to the device, in this order."""
        if self._host is None:
            return
        for flat in flats:
            self._device_copies[id(flat)] = self._host.copy(Way.UP, flat.resident, flat.shard)

    def _wait_for_device_copy(self, flat: Flat) -> None:
        """Wait until the device has what the host has updated."""
        if (copy := self._device_copies.pop(id(flat), None)) is not None:
            copy.wait()

    def _finish_gradients(self, unused: Collection[int]) -> None:
        """Wait for all reduce-scatters, and remove the gradients of parameters that no rank has used, which are zeros.

        `unused` are the positions in `parameters` of those that this rank has no gradient for.
        """
        answer = self._ask_usage(unused)
        self._wait_for_scatters()
        with self._wait_label:
            unused_everywhere = {self.names[i] for i in answer()}
        for name in unused_everywhere & self._first_gradients.keys():
            self.gradients.set(self._first_gradients[name], None)
        self._first_gradients = {}

    def _drain(self) -> None:
        """After an exception: wait for what is under way, and drop it."""
        with suppress(Exception):  # once a wait fails, so would the next ones
            for item in (*self._in_flight, *self._averaging, *self._host_copies):
                item.work.wait()
        self._in_flight.clear()
        self._host_copies.clear()
        self._averaging.clear()
        self._first_gradients = {}


def _pop_completed(queue: deque[_UnderWay], leave: int, label: AbstractContextManager[Any]) -> Iterator[_UnderWay]:
    """Remove and yield the first of them, waiting until no more than `leave` remain."""
    while queue and (len(queue) > leave or queue[0].work.is_completed()):
        first = queue.popleft()
        with label:
            first.work.wait()
        yield first
