"""bucketed: the library's all-reduce of each bucket, as soon as it is full, while the backward pass goes on."""

from overlaplab_engine.strategies.averaging import InBuckets
from overlaplab_engine.strategies.base import Traits, register


@register
class Bucketed(InBuckets):
    """Buckets, each averaged by one all-reduce."""

    name = "bucketed"
    traits = Traits(buckets=True)
