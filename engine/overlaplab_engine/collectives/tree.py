"""Collectives over binomial trees: the number of hops grows with log₂ n, but ranks take turns, and wait for each other.

An all-reduce goes up a tree to rank 0 and down again (Thakur, Rabenseifner, Gropp 2005, "Optimization of collective
communication operations in MPICH", §3.3 and §3.5): 2⌈log₂ n⌉ hops, each of the whole tensor. It beats a ring of more
hops where the tensor is small, so that latency counts. NCCL's trees send pieces one behind the other and use two trees
at once, and so cost fewer bytes; that is left out here. An all-gather doubles in each hop what a rank holds (Bruck et
al. 1997, "Efficient algorithms for all-to-all communications in multiport message-passing systems"), and a
reduce-scatter does the same backwards: ⌈log₂ n⌉ hops and (n−1)/n of the tensor, for any n.

A sum over the tree is added up on one rank, pair by pair, and copied from there: all ranks get the same bits, those of
((0+1) + (2+3)) + …; the library adds up in another order, so that its last bits may differ from n = 3 on.
"""

from collections.abc import Iterator

import torch

from overlaplab_engine.collectives.hops import Chunk, Hops
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind


@torch.no_grad()
def all_reduce(comm: Communicator, tensor: torch.Tensor, *, bucket: int = 0) -> None:
    """Sum a contiguous tensor over the ranks, in place."""
    hops = Hops(comm, bucket)
    _reduce_up(hops, tensor.view(-1), 0)
    _broadcast_down(hops, tensor.view(-1), 0)


@torch.no_grad()
def reduce(comm: Communicator, tensor: torch.Tensor, root: int = 0, *, bucket: int = 0) -> None:
    """The root's tensor becomes the sum, in place; elsewhere partial sums stay."""
    _reduce_up(Hops(comm, bucket), tensor.view(-1), root)


@torch.no_grad()
def broadcast(comm: Communicator, tensor: torch.Tensor, root: int = 0, *, bucket: int = 0) -> None:
    """Copy the root's values to every rank, in place."""
    _broadcast_down(Hops(comm, bucket), tensor.view(-1), root)


@torch.no_grad()
def all_gather(comm: Communicator, full: torch.Tensor, shard: torch.Tensor, *, bucket: int = 0) -> None:
    """Fill `full` (world size × elements,) with every rank's `shard` (elements,), in rank order."""
    hops, n, rank = Hops(comm, bucket), comm.world_size, comm.rank
    held = shard.new_empty(n, shard.numel())  # row i: the shard of the rank i places on
    held[0] = shard.view(-1)
    for distance in _distances(n):
        count = min(distance, n - distance)
        send = Chunk(0, held[:count].view(-1), (rank - distance) % n)
        receive = Chunk(distance, held[distance : distance + count].view(-1), (rank + distance) % n)
        hops.make(Kind.ALL_GATHER, send, receive)
    full.view(n, -1).copy_(held.roll(rank, dims=0))


@torch.no_grad()
def reduce_scatter(comm: Communicator, shard: torch.Tensor, full: torch.Tensor, *, bucket: int = 0) -> None:
    """`shard` (elements,) gets this rank's part of the sum of `full` (world size × elements,)."""
    hops, n, rank = Hops(comm, bucket), comm.world_size, comm.rank
    held = full.view(n, -1).roll(-rank, dims=0)  # row i: what is added up for the rank i places on
    for distance in reversed(_distances(n)):
        count = min(distance, n - distance)
        send = Chunk(distance, held[distance : distance + count].view(-1), (rank + distance) % n)
        receive = Chunk(0, held[:count].view(-1), (rank - distance) % n)
        hops.make(Kind.REDUCE_SCATTER, send, receive, add=True)
    shard.copy_(held[0].view_as(shard))


def _reduce_up(hops: Hops, tensor: torch.Tensor, root: int) -> None:
    """Each rank adds what its children send, the next one first, and sends the sum to its parent."""
    for sends, peer in _turns(hops.comm, root):
        if peer is None:
            hops.skip()
        elif sends:
            hops.make(Kind.REDUCE, Chunk(0, tensor, peer), None)
        else:
            hops.make(Kind.REDUCE, None, Chunk(0, tensor, peer), add=True)


def _broadcast_down(hops: Hops, tensor: torch.Tensor, root: int) -> None:
    """The same backwards: each rank gets the tensor from its parent, and sends it to its children."""
    for received, peer in reversed(list(_turns(hops.comm, root))):
        if peer is None:
            hops.skip()
        elif received:
            hops.make(Kind.BROADCAST, None, Chunk(0, tensor, peer))
        else:
            hops.make(Kind.BROADCAST, Chunk(0, tensor, peer), None)


def _turns(comm: Communicator, root: int) -> Iterator[tuple[bool, int | None]]:
    """For each hop on the way up whether this rank sends, and to whom or from whom; None where it does nothing.

    Places count from the root. In the hop of distance d, each odd multiple of d sends to the place d before it.
    """
    n = comm.world_size
    place = (comm.rank - root) % n
    for distance in _distances(n):
        times, remainder = divmod(place, distance)
        if remainder:
            yield False, None
        elif times % 2:
            yield True, (comm.rank - distance) % n
        else:
            yield False, (comm.rank + distance) % n if place + distance < n else None


def _distances(n: int) -> list[int]:
    """1, 2, 4, … below n: ⌈log₂ n⌉ of them."""
    return [1 << power for power in range((n - 1).bit_length())]
