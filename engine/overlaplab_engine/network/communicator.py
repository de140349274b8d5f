"""The communicator: the only place that calls torch.distributed's collectives."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.network import process_group
from overlaplab_engine.network.carrier import Carried
from overlaplab_engine.network.link import Kind, Link, LinkWait
from overlaplab_engine.network.streams import CommStreams

__all__ = ["Communicator", "Work", "connect", "is_lost_peer"]


# Before torch 2.13 they have other names.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_HashStore: Any = torch._C._distributed_c10d.HashStore
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Work:
    """A collective under way; it keeps its tensors until it is waited for. See [Note: buffers kept alive]."""

    def __init__(self, work: Any, tensors: Sequence[Any], check: Callable[[], None]) -> None:
        """`work` is torch.distributed's or a `StreamWork`; `check` raises what went wrong without its knowing."""
        self._work = work
        self._tensors = tensors
        self._check = check

    def wait(self) -> None:
        """Block until it is done; on CUDA, make the current stream wait."""
        self._work.wait()
        self._tensors = ()
        self._check()

    def is_completed(self) -> bool:
        """Whether it is known to be done; on CUDA never."""
        return bool(self._work.is_completed())


class Communicator:
    """One rank's view of a process group, and of a second one for all-gathers if there are two."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        streams: CommStreams | None = None,
        gathers: dist.ProcessGroup | None = None,
    ) -> None:
        """Talk through `group`; `device` is where its tensors live, and `streams` are its own on CUDA.

        `gathers` is a group of the same ranks: all-gathers then go through it. NCCL runs the collectives of one group
        one after the other, and those of two at once.
        """
        self.group = group
        self._gathers = gathers or group
        self.device = device
        self._streams = CommStreams() if streams is None and device.type == "cuda" else streams
        self.rank = group.rank()
        self.world_size = group.size()
        self.backend = str(dist.get_backend(group))
        # NCCL averages by itself (among several; _get_gradient_divide_factors in torch's FSDP2 says why), and so do the
        # phantoms of a GPU; gloo only sums, so gradients are divided before, as torch DDP does.
        averages = device.type == "cuda" and self.world_size > 1
        self._mean = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM
        self.prescale = 1.0 if averages else 1.0 / self.world_size
        """What a gradient must be multiplied by before `all_reduce_mean`."""
        self._launches: Counter[str] = Counter()  # in each group, by its name
        self._store_keys = 0
        self.counts: Counter[Kind] = Counter()
        """How many collectives of each kind were launched here."""

    @property
    def link(self) -> Link | None:
        """The emulated link, if there is one."""
        return self.group.link if isinstance(self.group, process_group.EmulatedLinkGroup) else None

    @property
    def launched(self) -> int:
        """How many collectives were launched on an emulated link so far."""
        return self.group.launched if isinstance(self.group, process_group.EmulatedLinkGroup) else 0

    @property
    def carried(self) -> Sequence[Carried]:
        """What an emulated link carried so far; empty without one. On a GPU this waits for it."""
        return self.group.log if isinstance(self.group, process_group.EmulatedLinkGroup) else ()

    @property
    def phantom_ranks(self) -> list[int]:
        """The ranks of the group that are not there, so that numerics are not meant; see `network.phantoms`."""
        return self.group.phantom_ranks if isinstance(self.group, process_group.EmulatedLinkGroup) else []

    @property
    def scratch_bytes(self) -> int:
        """Memory of this rank's device that is lent to phantoms."""
        return self.group.scratch_bytes if isinstance(self.group, process_group.EmulatedLinkGroup) else 0

    def all_reduce_mean(self, tensor: torch.Tensor) -> Work:
        """Average prescaled tensors over the ranks, in place; returns at once, `.wait()` for the result."""
        return self._launch(Kind.ALL_REDUCE, tensor, dist.all_reduce, tensor, op=self._mean)

    def all_reduce_future(self, tensor: torch.Tensor) -> "torch.futures.Future[list[torch.Tensor]]":
        """As `all_reduce_mean`, on torch's own stream, with torch's own future: for DDP, which waits by itself."""
        with self._span(Kind.ALL_REDUCE, tensor, self.group):
            work: Any = dist.all_reduce(tensor, op=self._mean, group=self.group, async_op=True)
        future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
        return future

    def all_reduce_max(self, tensor: torch.Tensor) -> Work:
        """The elementwise largest over the ranks, in place; returns at once."""
        return self._launch(Kind.ALL_REDUCE, tensor, dist.all_reduce, tensor, op=dist.ReduceOp.MAX)

    def all_reduce_sum(self, tensor: torch.Tensor) -> Work:
        """The elementwise sum over the ranks, in place; returns at once."""
        return self._launch(Kind.ALL_REDUCE, tensor, dist.all_reduce, tensor, op=dist.ReduceOp.SUM)

    def all_gather(self, full: torch.Tensor, shard: torch.Tensor) -> Work:
        """Fill `full` (world size × elements,) with every rank's `shard` (elements,), in rank order; returns at once.

        `shard` may be this rank's part of `full`.
        """
        return self._launch(Kind.ALL_GATHER, full, _all_gather, full, shard)

    def reduce_scatter_mean(self, shard: torch.Tensor, full: torch.Tensor) -> Work:
        """Average prescaled tensors over the ranks; this rank's part of the mean lands in `shard`. Returns at once.

        `shard` may be this rank's part of `full`.
        """
        return self._launch(Kind.REDUCE_SCATTER, full, _reduce_scatter, shard, full, op=self._mean)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give every rank rank 0's values, in place."""
        works = []
        for tensor in tensors:
            works.append(self._launch(Kind.BROADCAST, tensor, dist.broadcast, tensor, group_src=0))
        for work in works:
            work.wait()

    def broadcast_ints(self, values: list[int]) -> list[int]:
        """Rank 0's list of integers (of the same length on all ranks)."""
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        self.broadcast([tensor])
        return [int(value) for value in tensor.tolist()]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order; phantoms have what this rank has."""
        if self.phantom_ranks:
            return [value] * self.world_size
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        self._check()
        return values

    def new_store_key(self) -> str:
        """A prefix of keys for `exchange_through_store` that nobody else uses; all ranks must ask in the same order."""
        self._store_keys += 1
        return f"overlaplab/{self.group.group_name}/{self._store_keys}"

    def exchange_through_store(self, key: str, value: str, timeout_s: float) -> list[str] | None:
        """Every rank's value under a new key, in rank order; None if some rank has not given its own in time.

        Through the store of the rendezvous: no collective, so that one rank's silence blocks no other's.
        """
        if self.phantom_ranks:
            return [value] * self.world_size
        store: Any = torch.distributed.distributed_c10d._get_default_store()
        store.set(f"{key}/{self.rank}", value)
        keys = [f"{key}/{rank}" for rank in range(self.world_size)]
        try:
            store.wait(keys, timedelta(seconds=timeout_s))
        except dist.DistStoreError:
            return None
        return [store.get(key).decode() for key in keys]

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value; a phantom's is this rank's."""
        if self.phantom_ranks:
            return value
        values = [value]
        dist.broadcast_object_list(values, group=self.group, group_src=0, device=self.device)
        self._check()
        return values[0]

    @cached_property
    def for_objects(self) -> dist.ProcessGroup:
        """A group that also gathers and scatters, as torch.distributed.checkpoint does and an emulated link does not.

        Every rank must ask for it.
        """
        return self.group if self.link is None else dist.new_group(backend="gloo")

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier(group=self.group)
        self._check()

    def close(self) -> None:
        """Carry what is queued and leave the group."""
        if isinstance(self.group, process_group.EmulatedLinkGroup):
            self.group.close()
        dist.destroy_process_group(self.group)

    def _launch(self, kind: Kind, tensor: torch.Tensor, call: Callable[..., Any], *args: Any, **more: Any) -> Work:
        group = self._gathers if kind is Kind.ALL_GATHER else self.group

        def launch() -> Any:
            with self._span(kind, tensor, group):
                return call(*args, group=group, async_op=self._streams is None, **more)

        return Work(launch() if self._streams is None else self._streams.launch(kind, launch), args, self._check)

    def _check(self) -> None:
        if isinstance(self.group, process_group.EmulatedLinkGroup):
            self.group.check()

    @contextmanager
    def _span(self, kind: Kind, tensor: torch.Tensor, group: dist.ProcessGroup) -> Iterator[None]:
        """Around a launch, on CUDA: `engine::comm`, which tells by correlation which device events communicate.

        On CPU the collective runs elsewhere: the emulated link's thread says so itself, and for gloo's, which say
        nothing of the size, an `engine::collective` does.
        """
        name = group.group_name
        seq = self._launches[name]
        self._launches[name] += 1
        self.counts[kind] += 1
        if self.link is not None:
            yield
            return
        word = Word.COMM if self.device.type == "cuda" else Word.COLLECTIVE
        dtype = str(tensor.dtype).removeprefix("torch.")
        with labels.span(word, seq=seq, kind=kind, dtype=dtype, bytes=tensor.nbytes, group=name):
            yield


def connect(
    device: torch.device,
    link: Link | None = None,
    timeout_s: float = 300,
    *,
    wait: LinkWait = LinkWait.KERNEL,
    communicators: int = 1,
) -> Communicator:
    """Join the ranks that torchrun, or `overlaplab_engine.launch`, started. EngineError when they cannot be reached.

    One rank alone, behind a link that names more, stands for a group of so many: the others are phantoms. `wait` says
    what holds up a GPU's stream behind a link.

    With 2 `communicators` all-gathers have a group of their own; an emulated link carries one collective at a time, and
    is for one. Kernels of two NCCL communicators that wait for room on the GPU in different orders on different ranks
    can deadlock, so NCCL (2.26 or newer) is told to start them in the order of their launches, which is the same on all
    ranks (NCCL's user guide, "Using multiple NCCL communicators concurrently").
    """
    timeout = timedelta(seconds=timeout_s)
    gathers: Any = None
    if communicators == 2:
        os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")  # which NCCL reads when it begins
    try:
        if link is not None:
            _emulate(link, device, timeout, wait)
        elif device.type == "cuda":
            dist.init_process_group("nccl", timeout=timeout, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=timeout)
        if communicators == 2:
            gathers = dist.new_group(timeout=timeout, group_desc="gathers")
    except (dist.DistError, RuntimeError) as error:
        text = " ".join(str(error).partition("Exception raised from")[0].split())  # less the C++ stack
        raise EngineError(f"the ranks cannot be reached: {text}") from error
    group = dist.group.WORLD
    assert group is not None
    return Communicator(group, device, gathers=gathers)


def _emulate(link: Link, device: torch.device, timeout: timedelta, wait: LinkWait) -> None:
    """Make the default group one behind `link`."""
    ranks = int(os.environ["WORLD_SIZE"])
    phantoms = link.stands_alone(ranks) or device.type == "cuda"
    process_group.register()
    if device.type == "cpu":
        sys.setswitchinterval(1e-4)  # [Note: one thread is the link]: it must not wait 5 ms for the interpreter
    emulation = process_group.Emulation(
        link=replace(link, world_size=None),  # a smaller group's collectives reckon with its own size
        alone_on=device if phantoms else None,
        wait=wait,
    )
    alone: dict[str, Any] = {}
    if phantoms:  # they meet nobody: a store in this process, as for torch's fake process group
        alone = {"store": _HashStore(), "rank": 0, "world_size": link.world_size or 1}
    dist.init_process_group(process_group.BACKEND, timeout=timeout, pg_options=emulation, **alone)


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error only says that another rank has gone, so that the other rank's error is the one to read."""
    text = str(error).lower()
    if isinstance(error, dist.DistError) and not isinstance(error, dist.DistBackendError):
        return True
    # Of NCCL's errors, which may be this rank's own, those that speak of the other end.
    lost = ("gloo/transport", "connection closed by", "connection reset by peer", "remote process exit")
    return any(words in text for words in lost)
