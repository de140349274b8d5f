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
    # After n − 1 hops chunk r of rank r holds the sum over all ranks; in its other chunks lie partial sums.
    _pass_round(hops, chunks, Kind.REDUCE_SCATTER, comm.rank - 1, add=True)
    # After n − 1 more every rank has chunk r of every rank r.
    _pass_round(hops, chunks, Kind.ALL_GATHER, comm.rank)


def _pass_round(hops: Hops, chunks: list[torch.Tensor], kind: Kind, first: int, *, add: bool = False) -> None:
    """Send chunk `first`, and in each of the n − 2 next hops the one that came in the hop before."""
    n, rank = hops.comm.world_size, hops.comm.rank
    for hop in range(n - 1):
        sends, receives = (first - hop) % n, (first - hop - 1) % n
        send, receive = Chunk(sends, chunks[sends], (rank + 1) % n), Chunk(receives, chunks[receives], (rank - 1) % n)
        hops.make(kind, send, receive, add=add)
