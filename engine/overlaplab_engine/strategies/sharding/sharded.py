"""What ZeRO's stages share: each rank's optimizer updates only its own part of the parameters.

Rajbhandari et al. 2020, "ZeRO" (arXiv 1910.02054), §5: gradients are reduce-scattered, so that each rank gets the mean
of the part that it updates. With HSDP ("hybrid sharding", Zhao et al. 2023, arXiv 2304.11277, §3.2.2) they are
reduce-scattered within groups of ranks, and each part is then all-reduced across these groups, the replicas.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast as Span

from overlaplab_engine import labels
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.network.host_link import Copy, StreamCopy, Way, host_allocation, host_memory
from overlaplab_engine.strategies.base import Options, Strategy
from overlaplab_engine.strategies.sharding.shards import Flat, Piece


@dataclass(frozen=True, slots=True)
class OwnedPart:
    """This rank's part of one parameter, trained or not."""

    name: str
    begin: int
    """Where it begins in the flattened parameter."""
    values: torch.Tensor
    """(elements,), in the memory that training uses."""
    optimized: torch.Tensor | None
    """What the optimizer updates; None for a frozen parameter."""


@dataclass(frozen=True, slots=True)
class _ReduceScatter:
    """One that is under way, or with HSDP the all-reduce of its result that follows."""

    flat: Flat
    received: torch.Tensor
    """(chunk,), what this rank gets."""
    work: Work
    done: Span
    average: Span | None
    """HSDP: the label of that all-reduce."""


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
        """Where gradients of whole parameters accumulate, before they are sent."""
        self._replicas = comm.axis("replicate")  # HSDP: the ranks that hold the same shards
        self._in_forward = False
        self._in_flight: deque[_ReduceScatter] = deque()
        self._host = comm.host_link(options.host_link) if options.offload else None
        # Mean gradients (chunk,) on their way to the host, and parameters to the device, by the flat's identity.
        self._host_copies: deque[tuple[Flat, torch.Tensor, Copy | StreamCopy]] = deque()
        self._device_copies: dict[int, Copy | StreamCopy] = {}
        self._averaging: deque[_ReduceScatter] = deque()  # HSDP: all-reduces across the replicas
        self._first_gradients: list[Piece] = []  # pieces whose gradient is this pass's alone

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._in_forward = True
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._in_forward = False

    def named_optimized(self) -> list[tuple[str, torch.Tensor]]:
        """This rank's pieces of the parameters, flat; none of a parameter that lies with other ranks."""
        return [(piece.name, piece.tensor) for flat in self.flats for piece in flat.pieces]

    def parts(self) -> list[OwnedPart]:
        """What this rank owns of each parameter that lies in `flats`."""
        parts = []
        for flat in self.flats:
            layout, pieces = flat.layout, {piece.name: piece.tensor for piece in flat.pieces}
            for number, values in layout.pieces(flat.shard):
                name = flat.names[number]
                begin = max(self.comm.shards.rank * layout.chunk - sum(layout.sizes[:number]), 0)
                parts.append(OwnedPart(name, begin, values, pieces.get(name)))
        return parts

    def assemble(self, flat: Flat, shard: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every rank's (chunk,) of something that lies as `flat` does, in the parameters' shapes, by name."""
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
        if self.whole_gradients.main is not None and parameter.grad is not None:
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
        launch: Span,
        done: Span,
        average: Span | None = None,
    ) -> None:
        """Launch the reduce-scatter of prescaled gradients (padded,) to `received` (chunk,).

        With HSDP the results are then averaged across the replicas, which `average` labels.
        """
        with launch:
            work = self.comm.shards.reduce_scatter_mean(received, full)
        self._in_flight.append(_ReduceScatter(flat, received, work, done, average))

    def _wait_for_scatters(self, leave: int = 0) -> None:
        """Accumulate the results of reduce-scatters, and wait until no more than `leave` are under way."""
        for scatter in self._pop_completed(self._in_flight, leave):
            labels.instant(scatter.done)
            if self._replicas is None:
                self._take_mean(scatter)
                continue
            with scatter.average or nullcontext():
                work = self._replicas.all_reduce_mean(scatter.received)
            self._averaging.append(replace(scatter, work=work))
        for average in self._pop_completed(self._averaging, leave):
            self._take_mean(average)
        self._accumulate_from_host(leave)

    def _pop_completed(self, under_way: deque[_ReduceScatter], leave: int) -> Iterator[_ReduceScatter]:
        """Remove and yield the first of them, waiting until no more than `leave` remain."""
        while under_way and (len(under_way) > leave or under_way[0].work.is_completed()):
            first = under_way.popleft()
            with self._wait:
                first.work.wait()
            yield first

    def _take_mean(self, scatter: _ReduceScatter) -> None:
        """Accumulate the mean gradients, or with `offload` begin their copy to the host."""
        if self._host is None:
            self._first_gradients += scatter.flat.accumulate(self.gradients, scatter.received)
            return
        gradients = host_memory(scatter.received)
        copy = self._host.copy(Way.DOWN, gradients, scatter.received)
        self._host_copies.append((scatter.flat, gradients, copy))

    def _accumulate_from_host(self, leave: int) -> None:
        """Accumulate what has been copied to the host, and wait until no more than `leave` copies are under way."""
        while self._host_copies and (len(self._host_copies) > leave or self._host_copies[0][2].is_completed()):
            flat, gradients, copy = self._host_copies.popleft()
            copy.wait()
            with host_allocation():
                self._first_gradients += flat.accumulate(self.gradients, gradients)

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

        `unused` are the parameters that this rank has no gradient for.
        """
        answer = self._ask_usage(unused)
        self._wait_for_scatters()
        with self._wait:
            nowhere = {self.names[i] for i in answer()}
        for piece in self._first_gradients:
            if piece.name in nowhere:
                self.gradients.set(piece.tensor, None)
        self._first_gradients = []

    def _drain(self) -> None:
        """After an exception: wait for what is under way, and drop it."""
        with suppress(Exception):
            for scatter in (*self._in_flight, *self._averaging):
                scatter.work.wait()
            for _, _, copy in self._host_copies:
                copy.wait()
        self._in_flight.clear()
        self._host_copies.clear()
        self._averaging.clear()
        self._first_gradients = []
