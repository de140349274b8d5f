"""tree: each bucket is averaged up a binomial tree and down again: few hops, each of the whole bucket.

See `overlaplab_engine.collectives.tree`.
"""

from overlaplab_engine.collectives import tree
from overlaplab_engine.strategies.averaging import ByHand
from overlaplab_engine.strategies.base import Traits, register


@register
class Tree(ByHand):
    """Buckets, each averaged by the tree's hops."""

    name = "tree"
    traits = Traits(buckets=True, hops="tree")
    hops = tree
