"""Means over the ranks that have inputs left, within a user's `DistributedDataParallel.join`; see that."""

from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, ProcessGroup
from torch.distributed.algorithms.join import Join

_COUNTS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""For each model the all-reduce in which its last forward pass counted the ranks that have not joined."""


def note_counts() -> None:
    """Note from now on how many ranks have inputs left, which DDP counts and passes on to its reducer alone.

    A count of our own would need the hook on every rank, and one rank may record alone.
    """
    original = Join.notify_join_context
    if getattr(original, "notes_counts", False):
        return

    @wraps(original)
    def notify(joinable: Any) -> Any:
        work = original(joinable)
        if work is not None:
            _COUNTS[joinable] = work
        return work

    notify.notes_counts = True  # type: ignore[attr-defined]
    Join.notify_join_context = staticmethod(notify)  # type: ignore[method-assign]


def average(ddp: Any, bucket: GradBucket, group: ProcessGroup) -> torch.futures.Future[torch.Tensor]:
    """The group's sum of a bucket, divided by the ranks left; what a rank that has joined divides is zero.

    `Reducer` in torch/csrc/distributed/c10d/reducer.cpp does so where no hook is registered.
    """
    ranks: Any = group.size()
    if (count := _COUNTS.get(ddp)) is not None:
        count.wait()
        ranks = count.get_future().value()[0]
    work = dist.all_reduce(bucket.buffer().div_(ranks), group=group, async_op=True)
    future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
    return future.then(lambda reduced: reduced.value()[0])
