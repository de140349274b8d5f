"""The communicator: the only place that calls torch.distributed's collectives."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._utils import _take_tensors

from overlaplab_engine import labels
from overlaplab_engine.alarm import note_wait, wake_on_time
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.network import process_group
from overlaplab_engine.network.carrier import Carried, Carrier, urgent_threads
from overlaplab_engine.network.host_link import HostLink, HostStreams
from overlaplab_engine.network.link import Kind, Link, LinkWait
from overlaplab_engine.network.mesh import Mesh
from overlaplab_engine.network.streams import CommStreams

LogMark = tuple[tuple[int, int], ...]
"""How many collectives each group has launched, and how many messages were carried."""
Message = tuple[torch.Tensor, int]
"""A contiguous tensor, and the rank of the group that it goes to, or comes from."""


# torch before 2.13 has other names for these.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_HashStore: Any = torch._C._distributed_c10d.HashStore
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


BROADCAST_BYTES = 32 << 20
"""What is broadcast at once, unless a single tensor is larger."""

_group_counts: "WeakKeyDictionary[dist.ProcessGroup, Counter[str]]" = WeakKeyDictionary()
"""How many collectives and store keys each group has had, whichever of its communicators asked for them."""


def _next_number(group: dist.ProcessGroup, what: str) -> int:
    """The number of the group's next `what`, from 0."""
    counts = _group_counts.setdefault(group, Counter())
    counts[what] += 1
    return counts[what] - 1


class Work:
    """A collective under way; it keeps its tensors alive until waited for. See [Note: buffers kept alive]."""

    def __init__(self, work: Any, tensors: Sequence[Any], check: Callable[[], None]) -> None:
        """`work` is torch.distributed's or a `StreamWork`; `check` raises errors that `work` does not report."""
        self._work = work
        self._tensors = tensors
        self._check = check

    def wait(self) -> None:
        """Block until it is done; on CUDA, make the current stream wait."""
        with note_wait():
            self._work.wait()
        self._tensors = ()
        self._check()

    def is_completed(self) -> bool:
        """Whether it is known to be done; always false for a collective on CUDA."""
        return bool(self._work.is_completed())


class ThreadCall:
    """A call on another thread; see `Communicator.aside`."""

    def __init__(self, future: "Future[None]") -> None:
        self._future = future

    def wait(self) -> None:
        """Block until it has returned; raises what it has raised."""
        self._future.result()

    def is_completed(self) -> bool:
        return self._future.done()


class Communicator:
    """One rank's view of a process group, or of two if all-gathers have their own."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        streams: CommStreams | None = None,
        gathers: dist.ProcessGroup | None = None,
    ) -> None:
        """Communicate through `group`; tensors live on `device`. On CUDA, collectives run on `streams`.

        `gathers` is a second group of the same ranks for all-gathers. NCCL runs the collectives of one group one after
        the other, but may run those of two groups at once.
        """
        self.group = group
        self._emulated = group if isinstance(group, process_group.EmulatedLinkGroup) else None
        self._gathers = gathers or group
        self.device = device
        self._streams = CommStreams() if streams is None and device.type == "cuda" else streams
        self.rank = group.rank()
        self.world_size = group.size()
        # NCCL can average, except with one rank (see _get_gradient_divide_factors in torch's FSDP2), and so can
        # phantoms on a GPU. Gloo only sums, so there gradients are divided beforehand, as torch's DDP does.
        averages = device.type == "cuda" and self.world_size > 1
        self._mean = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM
        self.prescale = 1.0 if averages else 1.0 / self.world_size
        """The factor by which to multiply a gradient before `all_reduce_mean`."""
        self.counts: Counter[Kind] = Counter()
        """Collectives launched here, by kind."""
        self.groups: list[Communicator] = [self]
        """This one, and those that `along` has made of it."""
        self._axes: dict[str, Communicator] = {}
        self._groups_along: dict[tuple[Mesh, str], Communicator] = {}

    def axis(self, name: str) -> "Communicator | None":
        """This rank's group along an axis of the mesh, such as `tp`; None if the mesh has no such groups."""
        return self._axes.get(name)

    @property
    def shards(self) -> "Communicator":
        """The ranks among which parameters are sharded: these, or with HSDP some of them."""
        return self._axes.get("shard", self)

    def along(self, mesh: Mesh, timeout_s: float = 300) -> "Communicator":
        """The data-parallel ranks that this rank is one of, with the groups along the mesh's other axes (`axis`).

        Without other axes these are all ranks, and the result is this communicator. All ranks must call it together.
        The groups of a mesh are made once.
        """
        data = self if mesh.dp == self.world_size else self._group_along(mesh, "dp", timeout_s)
        data._axes = {}
        for axis in reversed(mesh.group_axes):
            if mesh.axes[axis] == self.world_size:
                data._axes[axis] = self
                self.group._set_group_desc(axis)
            else:
                data._axes[axis] = self._group_along(mesh, axis, timeout_s)
        return data

    def _group_along(self, mesh: Mesh, axis: str, timeout_s: float) -> "Communicator":
        if (mesh, axis) not in self._groups_along:
            self._groups_along[mesh, axis] = self._make_group(mesh, axis, timeout_s)
        return self._groups_along[mesh, axis]

    def _make_group(self, mesh: Mesh, axis: str, timeout_s: float) -> "Communicator":
        """This rank's group along an axis; the axis is its description in traces."""
        joined: Any = None
        for ranks in mesh.groups(axis):  # every rank must take part in making every group
            group: Any = dist.new_group(ranks, timeout=timedelta(seconds=timeout_s), group_desc=axis)
            joined = group if self.rank in ranks else joined
        self.groups.append(Communicator(joined, self.device))
        return self.groups[-1]

    @property
    def link(self) -> Link | None:
        """The emulated link, if there is one."""
        return None if self._emulated is None else self._emulated.carrier.link

    def set_link(self, link: Link) -> None:
        """Emulate another link from now on, in all groups, between CPUs; all ranks, while nothing is under way."""
        assert self._emulated is not None
        assert isinstance(self._emulated.carrier, Carrier)
        self._emulated.carrier.wire.link = link

    def mark_log(self) -> LogMark:
        """Return how far the logs of all `groups` have come, for `carried_between`; no message may be under way."""
        return tuple((g.carrier.launched, len(g.messages)) for g in self._emulated_groups())

    def carried_between(self, since: LogMark, until: LogMark) -> list[Carried]:
        """The collectives that were launched between two marks, and the messages, of all `groups`."""
        return [
            carried
            for group, (first, first_message), (end, end_message) in zip(
                self._emulated_groups(), since, until, strict=True
            )
            for carried in (*group.log[first:end], *group.messages[first_message:end_message])
        ]

    def _emulated_groups(self) -> list[process_group.EmulatedLinkGroup]:
        return [comm._emulated for comm in self.groups if comm._emulated is not None]

    @property
    def phantom_ranks(self) -> list[int]:
        """Emulated ranks without a process. If there are any, losses are meaningless; see `network.phantoms`."""
        return [] if self._emulated is None else self._emulated.phantom_ranks

    @property
    def process_count(self) -> int:
        """Ranks with a process of their own."""
        return self.world_size - len(self.phantom_ranks)

    @property
    def scratch_bytes(self) -> int:
        """Memory on this rank's device that phantoms use."""
        return 0 if self._emulated is None else self._emulated.scratch_bytes

    def all_reduce_mean(self, tensor: torch.Tensor) -> Work:
        """Average prescaled tensors over the ranks, in place; returns at once, call `.wait()` for the result."""
        return self._launch(Kind.ALL_REDUCE, tensor, dist.all_reduce, tensor, op=self._mean)

    def all_reduce_future(self, tensor: torch.Tensor) -> "torch.futures.Future[list[torch.Tensor]]":
        """Like `all_reduce_mean`, on torch's own stream and with its future: for DDP, which waits by itself."""
        with self._span(Kind.ALL_REDUCE, [tensor], self.group):
            work: Any = dist.all_reduce(tensor, op=self._mean, group=self.group, async_op=True)
        future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
        return future

    def all_reduce_max(self, tensor: torch.Tensor) -> Work:
        """The elementwise maximum over the ranks, in place; returns at once."""
        return self._launch(Kind.ALL_REDUCE, tensor, dist.all_reduce, tensor, op=dist.ReduceOp.MAX)

    def all_reduce_sum(self, tensor: torch.Tensor) -> Work:
        """The elementwise sum over the ranks, in place; returns at once."""
        return self._launch(Kind.ALL_REDUCE, tensor, dist.all_reduce, tensor, op=dist.ReduceOp.SUM)

    def all_gather(self, full: torch.Tensor, shard: torch.Tensor) -> Work:
        """Fill `full` (world size × elements,) with every rank's `shard` (elements,), in rank order; returns at once.

        `shard` may be a view of this rank's part of `full`.
        """
        return self._launch(Kind.ALL_GATHER, full, all_gather_single, full, shard)

    def reduce_scatter_sum(self, shard: torch.Tensor, full: torch.Tensor) -> Work:
        """Add up tensors as `reduce_scatter_mean` averages them."""
        return self._launch(Kind.REDUCE_SCATTER, full, _reduce_scatter, shard, full, op=dist.ReduceOp.SUM)

    def reduce_scatter_mean(self, shard: torch.Tensor, full: torch.Tensor) -> Work:
        """Average prescaled tensors over the ranks; `shard` gets this rank's part of the mean. Returns at once.

        `shard` may be a view of this rank's part of `full`.
        """
        return self._launch(Kind.REDUCE_SCATTER, full, _reduce_scatter, shard, full, op=self._mean)

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Work:
        """Send and receive messages, posted together so that no order of them can block; returns at once.

        Messages from one rank to another arrive in the order in which they are sent. Do not change a tensor before the
        work is waited for.
        """
        tensors = [tensor for tensor, _ in (*sends, *receives)]
        works = self._batch(sends, receives) if self.device.type == "cuda" else self._post(sends, receives)
        return Work(process_group.AllWorks(works), tensors, self._check)

    def aside(self, call: Callable[[], None]) -> Work:
        """Run a collective by hand, made of exchanges that it waits for, beside the computation; returns at once.

        On a CPU such calls run one after another on a thread of their own, on CUDA on the stream of reductions. What
        `call` raises, `wait` raises.
        """
        if self._streams is not None:
            return Work(self._streams.launch(Kind.SEND_RECV, call), (), self._check)
        return Work(ThreadCall(self._by_hand_thread.submit(call)), (), self._check)

    def host_link(self, emulated: Link) -> HostLink | HostStreams:
        """This rank's link to its host's memory: a GPU's own, or the emulated one."""
        return HostLink(emulated) if self._streams is None else HostStreams(self._streams.cuda)

    @cached_property
    def _by_hand_thread(self) -> ThreadPoolExecutor:
        """One thread with the priority of gloo's own, which behind a link is the link's.

        Whoever posts a message, or lets go of one, spins until gloo's threads are done with it; meanwhile threads of
        lower priority would get no core.
        """
        with nullcontext() if self.link is None else urgent_threads():
            thread = ThreadPoolExecutor(1, "by-hand")
            thread.submit(wake_on_time).result()  # starts the thread
        return thread

    @torch.no_grad()
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy rank 0's values to every rank, in place.

        Tensors of one type travel together, as in torch's DDP (_broadcast_coalesced), but at most BROADCAST_BYTES of
        them at a time, because that is memory that they take besides. A contiguous tensor on its own is not copied.
        """
        for piece in _take_tensors(tensors, BROADCAST_BYTES):  # type: ignore[no-untyped-call]
            alone = len(piece) == 1 and piece[0].is_contiguous()
            flat = piece[0] if alone else torch.cat([tensor.reshape(-1) for tensor in piece])
            self._launch(Kind.BROADCAST, flat, dist.broadcast, flat, group_src=0).wait()
            if not alone:
                for tensor, values in zip(piece, flat.split([tensor.numel() for tensor in piece]), strict=True):
                    tensor.copy_(values.view_as(tensor))

    def broadcast_ints(self, values: list[int]) -> list[int]:
        """Rank 0's list of integers (of the same length on all ranks)."""
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        self.broadcast([tensor])
        return [int(value) for value in tensor.tolist()]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order; phantoms have this rank's value."""
        if self.phantom_ranks:
            return [value] * self.world_size
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        self._check()
        return values

    def new_store_key(self) -> str:
        """A prefix of keys for `exchange_through_store` that nobody else uses; all ranks must ask in the same order."""
        return f"overlaplab/{self.group.group_name}/{_next_number(self.group, 'store key') + 1}"

    def exchange_through_store(self, key: str, value: str, timeout_s: float) -> list[str] | None:
        """Publish a value under a new key; returns every rank's value in rank order, None if one is late.

        It goes through the rendezvous' store and not through a collective, so that a rank that is late blocks no other.
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
        """Rank 0's value; among phantoms, this rank's."""
        if self.phantom_ranks:
            return value
        values = [value]
        dist.broadcast_object_list(values, group=self.group, group_src=0, device=self.device)
        self._check()
        return values[0]

    @cached_property
    def object_group(self) -> dist.ProcessGroup:
        """A group for torch.distributed.checkpoint, whose plans take no time on an emulated link.

        All ranks must access this property together, because it may create the group.
        """
        return self.group if self.link is None else dist.new_group(backend="gloo")

    def say(self, text: str) -> None:
        """Tell the user of `overlaplab record`, on rank 0's stderr."""
        if self.rank == 0:
            print(f"overlaplab record: {text}", file=sys.stderr)

    def barrier(self) -> None:
        dist.barrier(group=self.group)
        self._check()

    def close(self) -> None:
        """Carry what is queued and leave the group, and those made of it."""
        if "_by_hand_thread" in vars(self):
            self._by_hand_thread.shutdown()
        for group in reversed(self._emulated_groups()):
            group.close()
        dist.destroy_process_group(self.group)

    def _launch(self, kind: Kind, tensor: torch.Tensor, call: Callable[..., Any], *args: Any, **more: Any) -> Work:
        group = self._gathers if kind is Kind.ALL_GATHER else self.group

        def launch() -> Any:
            with self._span(kind, [tensor], group):
                return call(*args, group=group, async_op=self._streams is None, **more)

        return Work(launch() if self._streams is None else self._streams.launch(kind, launch), args, self._check)

    def _post(self, sends: Sequence[Message], receives: Sequence[Message]) -> list[Any]:
        """On a CPU: one message after another, each with its own label."""
        works: list[Any] = []
        for tensor, peer in sends:
            with self._span(Kind.SEND_RECV, [tensor], self.group, lane=f"{self.rank}-{peer}"):
                works.append(dist.isend(tensor, group=self.group, group_dst=peer))
        for tensor, peer in receives:
            with self._span(Kind.SEND_RECV, [tensor], self.group, lane=f"{peer}-{self.rank}"):
                works.append(dist.irecv(tensor, group=self.group, group_src=peer))
        return works

    def _batch(self, sends: Sequence[Message], receives: Sequence[Message]) -> list[Any]:
        """On a GPU: NCCL runs all of them as one kernel, on a stream of its own that first waits for the current one.

        Its label has the bytes of the direction in which more is moved.
        """
        operations = [dist.P2POp(dist.isend, tensor, group=self.group, group_peer=peer) for tensor, peer in sends]
        operations += [dist.P2POp(dist.irecv, tensor, group=self.group, group_peer=peer) for tensor, peer in receives]
        sent, received = [tensor for tensor, _ in sends], [tensor for tensor, _ in receives]
        with self._span(Kind.SEND_RECV, max(sent, received, key=_nbytes), self.group):
            return list(dist.batch_isend_irecv(operations))

    def _check(self) -> None:
        if self._emulated is not None:
            self._emulated.carrier.check()

    @contextmanager
    def _span(
        self, kind: Kind, tensors: Sequence[torch.Tensor], group: dist.ProcessGroup, lane: str = ""
    ) -> Iterator[None]:
        """Label a launch. On CUDA it is `engine::comm`, whose correlations identify the communicating device events.

        On CPU the collective runs on another thread. The emulated link's thread writes its own label; gloo's ranges
        lack the size, so for them the launch gets an `engine::collective`. `lane` names messages by their sender and
        receiver: each such pair numbers its own, as the emulated link does.
        """
        name = f"{group.group_name}:{lane}" if lane else group.group_name
        # Ranks may send unequally many messages, which would move the numbers of collectives.
        seq = _next_number(group, lane or ("message" if kind is Kind.SEND_RECV else "collective"))
        self.counts[kind] += 1
        if self.link is not None:
            yield
            return
        word = Word.COMM if self.device.type == "cuda" else Word.COLLECTIVE
        dtype = labels.dtype_name(tensors[0].dtype)
        with labels.span(word, seq=seq, kind=kind, dtype=dtype, bytes=_nbytes(tensors), group=name):
            yield


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def connect(
    device: torch.device,
    link: Link | None = None,
    timeout_s: float = 300,
    *,
    wait: LinkWait = LinkWait.KERNEL,
    communicators: int = 1,
) -> Communicator:
    """Join the ranks that torchrun or `overlaplab_engine.launch` started. EngineError if they cannot be reached.

    From then on `device`, if it is a GPU, is the current one. If there is one rank and `link` names more, the other
    ranks are phantoms. `wait` says what holds up a GPU's stream behind a link.

    With 2 `communicators`, all-gathers have a group of their own; an emulated link supports only one. Kernels of two
    NCCL communicators can deadlock if different ranks start them in different orders. Therefore NCCL (2.26 or newer) is
    told to start them in the order of their launches, which is the same on all ranks (NCCL's user guide, "Using
    multiple NCCL communicators concurrently").
    """
    timeout = timedelta(seconds=timeout_s)
    gathers: Any = None
    if communicators == 2:
        os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")  # NCCL reads it when it starts
    try:
        if device.type == "cuda" and device.index is not None:  # streams and objects go by the current device
            torch.cuda.set_device(device)
        if link is not None:
            _emulate(link, device, timeout, wait)
        elif device.type == "cuda":
            dist.init_process_group("nccl", timeout=timeout, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=timeout)
        if communicators == 2:
            gathers = dist.new_group(timeout=timeout, group_desc="gathers")
    except (dist.DistError, RuntimeError) as error:
        text = " ".join(str(error).partition("Exception raised from")[0].split())  # without the C++ stack
        raise EngineError(f"the ranks cannot be reached: {text}") from error
    group = dist.group.WORLD
    assert group is not None
    return Communicator(group, device, gathers=gathers)


def _emulate(link: Link, device: torch.device, timeout: timedelta, wait: LinkWait) -> None:
    """Create the default group, behind `link`."""
    ranks = int(os.environ["WORLD_SIZE"])
    phantoms = link.stands_alone(ranks) or device.type == "cuda"
    process_group.register()
    if device.type == "cpu":
        sys.setswitchinterval(1e-4)  # the link's thread must not wait 5 ms for the interpreter
    emulation = process_group.Emulation(
        link=replace(link, world_size=None),  # groups that are made later are modelled by their own size
        alone_on=device if phantoms else None,
        wait=wait,
    )
    alone: dict[str, Any] = {}
    if phantoms:  # there is no other process: the store is in this one, as for torch's fake process group
        alone = {"store": _HashStore(), "rank": 0, "world_size": link.world_size or 1}
    dist.init_process_group(process_group.BACKEND, timeout=timeout, pg_options=emulation, **alone)


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error only says that another rank has gone; then that rank's error is the one to read."""
    text = str(error).lower()
    if isinstance(error, dist.DistError) and not isinstance(error, dist.DistBackendError):
        return True
    # NCCL's errors may be this rank's own; only these concern the other end.
    lost = ("gloo/transport", "connection closed by", "connection reset by peer", "remote process exit")
    return any(words in text for words in lost)
