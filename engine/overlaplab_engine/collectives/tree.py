"""All-reduce over a binomial tree: the number of hops grows with log₂ n, but ranks take turns, and wait for each other.

It goes up the tree to rank 0 and down again (Thakur, Rabenseifner, Gropp 2005, "Optimization of collective
communication operations in MPICH", §3.3 and §3.5): 2⌈log₂ n⌉ hops, each of the whole tensor. It beats a ring of more
hops where the tensor is small, so that latency counts. NCCL's trees send pieces one behind the other and use two trees
at once, and so cost fewer bytes; that is left out here.

The sum is added up on one rank, pair by pair, and copied from there: all ranks get the same bits, those of
((0+1) + (2+3)) + …; the library adds up in another order, so that its last bits may differ from n = 3 on.
"""

from collections.abc import Iterator
from typing import TypeAlias

import torch

from overlaplab_engine.collectives.hops import Chunk, Hops
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind

Turn: TypeAlias = tuple[bool, int | None]
"""For a hop on the way up whether a rank sends, and to whom or from whom; None where it does nothing."""


@torch.no_grad()
def all_reduce(comm: Communicator, tensor: torch.Tensor, *, bucket: int = 0) -> None:
    """Sum a contiguous tensor over the ranks, in place."""
    hops, turns = Hops(comm, bucket), list(_turns(comm.world_size, comm.rank))
    _reduce_up(hops, tensor.view(-1), turns)
    _broadcast_down(hops, tensor.view(-1), turns)


def _reduce_up(hops: Hops, tensor: torch.Tensor, turns: list[Turn]) -> None:
    """Each rank adds what its children send, the next one first, and sends the sum to its parent."""
    for sends, peer in turns:
        if peer is None:
            hops.skip()
        elif sends:
            hops.make(Kind.REDUCE, Chunk(0, tensor, peer), None)
        else:
            hops.make(Kind.REDUCE, None, Chunk(0, tensor, peer), add=True)


def _broadcast_down(hops: Hops, tensor: torch.Tensor, turns: list[Turn]) -> None:
    """The same backwards: each rank gets the tensor from its parent, and sends it to its children."""
    for received, peer in reversed(turns):
        if peer is None:
            hops.skip()
        elif received:
            hops.make(Kind.BROADCAST, None, Chunk(0, tensor, peer))
        else:
            hops.make(Kind.BROADCAST, Chunk(0, tensor, peer), None)


def _turns(n: int, rank: int) -> Iterator[Turn]:
    """⌈log₂ n⌉ hops, of distance 1, 2, 4, …: in each, odd multiples of the distance send to the rank so far before."""
    for distance in (1 << power for power in range((n - 1).bit_length())):
        times, remainder = divmod(rank, distance)
        if remainder:
            yield False, None
        elif times % 2:
            yield True, rank - distance
        else:
            yield False, rank + distance if rank + distance < n else None
