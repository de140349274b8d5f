"""bucketed: the library's all-reduce of each bucket, as soon as it is full, while the backward pass goes on."""

import torch

from overlaplab_engine.network.communicator import Work
from overlaplab_engine.strategies.averaging.in_buckets import InBuckets
from overlaplab_engine.strategies.base import Traits, register


@register
class Bucketed(InBuckets):
    """Buckets, each averaged by one all-reduce."""

    name = "bucketed"
    traits = Traits(buckets=True)

    def _average(self, index: int, flat: torch.Tensor) -> Work:
        return self.comm.all_reduce_mean(flat)
