"""The communicator: the only place that calls torch.distributed's collectives."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from engine import labels, process_group
from engine.carrier import Carried
from engine.errors import EngineError
from engine.labels import Word
from engine.link import Kind, Link

__all__ = ["Communicator", "connect", "is_lost_peer"]


class Communicator:
    """One rank's view of a process group."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Talk through `group`; `device` is where its tensors live."""
        self.group = group
        self.device = device
        self.rank = group.rank()
        self.world_size = group.size()
        self.backend = str(dist.get_backend(group))
        # NCCL averages by itself; gloo only sums, so gradients are divided before, as torch DDP does.
        self._mean = dist.ReduceOp.AVG if self.backend == "nccl" else dist.ReduceOp.SUM
        self.prescale = 1.0 if self.backend == "nccl" else 1.0 / self.world_size
        """What a gradient must be multiplied by before `all_reduce_mean`."""
        self._seq = 0

    @property
    def link(self) -> Link | None:
        """The emulated link, if there is one."""
        return self.group.link if isinstance(self.group, process_group.EmulatedLinkGroup) else None

    @property
    def carried(self) -> Sequence[Carried]:
        """What an emulated link carried so far; empty without one."""
        return self.group.log if isinstance(self.group, process_group.EmulatedLinkGroup) else ()

    def all_reduce_mean(self, tensor: torch.Tensor) -> dist.Work:
        """Average prescaled tensors over the ranks, in place; returns at once, `.wait()` for the result."""
        return self._all_reduce(tensor, self._mean)

    def all_reduce_max(self, tensor: torch.Tensor) -> dist.Work:
        """The elementwise largest over the ranks, in place; returns at once."""
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give every rank rank 0's values, in place."""
        works = []
        for tensor in tensors:
            with self._span(Kind.BROADCAST, tensor):
                works.append(dist.broadcast(tensor, group=self.group, group_src=0, async_op=True))
        for work in works:
            work.wait()

    def broadcast_ints(self, values: list[int]) -> list[int]:
        """Rank 0's list of integers (of the same length on all ranks)."""
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        self.broadcast([tensor])
        return [int(value) for value in tensor.tolist()]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value."""
        values = [value]
        dist.broadcast_object_list(values, group=self.group, group_src=0, device=self.device)
        return values[0]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier(group=self.group)

    def close(self) -> None:
        """Carry what is queued and leave the group."""
        if isinstance(self.group, process_group.EmulatedLinkGroup):
            self.group.close()
        dist.destroy_process_group(self.group)

    def _all_reduce(self, tensor: torch.Tensor, operation: Any) -> dist.Work:
        with self._span(Kind.ALL_REDUCE, tensor):
            work: dist.Work | None = dist.all_reduce(tensor, op=operation, group=self.group, async_op=True)
        assert work is not None
        return work

    @contextmanager
    def _span(self, kind: Kind, tensor: torch.Tensor) -> Iterator[None]:
        """On CUDA, `engine::comm` around the launch tells by correlation which device events communicate.

        On CPU the collective runs elsewhere: gloo's threads, or the emulated link's, say so themselves.
        """
        if self.device.type != "cuda":
            yield
            return
        seq, self._seq = self._seq, self._seq + 1
        with labels.span(
            Word.COMM,
            seq=seq,
            kind=kind,
            dtype=str(tensor.dtype).removeprefix("torch."),
            bytes=tensor.nbytes,
            group=self.group.group_name,
        ):
            yield


def connect(device: torch.device, link: Link | None = None, timeout_s: float = 300) -> Communicator:
    """Join the ranks that torchrun, or `engine.launch`, started. EngineError when they cannot be reached."""
    timeout = timedelta(seconds=timeout_s)
    try:
        if link is not None:
            if link.world_size not in (None, int(os.environ["WORLD_SIZE"])):
                raise EngineError(
                    f"--link {link}: recording emulates the ranks that there are ({os.environ['WORLD_SIZE']}); "
                    "leave WORLD out"
                )
            process_group.register()
            sys.setswitchinterval(1e-4)  # [Note: one thread is the link]: it must not wait 5 ms for the interpreter
            dist.init_process_group(process_group.BACKEND, timeout=timeout, pg_options=link)
        elif device.type == "cuda":
            dist.init_process_group("nccl", timeout=timeout, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=timeout)
    except (dist.DistError, RuntimeError) as error:
        text = " ".join(str(error).partition("Exception raised from")[0].split())  # less the C++ stack
        raise EngineError(f"the ranks cannot be reached: {text}") from error
    group = dist.group.WORLD
    assert group is not None
    return Communicator(group, device)


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error only says that another rank has gone, so that the other rank's error is the one to read."""
    text = str(error).lower()
    if isinstance(error, dist.DistError) and not isinstance(error, dist.DistBackendError):
        return True
    # Of NCCL's errors, which may be this rank's own, those that speak of the other end.
    lost = ("gloo/transport", "connection closed by", "connection reset by peer", "remote process exit")
    return any(words in text for words in lost)
