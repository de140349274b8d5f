"""ring: each bucket is averaged hop by hop around a ring; every rank sends 2(n−1)/n of it, in 2(n−1) messages.

See `overlaplab_engine.collectives.ring`.
"""

from overlaplab_engine.collectives import ring
from overlaplab_engine.strategies.averaging import ByHand
from overlaplab_engine.strategies.base import Traits, register


@register
class Ring(ByHand):
    """Buckets, each averaged by the ring's hops."""

    name = "ring"
    traits = Traits(buckets=True, hops="ring")
    hops = ring
