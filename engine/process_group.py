"""The emulated link as a process group, so that whatever speaks torch.distributed can run behind it."""

import atexit
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch._C import _distributed_c10d

from engine.carrier import Carried, Carrier, urgent_threads
from engine.link import Kind, Link

dist: Any = torch.distributed  # whose stubs know few of the names that a process group needs
_create_work_from_future: Callable[[Any], Any] = _distributed_c10d._create_work_from_future  # type: ignore[attr-defined]

__all__ = ["BACKEND", "EmulatedLinkGroup", "register"]

BACKEND = "emulated"


class EmulatedLinkGroup(dist.ProcessGroup):  # type: ignore[misc]  # a subclass of Any
    """A gloo process group behind an emulated link; also for DDP, FSDP2 and functional collectives."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, link: Link) -> None:
        """Connect the ranks (a collective in itself) and start the link's thread."""
        super().__init__(rank, size)
        self._description = ""
        self._rank, self._size = rank, size
        with urgent_threads():
            self._gloo = _gloo(dist.PrefixStore("data", store), rank, size, timeout)
            self._clock = _gloo(dist.PrefixStore("clock", store), rank, size, timeout)
            self._carrier = Carrier(link, size, self._clock)
        atexit.register(self.close)

    @property
    def link(self) -> Link:
        """What is emulated."""
        return self._carrier.link

    @property
    def log(self) -> Sequence[Carried]:
        """What was carried so far, in order."""
        return self._carrier.log

    def check(self) -> None:
        """Raise what made a collective fail, if one did."""
        self._carrier.check()

    def close(self) -> None:
        """Carry what is queued, then stop."""
        self._carrier.close()

    def _submit(self, kind: Kind, tensors: Sequence[torch.Tensor], work: Callable[[], Any], outputs: Any) -> Any:
        return _create_work_from_future(self._carrier.submit(kind, tensors, work, outputs))

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # noqa: D102
        opts = opts or dist.AllreduceOptions()
        return self._submit(Kind.ALL_REDUCE, tensors, lambda: self._gloo.allreduce(tensors, opts), tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # noqa: D102
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._submit(Kind.ALL_REDUCE, tensors, lambda: self._gloo.allreduce_coalesced(tensors, opts), tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:  # noqa: D102
        opts = opts or dist.BroadcastOptions()
        return self._submit(Kind.BROADCAST, tensors, lambda: self._gloo.broadcast(tensors, opts), tensors)

    def allgather(  # noqa: D102
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        opts = opts or dist.AllgatherOptions()
        full = [tensor for output in outputs for tensor in output]
        return self._submit(Kind.ALL_GATHER, full, lambda: self._gloo.allgather(outputs, inputs, opts), outputs)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:  # noqa: D102
        opts = opts or dist.AllgatherOptions()
        work = lambda: self._gloo._allgather_base(output, input, opts)  # noqa: E731
        return self._submit(Kind.ALL_GATHER, [output], work, [output])

    def all_gather_single_coalesced(  # noqa: D102
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        opts = opts or dist.AllgatherOptions()
        work = lambda: _All(  # noqa: E731
            [self._gloo._allgather_base(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        )
        return self._submit(Kind.ALL_GATHER, outputs, work, outputs)

    def reduce_scatter(  # noqa: D102
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        full = [tensor for tensors in inputs for tensor in tensors]
        work = lambda: self._gloo.reduce_scatter(outputs, inputs, opts)  # noqa: E731
        return self._submit(Kind.REDUCE_SCATTER, full, work, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:  # noqa: D102
        opts = opts or dist.ReduceScatterOptions()
        work = lambda: self._gloo._reduce_scatter_base(output, input, opts)  # noqa: E731
        return self._submit(Kind.REDUCE_SCATTER, [input], work, [output])

    def reduce_scatter_single_coalesced(  # noqa: D102
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        work = lambda: _All(  # noqa: E731
            [self._gloo._reduce_scatter_base(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        )
        return self._submit(Kind.REDUCE_SCATTER, inputs, work, outputs)

    def all_to_all_single(  # noqa: D102
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Any:
        opts = opts or dist.AllToAllOptions()
        work = lambda: self._gloo.alltoall_base(output, input, output_splits, input_splits, opts)  # noqa: E731
        return self._submit(Kind.ALL_TO_ALL, [max(output, input, key=_nbytes)], work, [output])

    def barrier(self, opts: Any = None) -> Any:  # noqa: D102
        opts = opts or dist.BarrierOptions()
        return self._submit(Kind.BARRIER, [], lambda: self._gloo.barrier(opts), [])

    # Names that torch before 2.13 calls.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # What DeviceMesh and torch.distributed ask of a group.

    def getBackendName(self) -> str:  # noqa: D102, N802
        return BACKEND

    def getRank(self) -> int:  # noqa: D102, N802
        return self._rank

    def getSize(self) -> int:  # noqa: D102, N802
        return self._size

    def getGroupName(self) -> str:  # noqa: D102, N802
        return self._carrier.group_name

    def setGroupName(self, name: str) -> None:  # noqa: D102, N802
        self._carrier.group_name = name

    def getGroupDesc(self) -> str:  # noqa: D102, N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: D102, N802
        self._description = description

    def shutdown(self) -> None:  # noqa: D102
        self.close()

    def abort(self) -> None:  # noqa: D102
        self._gloo.abort()
        self._clock.abort()


class _All:
    """Several works as one."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def register() -> None:
    """Make the backend known to torch.distributed as "emulated"; a `Link` goes in as `pg_options`."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


_default_link: Link | None = None


def _create(options: Any, link: Link | None) -> EmulatedLinkGroup:
    global _default_link
    link = _default_link = link or _default_link  # groups made later, by DeviceMesh say, share the first one's link
    assert link is not None
    return EmulatedLinkGroup(options.store, options.group_rank, options.group_size, options.timeout, link)


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._threads = 1  # in order, one at a time
    # As init_process_group does for gloo; options of one's own would otherwise ignore the variable.
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    make = dist.ProcessGroupGloo.create_device if interface else dist.ProcessGroupGloo.create_default_device
    options._devices = [make(interface=interface) if interface else make()]
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.nbytes
