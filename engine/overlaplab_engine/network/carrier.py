"""The emulated link's one thread: it carries collectives in order, each for as long as the model says.

[Note: one thread is the link]
A link carries one collective after another, so one thread per group takes them from a queue in order. A collective
arrives when it was queued, or when the link got free of the one before; the microseconds that the thread takes to wake
up are not the link's. Then gloo does the real work, and the thread sleeps until T after the *last* rank's arrival, when
the collective's future completes. Whatever gloo takes counts inside T, and a sleeping thread leaves the core to the
computation. A network card does not wait for a core, so where the system permits it these threads are scheduled before
the computation's: else each of a collective's five or so changes of thread may take a time slice of 3 ms.

[Note: the last arrival]
Every rank's arrival time goes through a MAX all-reduce of one int64 on a second gloo group, beside the real collective.
Ranks of one machine share a clock. Those of several may not, so each tells time by rank 0's, whose offset it measures
once as NTP does (Mills 1991: the exchange with the shortest round trip counts, and its error is at most half of that).
A rank whose peers are phantoms is the last to arrive.
"""

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed
from torch._C import _distributed_c10d

from overlaplab_engine import labels
from overlaplab_engine.labels import Word
from overlaplab_engine.network.link import Kind, Link

__all__ = ["Carried", "Carrier", "comm_span", "urgent_threads"]

dist: Any = torch.distributed  # whose stubs know few of the names that a process group needs
_create_work_from_future: Callable[[Any], Any] = _distributed_c10d._create_work_from_future  # type: ignore[attr-defined]

TOLERANCE = 1.05
"""A collective that took longer than this times its model overran."""

MARGIN_NS = 20_000
"""Sleeps end so much before the mark, to hit it when one is late."""
MOST_LATE_NS = 200_000
"""A sleep that ends later than this met a busy core, which says nothing about the next."""

EXCHANGES = 8
"""How often a rank asks rank 0 for the time."""
LEAST_OFFSET_NS = 200_000
"""Clocks that differ by no more are taken for one."""


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
    queued_ns: int  # by rank 0's clock


class Carrier:
    """A thread and a queue."""

    def __init__(self, link: Link, world_size: int, clock: Any | None) -> None:
        """Carry over `link`; `clock` is a gloo group for arrival times, None among phantoms. Starts the thread."""
        self.link = link
        self.group_name = ""
        self.log: list[Carried] = []
        """What was carried so far, in order."""
        self._world_size = world_size
        self._clock = clock
        self._stamp = torch.zeros(1, dtype=torch.int64)
        self._offset_ns = 0 if clock is None else clock_offset_ns(_exchange(clock, world_size))
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self.launched = 0
        """How many collectives were submitted so far."""
        self._failure: Exception | None = None
        self._free_ns = 0  # when the link became free, by rank 0's clock
        self._late_ns = 0.0  # by how much sleeps end late, as a running mean
        self._thread = threading.Thread(target=self._carry_all, name="emulated-link", daemon=True)
        self._thread.start()

    def submit(self, kind: Kind, tensors: Sequence[torch.Tensor], work: Callable[[], Any], outputs: Any) -> Any:
        """Queue a collective, and return its work at once, whose future gets `outputs`, or the real work's exception.

        `tensors` are those of the full size, `work` launches the real collective and returns what to wait for.
        """
        self.check()
        future: torch.futures.Future[Any] = torch.futures.Future()
        seq = self.launched
        self.launched += 1
        with labels.span(Word.LAUNCH, seq=seq):
            self._orders.put(
                _Order(
                    seq=seq,
                    kind=kind,
                    tensors=tensors,
                    work=work,
                    outputs=outputs,
                    future=future,
                    queued_ns=self._now_ns(),
                )
            )
        return _create_work_from_future(future)

    def check(self) -> None:
        """Raise what made a collective fail, if one did: waiting for a work made of a future does not."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Carry what is queued, then end the thread. (A thread alive at exit aborts the process now and then.)"""
        if self._thread.is_alive():
            self._orders.put(None)
            if self._thread is not threading.current_thread():  # which may be the last that held the group
                self._thread.join()

    def abort(self) -> None:
        """Let go of the other ranks."""
        if self._clock is not None:
            self._clock.abort()

    def _now_ns(self) -> int:
        """Unix time by rank 0's clock."""
        return local_ns() + self._offset_ns

    def _carry_all(self) -> None:
        _wake_on_time()
        while (order := self._orders.get()) is not None:
            self._carry(order)
            del order  # no reference to tensors while waiting for the next

    def _carry(self, order: _Order) -> None:
        nbytes = sum(t.nbytes for t in order.tensors)
        modelled_ns = self.link.modelled_ns(order.kind, nbytes, self._world_size)
        span = comm_span(self.link, self.group_name, order.seq, order.kind, order.tensors, modelled_ns)
        try:
            self.check()
            with _perhaps_recorded(span):
                last_arrival_ns = self._move(order, modelled_ns)
                end_ns = self._now_ns()
            carried = Carried(
                seq=order.seq,
                kind=order.kind,
                nbytes=nbytes,
                modelled_ns=modelled_ns,
                occupied_ns=end_ns - last_arrival_ns,
            )
        except Exception as error:
            self._failure = error  # the ranks are out of step: nothing that follows can be right
            order.future.set_exception(error)
            return
        self.log.append(carried)
        self._free_ns = end_ns if carried.overran else last_arrival_ns + modelled_ns
        order.future.set_result(order.outputs)

    def _move(self, order: _Order, modelled_ns: int) -> int:
        """Do the real collective, then sleep until the link is free; the last rank's arrival by rank 0's clock."""
        self._stamp[0] = max(order.queued_ns, self._free_ns)
        works = [order.work()]
        if self._clock is not None:
            works.append(self._clock.allreduce([self._stamp], _maximum()))
        for work in works:
            work.wait()
        last_arrival_ns = int(self._stamp[0])
        self._sleep_until(min(last_arrival_ns, self._now_ns()) + modelled_ns)
        return last_arrival_ns

    def _sleep_until(self, end_ns: int) -> None:
        """Sleep, asking to be woken early by what it lately took to wake up; the microseconds left are waited out."""
        wake_ns = end_ns - int(self._late_ns) - MARGIN_NS
        if (left_ns := wake_ns - self._now_ns()) > 0:
            time.sleep(left_ns / 1e9)
            late_ns = min(self._now_ns() - wake_ns, MOST_LATE_NS)
            self._late_ns += (late_ns - self._late_ns) / 8
        while self._now_ns() < end_ns:
            pass  # 20 µs or so; a further sleep would take longer


def comm_span(
    link: Link, group: str, seq: int, kind: Kind, tensors: Sequence[torch.Tensor], modelled_ns: int
) -> labels.Span:
    """The label of a collective behind a link; `tensors` are those of the full size."""
    return labels.span(
        Word.COMM,
        seq=seq,
        kind=kind,
        dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "none",
        bytes=sum(t.nbytes for t in tensors),
        group=group,
        link=str(link),
        modelled_ns=modelled_ns,
    )


@contextlib.contextmanager
def _perhaps_recorded(span: labels.Span) -> Iterator[None]:
    """The range, also where the recording begins or ends inside it, which makes leaving it an error."""
    span.__enter__()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):
            span.__exit__(None, None, None)


def local_ns() -> int:
    """Unix time by this rank's clock."""
    return time.time_ns()


def clock_offset_ns(exchanges: Sequence[tuple[int, int, int]]) -> int:
    """Rank 0's clock less this rank's, from exchanges (asked, rank 0's answer, got it); 0 where it cannot be told."""
    if not exchanges:
        return 0
    asked, answer, got = min(exchanges, key=lambda exchange: exchange[2] - exchange[0])
    offset = answer - (asked + got) // 2
    return offset if abs(offset) > max(LEAST_OFFSET_NS, (got - asked) // 2) else 0


def _exchange(clock: Any, world_size: int) -> list[tuple[int, int, int]]:
    """Ask rank 0 for the time; rank 0 answers every other rank in turn."""
    exchanges = []
    time_ = torch.zeros(1, dtype=torch.int64)
    for asker in range(1, world_size):
        for _ in range(EXCHANGES if clock.rank() in (0, asker) else 0):
            asked = local_ns()
            if clock.rank() == asker:
                clock.send([time_], 0, 0).wait()
                clock.recv([time_], 0, 0).wait()
                exchanges.append((asked, int(time_), local_ns()))
            else:
                clock.recv([time_], asker, 0).wait()
                time_[0] = local_ns()
                clock.send([time_], asker, 0).wait()
    return exchanges


def _maximum() -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


@contextlib.contextmanager
def urgent_threads() -> Iterator[None]:
    """Threads started within get real-time priority, if this process may; they inherit their starter's."""
    if not hasattr(os, "sched_setscheduler"):  # macOS has none
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
