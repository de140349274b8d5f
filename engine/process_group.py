"""The emulated link: a process group whose collectives take as long as a model of a network says.

[Note: one thread is the link]
A link carries one collective after another, so one thread per group takes them from a queue in order. It notes its
arrival, lets gloo do the real work, and sleeps until T after the *last* rank's arrival; then the collective's future
completes. Whatever gloo takes counts inside T, and a sleeping thread leaves the core to the computation. A network card
does not wait for a core, so where the system permits it these threads are scheduled before the computation's: else
each of a collective's five or so changes of thread may take a time slice of 3 ms.

[Note: the last arrival]
Every rank's arrival time goes through a MAX all-reduce of one int64 on a second gloo group, beside the real collective.
Ranks of one machine share a clock; should clocks differ, no rank sleeps longer than T after the real work began here.
"""

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed
from torch._C import _distributed_c10d

from engine import labels
from engine.labels import Word
from engine.link import Kind, Link

dist: Any = torch.distributed  # whose stubs know few of the names that a process group needs
_create_work_from_future: Callable[[Any], Any] = _distributed_c10d._create_work_from_future  # type: ignore[attr-defined]

__all__ = ["BACKEND", "Carried", "EmulatedLinkGroup", "register"]

BACKEND = "emulated"
TOLERANCE = 1.05
"""A collective that took longer than this times its model overran."""

MARGIN_NS = 20_000
"""Sleeps end so much before the mark, to hit it when one is late."""
MOST_LATE_NS = 200_000
"""A sleep that ends later than this met a busy core, which says nothing about the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """One collective that the link carried."""

    seq: int
    """Its number in the group, from 0."""
    kind: Kind
    """What it did."""
    nbytes: int
    """Bytes of the full tensor."""
    modelled_ns: int
    """T by the formula."""
    occupied_ns: int
    """From the last rank's arrival to the end."""

    @property
    def overran(self) -> bool:
        """Whether it took 5 % longer than its model; never with one rank, where there is no link to model."""
        return self.modelled_ns > 0 and self.occupied_ns > TOLERANCE * self.modelled_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    seq: int
    kind: Kind
    tensors: Sequence[torch.Tensor]  # those of the full size: they give dtype and bytes
    work: Callable[[], Any]
    outputs: Any
    future: torch.futures.Future[Any]


class EmulatedLinkGroup(dist.ProcessGroup):  # type: ignore[misc]  # a subclass of Any
    """A gloo process group behind an emulated link; also for DDP, FSDP2 and functional collectives."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, link: Link) -> None:
        """Connect the ranks (a collective in itself) and start the link's thread."""
        super().__init__(rank, size)
        self.link = link
        self.log: list[Carried] = []
        """What was carried so far, in order."""
        self._name = self._description = ""
        self._rank, self._size = rank, size
        self._stamp = torch.zeros(1, dtype=torch.int64)
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._launched = 0
        self._failure: Exception | None = None
        self._late_ns = 0.0  # by how much sleeps end late, as a running mean
        self._thread = threading.Thread(target=self._carry_all, name="emulated-link", daemon=True)
        with _urgent_threads():
            self._gloo = _gloo(dist.PrefixStore("data", store), rank, size, timeout)
            self._clock = _gloo(dist.PrefixStore("clock", store), rank, size, timeout)
            self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Carry what is queued, then end the thread. (A thread alive at exit aborts the process now and then.)"""
        if self._thread.is_alive():
            self._orders.put(None)
            self._thread.join()

    # The thread.

    def _carry_all(self) -> None:
        _wake_on_time()
        while (order := self._orders.get()) is not None:
            self._carry(order)
            del order  # no reference to tensors while waiting for the next

    def _carry(self, order: _Order) -> None:
        nbytes = sum(t.nbytes for t in order.tensors)
        modelled_ns = self.link.modelled_ns(order.kind, nbytes, self._size)
        span = labels.span(
            Word.COMM,
            seq=order.seq,
            kind=order.kind,
            dtype=str(order.tensors[0].dtype).removeprefix("torch.") if order.tensors else "none",
            bytes=nbytes,
            group=self._name,
            link=str(self.link),
            modelled_ns=modelled_ns,
        )
        try:
            if self._failure is not None:
                raise self._failure
            with span:
                last_arrival_ns = self._move(order, modelled_ns)
                end_ns = time.time_ns()
        except Exception as error:
            self._failure = error  # the ranks are out of step: nothing that follows can be right
            order.future.set_exception(error)
            return
        self.log.append(
            Carried(
                seq=order.seq,
                kind=order.kind,
                nbytes=nbytes,
                modelled_ns=modelled_ns,
                occupied_ns=end_ns - last_arrival_ns,
            )
        )
        order.future.set_result(order.outputs)

    def _move(self, order: _Order, modelled_ns: int) -> int:
        """Do the real collective, then sleep until the link is free; the last rank's arrival in Unix ns."""
        arrival_ns = time.time_ns()
        self._stamp[0] = arrival_ns
        works = [order.work(), self._clock.allreduce([self._stamp], _maximum())]
        for work in works:
            work.wait()
        last_arrival_ns = int(self._stamp[0])
        self._sleep_until(min(last_arrival_ns, time.time_ns()) + modelled_ns)
        return last_arrival_ns

    def _sleep_until(self, end_ns: int) -> None:
        """Sleep, asking to be woken early by what it lately took to wake up; the microseconds left are waited out."""
        wake_ns = end_ns - int(self._late_ns) - MARGIN_NS
        if (left_ns := wake_ns - time.time_ns()) > 0:
            time.sleep(left_ns / 1e9)
            late_ns = min(time.time_ns() - wake_ns, MOST_LATE_NS)
            self._late_ns += (late_ns - self._late_ns) / 8
        while time.time_ns() < end_ns:
            pass  # 20 µs or so; a further sleep would take longer

    # The calling threads.

    def _submit(self, kind: Kind, tensors: Sequence[torch.Tensor], work: Callable[[], Any], outputs: Any) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        seq = self._launched
        self._launched += 1
        with labels.span(Word.LAUNCH, seq=seq):
            self._orders.put(_Order(seq=seq, kind=kind, tensors=tensors, work=work, outputs=outputs, future=future))
        return _create_work_from_future(future)

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
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: D102, N802
        self._name = name

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
    options._devices = [dist.ProcessGroupGloo.create_default_device()]
    return dist.ProcessGroupGloo(store, rank, size, options)


def _maximum() -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.nbytes


@contextlib.contextmanager
def _urgent_threads() -> Iterator[None]:
    """Threads started within get real-time priority, if this process may; they inherit their starter's."""
    if not hasattr(os, "SCHED_RR"):
        yield
        return
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameters)


def _wake_on_time() -> None:
    """Let this thread's sleeps end within microseconds: Linux otherwise rounds them up by 50 µs."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, 1 ns
