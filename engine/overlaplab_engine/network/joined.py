"""Means over the ranks that have inputs left, within a user's `DistributedDataParallel.join`; see that."""

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, ProcessGroup


def count_ranks_left(group: ProcessGroup, device: torch.device) -> torch.Tensor:
    """How many ranks have not joined, of shape (); each rank asks at the same place among the group's collectives.

    DDP counts them in the forward pass, and tells its reducer alone. A rank that has joined is in no backward pass.
    """
    left = torch.tensor(float(torch._C._current_graph_task_id() != -1), device=device)
    dist.all_reduce(left, group=group)
    return left


def average(bucket: GradBucket, ranks: torch.Tensor, group: ProcessGroup) -> torch.futures.Future[torch.Tensor]:
    """The group's sum of a bucket, divided by this many ranks, as torch's `allreduce_hook` divides by all."""
    work = dist.all_reduce(bucket.buffer().div_(ranks), group=group, async_op=True)
    future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
    return future.then(lambda reduced: reduced.value()[0])
