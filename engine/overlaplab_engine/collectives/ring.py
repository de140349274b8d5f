"""All-reduce around a ring: every rank receives from the rank before it and sends to the next one, both at once.

It is Patarasuk and Yuan's ("Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009), which
Baidu brought to deep learning (2017): a reduce-scatter and an all-gather of n − 1 hops each. In each hop every rank
sends one of n chunks, so that it sends 2(n−1)/n of the tensor, however many ranks there are; but the number of hops,
and with it the latency, grows with n.

Every chunk is added up once, along the ring, and copied from there: all ranks get the same bits. The order of the
additions differs from chunk to chunk, and from the library's.
"""

import torch

from overlaplab_engine.collectives.hops import Chunk, Hops
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind


@torch.no_grad()
def all_reduce(comm: Communicator, tensor: torch.Tensor, *, bucket: int = 0) -> None:
    """Sum a contiguous tensor over the ranks, in place."""
    chunks = list(torch.tensor_split(tensor.view(-1), comm.world_size))  # their sizes differ by one element at most
    hops = Hops(comm, bucket)
    _scatter(hops, chunks)
    _gather(hops, chunks)


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
