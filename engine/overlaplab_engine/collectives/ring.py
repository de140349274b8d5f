"""Collectives over a ring: every rank receives from the rank before it and sends to the next one, both at once.

The all-reduce is Patarasuk and Yuan's ("Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC
2009), which Baidu brought to deep learning (2017): a reduce-scatter and an all-gather of n − 1 hops each. In each hop
every rank sends one of n chunks, so that it sends 2(n−1)/n of the tensor, however many ranks there are; but the number
of hops, and with it the latency, grows with n.

Every chunk is added up once, along the ring, and copied from there: all ranks get the same bits. The order of the
additions differs from chunk to chunk, and from the library's.
"""

import torch

from overlaplab_engine.collectives.hops import Chunk, Hops, split_chunks
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind


@torch.no_grad()
def all_reduce(comm: Communicator, tensor: torch.Tensor, *, bucket: int = 0) -> None:
    """Sum a contiguous tensor over the ranks, in place."""
    hops, chunks = Hops(comm, bucket), split_chunks(tensor, comm.world_size)
    _scatter(hops, chunks)
    _gather(hops, chunks)


@torch.no_grad()
def reduce_scatter(comm: Communicator, shard: torch.Tensor, full: torch.Tensor, *, bucket: int = 0) -> None:
    """`shard` (elements,) gets this rank's part of the sum of `full` (world size × elements,)."""
    chunks = split_chunks(full.clone(), comm.world_size)
    _scatter(Hops(comm, bucket), chunks)
    shard.copy_(chunks[comm.rank])


@torch.no_grad()
def all_gather(comm: Communicator, full: torch.Tensor, shard: torch.Tensor, *, bucket: int = 0) -> None:
    """Fill `full` (world size × elements,) with every rank's `shard` (elements,), in rank order."""
    chunks = split_chunks(full, comm.world_size)
    chunks[comm.rank].copy_(shard)
    _gather(Hops(comm, bucket), chunks)


@torch.no_grad()
def broadcast(comm: Communicator, tensor: torch.Tensor, root: int = 0, *, bucket: int = 0) -> None:
    """Copy the root's values to every rank, in place: n chunks go along the ring, one behind the other."""
    _pass_on(Hops(comm, bucket), Kind.BROADCAST, tensor, (comm.rank - root) % comm.world_size)


@torch.no_grad()
def reduce(comm: Communicator, tensor: torch.Tensor, root: int = 0, *, bucket: int = 0) -> None:
    """The root's tensor becomes the sum, in place, along a chain that ends there; elsewhere partial sums stay."""
    _pass_on(Hops(comm, bucket), Kind.REDUCE, tensor, (comm.rank - root - 1) % comm.world_size, add=True)


def _scatter(hops: Hops, chunks: list[torch.Tensor]) -> None:
    """n − 1 hops, after which chunk r of rank r holds the sum over all ranks; in the others lie partial sums."""
    n, rank = hops.comm.world_size, hops.comm.rank
    for hop in range(n - 1):
        sends, receives = (rank - hop - 1) % n, (rank - hop - 2) % n
        send = Chunk(sends, chunks[sends], (rank + 1) % n)
        hops.make(Kind.REDUCE_SCATTER, send, Chunk(receives, chunks[receives], (rank - 1) % n), add=True)


def _gather(hops: Hops, chunks: list[torch.Tensor]) -> None:
    """n − 1 hops, after which every rank has chunk r of every rank r."""
    n, rank = hops.comm.world_size, hops.comm.rank
    for hop in range(n - 1):
        sends, receives = (rank - hop) % n, (rank - hop - 1) % n
        send = Chunk(sends, chunks[sends], (rank + 1) % n)
        hops.make(Kind.ALL_GATHER, send, Chunk(receives, chunks[receives], (rank - 1) % n))


def _pass_on(hops: Hops, kind: Kind, tensor: torch.Tensor, place: int, *, add: bool = False) -> None:
    """Pass n chunks from the first to the last rank of a chain, one behind the other; this is the rank at `place`.

    2n − 2 hops: chunk c goes from place p to the next one in hop c + p.
    """
    n, rank = hops.comm.world_size, hops.comm.rank
    chunks = split_chunks(tensor, n)
    for hop in range(2 * n - 2):
        sends, receives = hop - place, hop - place + 1
        send = Chunk(sends, chunks[sends], (rank + 1) % n) if place < n - 1 and 0 <= sends < n else None
        receive = Chunk(receives, chunks[receives], (rank - 1) % n) if place > 0 and 0 <= receives < n else None
        hops.make(kind, send, receive, add=add)
