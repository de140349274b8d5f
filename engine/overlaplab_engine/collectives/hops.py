"""Hops: what a collective by hand consists of."""

from dataclasses import dataclass

import torch

from overlaplab_engine import labels
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind

BLOCK = 1 << 15
"""Elements added at once on a CPU: for so few torch starts no threads, which would inherit this one's priority
(at::internal::GRAIN_SIZE, ATen/Parallel.h)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a tensor that goes to a rank, or comes from one."""

    number: int
    """Its number, for the label."""
    tensor: torch.Tensor
    """(elements,); on both ranks of the same size."""
    rank: int
    """The other rank."""


class Hops:
    """The hops of one collective on this rank."""

    def __init__(self, comm: Communicator, bucket: int) -> None:
        """`bucket` is the collective's number in labels."""
        self.comm = comm
        self._bucket = bucket
        self._done = 0

    def skip(self) -> None:
        """The other ranks make a hop without this one."""
        self._done += 1

    def make(self, kind: Kind, send: Chunk | None, receive: Chunk | None, *, add: bool = False) -> None:
        """Send and receive at once, and wait for both.

        What arrives is put into `receive.tensor`, or added to it. `kind` is that of the half that the hop belongs to.
        A chunk without elements is not sent, which its receiver knows as well.
        """
        send, receive = (chunk if chunk and chunk.tensor.numel() else None for chunk in (send, receive))
        if send is None and receive is None:
            self.skip()
            return
        with self._label(kind, send, receive):
            arriving = None if receive is None else torch.empty_like(receive.tensor) if add else receive.tensor
            self.comm.exchange(
                [] if send is None else [(send.tensor, send.rank)],
                [] if receive is None or arriving is None else [(arriving, receive.rank)],
            ).wait()
            if add and receive is not None and arriving is not None:
                _add(receive.tensor, arriving)
        self._done += 1

    def _label(self, kind: Kind, send: Chunk | None, receive: Chunk | None) -> labels.Span:
        values: dict[str, str | int] = {"bucket": self._bucket, "kind": kind, "hop": self._done, "bytes": 0}
        if send is not None:
            values |= {"bytes": send.tensor.nbytes, "sends": send.number, "to": send.rank}
        if receive is not None:
            values |= {"receives": receive.number, "source": receive.rank}
        return labels.span(Word.HOP, **values)


def _add(tensor: torch.Tensor, arrived: torch.Tensor) -> None:
    blocks = BLOCK if tensor.device.type == "cpu" else tensor.numel()
    for total, part in zip(torch.split(tensor, blocks), torch.split(arrived, blocks), strict=True):
        total.add_(part)
