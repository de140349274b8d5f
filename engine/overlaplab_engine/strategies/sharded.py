"""What ZeRO's stages share: each rank's optimizer updates only its own part of the parameters.

Rajbhandari et al. 2020, "ZeRO" (arXiv 1910.02054), §5: gradients are reduce-scattered, so that each rank gets the mean
of the part that it updates.
"""

from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.labels import Span, Word
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.base import Options, Strategy
from overlaplab_engine.strategies.shards import Flat, Piece

__all__ = ["Part", "Sharded"]


@dataclass(frozen=True, slots=True)
class Part:
    """What this rank owns of one parameter, trained or not."""

    name: str
    begin: int
    """Where it begins in the flattened parameter."""
    values: torch.Tensor
    """(elements,), in the shard's memory."""
    piece: Piece | None
    """What the optimizer updates; None for a frozen parameter."""


@dataclass(frozen=True, slots=True)
class _ReduceScatter:
    """One that is under way."""

    flat: Flat
    received: torch.Tensor
    """(chunk,), what this rank gets."""
    work: Work
    done: Span


class Sharded(Strategy):
    """After `backward` each rank holds the mean gradients of its own pieces, and `optimized` are those pieces.

    A piece's gradient is None if no rank had one for the parameter. Accumulation is the pieces': `backward` adds to
    what they have.
    """

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        """See `Strategy`."""
        super().__init__(model, comm, options)
        self.flats: list[Flat] = []
        """This rank's parts, in the same order on every rank."""
        self.whole_gradients = self.gradients
        """Where gradients of whole parameters accumulate, before they are sent."""
        self._wait = labels.span(Word.WAIT)
        self._in_forward = False
        self._in_flight: deque[_ReduceScatter] = deque()
        self._first_gradients: list[Piece] = []  # pieces whose gradient is this pass's alone

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `Strategy`."""
        self._in_forward = True
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._in_forward = False

    def named_optimized(self) -> list[tuple[str, torch.Tensor]]:
        """This rank's pieces of the parameters, flat; none of a parameter that lies with other ranks."""
        return [(piece.name, piece.tensor) for flat in self.flats for piece in flat.pieces]

    def parts(self) -> list[Part]:
        """What this rank owns of each parameter that lies in `flats`."""
        parts = []
        for flat in self.flats:
            layout, pieces = flat.layout, {piece.name: piece for piece in flat.pieces}
            for number, values in layout.pieces(flat.shard):
                name = flat.names[number]
                begin = max(self.comm.rank * layout.chunk - sum(layout.sizes[:number]), 0)
                parts.append(Part(name, begin, values, pieces.get(name)))
        return parts

    def assemble(self, flat: Flat, shard: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every rank's (chunk,) of something that lies as `flat` does, in the parameters' shapes, by name."""
        full = shard.new_empty(flat.layout.padded)
        self.comm.all_gather(full, shard).wait()
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

    def _reduce_scatter(self, flat: Flat, full: torch.Tensor, received: torch.Tensor, launch: Span, done: Span) -> None:
        """Launch the reduce-scatter of prescaled gradients (padded,) to `received` (chunk,)."""
        with launch:
            work = self.comm.reduce_scatter_mean(received, full)
        self._in_flight.append(_ReduceScatter(flat, received, work, done))

    def _wait_for_scatters(self, leave: int = 0) -> None:
        """Accumulate the results of reduce-scatters, and wait until no more than `leave` are under way."""
        while self._in_flight and (len(self._in_flight) > leave or self._in_flight[0].work.is_completed()):
            scatter = self._in_flight.popleft()
            with self._wait:
                scatter.work.wait()
            labels.instant(scatter.done)
            self._first_gradients += scatter.flat.accumulate(self.gradients, scatter.received)

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
            for scatter in self._in_flight:
                scatter.work.wait()
        self._in_flight.clear()
        self._first_gradients = []
