"""The emulated link as a process group, so that any code that uses torch.distributed can run behind it.

A group consists of a mover, which has the methods of gloo's process group and really moves data, and of a carrier,
which makes each collective take as long as the model says. Between processes on CPUs the mover is gloo and the carrier
a thread. A single rank, on a CPU or a GPU, can stand for a whole group; then its peers are phantoms.
"""

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed

from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.carrier import Carried, Carrier, urgent_threads
from overlaplab_engine.network.link import Kind, Link, LinkWait
from overlaplab_engine.network.messages import Messages
from overlaplab_engine.network.phantoms import Phantoms
from overlaplab_engine.network.stream_carrier import StreamCarrier, link_clock
from overlaplab_engine.network.wire import IN, OUT, Wire

dist: Any = torch.distributed  # its type stubs lack most of the names that a process group needs

BACKEND = "emulated"


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """The options of an emulated group, passed to torch as `pg_options`."""

    link: Link
    alone_on: torch.device | None = None
    """The device of a single rank whose peers are phantoms; None: all ranks exist, on CPUs."""
    wait: LinkWait = LinkWait.KERNEL
    """What holds up a GPU's stream."""

    @cached_property
    def wire(self) -> Wire:
        """This rank's end of the link, between CPUs, which all groups with these options share."""
        return Wire(self.link)


class EmulatedLinkGroup(dist.ProcessGroup):  # type: ignore[misc]  # a subclass of Any
    """A process group behind an emulated link; DDP, FSDP2 and functional collectives can use it too."""

    def __init__(
        self, rank: int, size: int, mover: Any, carrier: Carrier | StreamCarrier, messages: Messages | None = None
    ) -> None:
        """`mover` has the methods of ProcessGroupGloo that this class calls; `messages` is None among phantoms."""
        super().__init__(rank, size)
        self._description = ""
        self._rank, self._size = rank, size
        self._mover = mover
        self.carrier = carrier
        self._submit = carrier.submit
        self._messages = messages
        self.phantom_ranks = [r for r in range(size) if r != rank] if isinstance(mover, Phantoms) else []
        """Emulated ranks without a process; empty if there are none. With any, losses are meaningless."""
        # Runs once: when the group is closed or garbage-collected, or when the interpreter ends.
        self._end = weakref.finalize(self, _close, messages, carrier)

    @property
    def scratch_bytes(self) -> int:
        """Bytes lent to phantoms, which figures of memory leave out; 0 without phantoms."""
        return self._mover.scratch_bytes if isinstance(self._mover, Phantoms) else 0

    @property
    def log(self) -> Sequence[Carried]:
        """The collectives carried so far, in order; on a GPU this waits for the link."""
        return self.carrier.log

    @property
    def messages(self) -> Sequence[Carried]:
        """The messages sent and received so far, in order of their ends; among phantoms they are in `log`."""
        return self._messages.log if self._messages is not None else ()

    @contextmanager
    def begin_after(self, ready: Callable[[], None]) -> Iterator[None]:
        """Let what is launched inside on CPUs begin when `ready` returns, which is called on another thread."""
        assert isinstance(self.carrier, Carrier)
        self.carrier.ready = ready
        try:
            yield
        finally:
            self.carrier.ready = None

    def close(self) -> None:
        """Carry what is queued, stop, and free the phantoms' memory."""
        self._end()
        self._mover = None

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllreduceOptions()
        return self._submit(Kind.ALL_REDUCE, tensors, partial(self._mover.allreduce, tensors, opts), tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._submit(Kind.ALL_REDUCE, tensors, partial(self._mover.allreduce_coalesced, tensors, opts), tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        opts = opts or dist.BroadcastOptions()
        return self._submit(Kind.BROADCAST, tensors, partial(self._mover.broadcast, tensors, opts), tensors)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllgatherOptions()
        full = [tensor for output in outputs for tensor in output]
        return self._submit(Kind.ALL_GATHER, full, partial(self._mover.allgather, outputs, inputs, opts), outputs)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = opts or dist.AllgatherOptions()
        work = partial(self._mover._allgather_base, output, input, opts)
        return self._submit(Kind.ALL_GATHER, [output], work, [output])

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        opts = opts or dist.AllgatherOptions()
        work = partial(_launch_each, self._mover._allgather_base, outputs, inputs, opts)
        return self._submit(Kind.ALL_GATHER, outputs, work, outputs)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        full = [tensor for tensors in inputs for tensor in tensors]
        work = partial(self._mover.reduce_scatter, outputs, inputs, opts)
        return self._submit(Kind.REDUCE_SCATTER, full, work, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        work = partial(self._mover._reduce_scatter_base, output, input, opts)
        return self._submit(Kind.REDUCE_SCATTER, [input], work, [output])

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        work = partial(_launch_each, self._mover._reduce_scatter_base, outputs, inputs, opts)
        return self._submit(Kind.REDUCE_SCATTER, inputs, work, outputs)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        opts = opts or dist.ReduceOptions()
        return self._submit(Kind.REDUCE, tensors, partial(self._mover.reduce, tensors, opts), tensors)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        opts = opts or dist.GatherOptions()
        work = partial(self._mover.gather, outputs, inputs, opts)
        return self._submit(Kind.GATHER, inputs * self._size, work, outputs)  # one part for each rank

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        opts = opts or dist.ScatterOptions()
        work = partial(self._mover.scatter, outputs, inputs, opts)
        return self._submit(Kind.SCATTER, outputs * self._size, work, outputs)  # one part for each rank

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int = 0) -> Any:
        return self._message(OUT, tensors, destination, tag, partial(self._mover.send, tensors, destination, tag))

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        return self._message(IN, tensors, source, tag, partial(self._mover.recv, tensors, source, tag))

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        raise EngineError("behind an emulated link a receive must name its source: recv(tensor, src=RANK)")

    def _message(self, way: int, tensors: list[torch.Tensor], peer: int, tag: int, post: Callable[[], Any]) -> Any:
        """`way` is `OUT` to the peer, or `IN` from it."""
        if self._messages is None:  # no peer waits for its turn, so that messages may queue with collectives
            return self._submit(Kind.SEND_RECV, tensors, post, tensors)
        return self._messages.submit(way, peer, tag, tensors, post)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllToAllOptions()
        full = max(outputs, inputs, key=lambda tensors: sum(t.nbytes for t in tensors))
        work = partial(_all_to_all_lists, self._mover, outputs, inputs, opts)
        return self._submit(Kind.ALL_TO_ALL, full, work, outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Any:
        opts = opts or dist.AllToAllOptions()
        work = partial(self._mover.alltoall_base, output, input, output_splits, input_splits, opts)
        return self._submit(Kind.ALL_TO_ALL, [max(output, input, key=lambda t: t.nbytes)], work, [output])

    def barrier(self, opts: Any = None) -> Any:
        opts = opts or dist.BarrierOptions()
        return self._submit(Kind.BARRIER, [], partial(self._mover.barrier, opts), [])

    # The names that torch before 2.13 calls.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Used by DeviceMesh and torch.distributed.

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    def getRank(self) -> int:  # noqa: N802
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        return self._size

    def getGroupName(self) -> str:  # noqa: N802
        return self.carrier.group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self.carrier.group_name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def shutdown(self) -> None:
        self.close()

    def abort(self) -> None:
        if self._mover is not None:
            self._mover.abort()
        self.carrier.abort()


class AllWorks:
    """Several works as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


def _launch_each(
    launch: Callable[..., Any], outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
) -> AllWorks:
    return AllWorks([launch(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])


class _Copied:
    """A collective through one buffer, whose parts are copied to where they belong when it is done."""

    def __init__(self, work: Any, buffer: torch.Tensor, outputs: list[torch.Tensor]) -> None:
        self._work, self._buffer, self._outputs = work, buffer, outputs

    def wait(self) -> None:
        self._work.wait()
        parts = torch.split(self._buffer, [t.numel() for t in self._outputs])
        for output, part in zip(self._outputs, parts, strict=True):
            output.data.copy_(part.view_as(output))


def _all_to_all_lists(mover: Any, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> _Copied:
    """An all-to-all of lists, which gloo has only for one tensor."""
    sent = torch.cat([t.data.reshape(-1) for t in inputs])
    got = sent.new_empty(sum(t.numel() for t in outputs))
    sizes = [[t.numel() for t in tensors] for tensors in (outputs, inputs)]
    return _Copied(mover.alltoall_base(got, sent, *sizes, opts), got, outputs)


def _close(messages: Messages | None, carrier: Carrier | StreamCarrier) -> None:
    if messages is not None:
        messages.close()
    carrier.close()


def register() -> None:
    """Register the backend "emulated" with torch.distributed; its `pg_options` are an `Emulation`."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


_default: Emulation | None = None


def _create(options: Any, emulation: Emulation | None) -> EmulatedLinkGroup:
    """Create a group. All ranks must call it, unless the peers are phantoms."""
    global _default
    emulation = _default = emulation or _default  # groups made later, such as DeviceMesh's, have no options
    assert emulation is not None
    rank, size, device = options.group_rank, options.group_size, emulation.alone_on
    if device is not None and device.type == "cuda":
        stream_carrier = StreamCarrier(emulation.link, size, device, link_clock(emulation.wait, device))
        return EmulatedLinkGroup(rank, size, Phantoms(rank, size), stream_carrier)
    with urgent_threads():
        if device is not None:
            return EmulatedLinkGroup(rank, size, Phantoms(rank, size), Carrier(emulation.wire, size, None))
        gloo_device = _gloo_device()  # its thread serves both groups
        data, clock = (
            _gloo(dist.PrefixStore(name, options.store), rank, size, options.timeout, gloo_device)
            for name in ("data", "clock")
        )
        carrier = Carrier(emulation.wire, size, clock)
        return EmulatedLinkGroup(rank, size, data, carrier, Messages(carrier, clock, rank))


def _gloo(store: Any, rank: int, size: int, timeout: timedelta, device: Any) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._threads = 1  # collectives run in order, one at a time
    options._devices = [device]
    return dist.ProcessGroupGloo(store, rank, size, options)


def _gloo_device() -> Any:
    """Make gloo's device as init_process_group does; with explicit options the variable would otherwise be ignored."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return dist.ProcessGroupGloo.create_device(interface=interface)
    return dist.ProcessGroupGloo.create_default_device()
