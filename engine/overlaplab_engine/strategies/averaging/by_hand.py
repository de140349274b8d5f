"""Buckets that are averaged by an all-reduce of our own making, hop by hop, beside the backward pass."""

from typing import Any

import torch
from torch import nn

from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.averaging.in_buckets import InBuckets
from overlaplab_engine.strategies.base import Options


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
