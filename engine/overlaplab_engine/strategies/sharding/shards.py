"""Flat shards: parameters end to end in one buffer, of which every rank owns an equal part.

ZeRO partitions optimizer states, gradients and parameters so (Rajbhandari et al. 2020, arXiv 1910.02054, §5); one flat
buffer per unit, padded to a multiple of the world size, is FSDP's FlatParameter (Zhao et al. 2023, arXiv 2304.11277,
§3.2.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from overlaplab_engine.network.host_link import host_memory
from overlaplab_engine.strategies.gradients.buckets import Gradients
from overlaplab_engine.strategies.sharding.optimizers import make_part


class Layout:
    """Where parameters lie in a flat buffer, and which part of it is this rank's."""

    def __init__(self, shapes: Sequence[torch.Size], rank: int, world_size: int) -> None:
        """Parameters of these shapes one after the other, then padding."""
        self.shapes = list(shapes)
        self.sizes = [shape.numel() for shape in shapes]
        self.numel = sum(self.sizes)
        """Elements without padding."""
        self.chunk = -(-self.numel // world_size)
        """Elements that each rank owns; only the last ranks' end in padding."""
        self.padded = self.chunk * world_size
        self._begin = rank * self.chunk

    def views(self, full: torch.Tensor) -> list[torch.Tensor]:
        """Each parameter's part of a (padded,) buffer, in its shape."""
        parts = torch.split(full[: self.numel], self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def local_chunk(self, full: torch.Tensor) -> torch.Tensor:
        """This rank's (chunk,) part of a (padded,) buffer."""
        return full[self._begin : self._begin + self.chunk]

    def pieces(self, shard: torch.Tensor) -> list[tuple[int, int, torch.Tensor]]:
        """What this rank owns of parameters: number, where it begins in the parameter, elements of a (chunk,) shard."""
        pieces = []
        begin = -self._begin  # of the parameter, seen from the shard
        for number, size in enumerate(self.sizes):
            low, high = max(begin, 0), min(begin + size, self.chunk)
            if low < high:
                pieces.append((number, low - begin, shard[low:high]))
            begin += size
        return pieces


@dataclass(frozen=True, slots=True)
class OwnedPart:
    """This rank's part of one parameter, trained or not."""

    name: str
    begin: int
    """Where it begins in the flattened parameter."""
    values: torch.Tensor
    """(elements,), in the memory that training uses."""
    optimized: torch.Tensor | None
    """What the optimizer updates like a parameter of its own: a leaf in this memory, which carries `.grad` or
    `.main_grad`; None for a frozen parameter."""


class Flat:
    """This rank's part of some parameters, and of their gradients."""

    def __init__(
        self,
        names: Sequence[str],
        layout: Layout,
        shard: torch.Tensor,
        trained: Sequence[bool],
        *,
        offload: bool = False,
    ) -> None:
        """`shard` (chunk,) holds the values; `trained` tells which parameters get gradients.

        With `offload` the optimizer updates a copy of it on the host.
        """
        self.names = list(names)
        self.layout = layout
        self.shard = host_memory(shard).copy_(shard) if offload else shard
        """What the optimizer updates."""
        self.resident = shard
        """What other ranks gather; on the device, if the shard is on the host."""
        self.parts = [
            OwnedPart(self.names[number], begin, values, make_part(values) if trained[number] else None)
            for number, begin, values in layout.pieces(self.shard)
        ]
        self.pieces = {part.name: part.optimized for part in self.parts if part.optimized is not None}
        """What the optimizer updates, by the parameters' names."""

    def accumulate(self, gradients: Gradients, received: torch.Tensor) -> dict[str, torch.Tensor]:
        """Add mean gradients (chunk,) of any type to what the pieces have; returns those that had none."""
        received = received.to(gradients.dtype(self.shard))
        parts = {self.names[number]: part for number, _, part in self.layout.pieces(received)}
        without = {}
        for name, piece in self.pieces.items():
            grad = gradients.get(piece)
            if grad is None:
                gradients.set(piece, parts[name])
                without[name] = piece
            else:
                grad.add_(parts[name])
        return without
