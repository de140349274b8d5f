"""How long a collective takes by other algorithms than one ring, and which of them a library would choose.

T is of `num_bytes` of the full (gathered) tensor, in ns, as in `link.transfer_ns`; n is `link.world_size`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from overlaplab.costs.link import transfer_ns
from overlaplab.manifest import Link

Algorithm: TypeAlias = Literal["auto", "ring"]


def tree_ns(kind: str, num_bytes: int, link: Link) -> int:
    """T where messages in a row grow with log2 n instead of n.

    An all-reduce goes up and down two binary trees at once. Each carries half of the tensor, in small pieces one after
    the other, and ranks with children in one tree have none in the other, so that a rank sends and receives the tensor
    twice: 2·⌈log2 n⌉·α + 2·bytes ÷ bandwidth. Sources: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan" (2009); NCCL's src/graph/tuning.cc (`ncclTopoTuneModel`), which takes log2 of the
    nodes, half of the bandwidth, and a correction for each protocol that is left out here.

    An all-gather doubles in each round what a rank holds, and a reduce-scatter does the same backwards:
    ⌈log2 n⌉·α + (n-1)/n·bytes ÷ bandwidth. Sources: Bruck et al., "Efficient algorithms for all-to-all communications
    in multiport message-passing systems" (1997); Jeaugey, "PAT" (arXiv 2506.20252), as NCCL has it.

    Raises ValueError for other kinds.
    """
    rounds, n = (link.world_size - 1).bit_length(), link.world_size
    if kind == "all_reduce":
        messages, share = 2 * rounds, 2.0 if n > 1 else 0.0
    elif kind in ("all_gather", "reduce_scatter"):
        messages, share = rounds, (n - 1) / n
    else:
        raise ValueError(f"no tree for {kind}")
    return round(messages * link.latency_us * 1e3 + share * num_bytes * 8 / link.bandwidth_gbps)


def collective_ns(kind: str, num_bytes: int, link: Link, *, algorithm: Algorithm = "auto") -> int:
    """T around a ring, or, with `auto`, by the faster of a ring and trees.

    So NCCL chooses, by its own model of each (`ncclTopoGetAlgoTime` in src/graph/tuning.cc, and the least of them in
    src/enqueue.cc). Raises ValueError for a kind without a model.
    """
    ring_ns = transfer_ns(kind, num_bytes, link)
    if algorithm == "ring" or kind == "all_to_all":
        return ring_ns
    return min(ring_ns, tree_ns(kind, num_bytes, link))
