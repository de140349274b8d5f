"""The emulated link on a CPU: one thread that runs collectives in order, each for as long as the model says.

[Note: one thread is the link]
A link carries one collective after another, so each group has one thread, which takes them from a queue; several groups
share the link ([Note: one link for all groups]). A collective arrives when it is queued, or when the previous one ends
if that is later; the microseconds that the thread takes to wake up do not count. The thread runs the real collective
over gloo, then sleeps until T after the *last* rank's arrival and completes the collective's future. Gloo's own time is
part of T, and a sleeping thread leaves the core to the computation. A network card does not wait for a core, so these
threads get real-time priority where the system permits it. Otherwise each of a collective's five or so thread switches
may cost a time slice of 3 ms.

[Note: the last arrival]
Every rank's arrival time goes through a MAX all-reduce of one int64 on a second gloo group, beside the real collective.
Ranks on one machine share a clock. Ranks on several machines may not, so each converts its time to rank 0's clock. It
measures the offset once, as NTP does (Mills 1991: the exchange with the shortest round trip counts, and its error is at
most half of that round trip). A rank whose peers are phantoms is the last to arrive.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch._C import _distributed_c10d

from overlaplab_engine import labels
from overlaplab_engine.alarm import Alarm, wake_on_time
from overlaplab_engine.labels import Word
from overlaplab_engine.network.link import Kind, Link
from overlaplab_engine.network.wire import BOTH_WAYS, Wire

dist: Any = torch.distributed  # its type stubs lack most of the names that a process group needs
create_work_from_future: Callable[[Any], Any] = _distributed_c10d._create_work_from_future  # type: ignore[attr-defined]

TOLERANCE = 1.05
"""A collective overran if it took longer than its modelled time multiplied by this."""

EXCHANGES = 8
"""How often a rank asks rank 0 for the time."""
LEAST_OFFSET_NS = 200_000
"""Clocks that differ by no more than this are treated as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """One collective that the link carried."""

    seq: int
    """Its number in the group, from 0."""
    kind: Kind
    nbytes: int
    """Bytes of the full tensor."""
    modelled_ns: int
    """T by the formula."""
    occupied_ns: int
    """From the last rank's arrival to the end."""
    queued_ns: int | None = None
    """When this rank queued it, in Unix time by rank 0's clock, as `arrived_ns`; None on a GPU, and for messages."""
    arrived_ns: int | None = None
    """When the last rank had arrived and the link was free."""
    moved_ns: int | None = None
    """How long after that the data had really been moved; the rest of `occupied_ns` is slept."""
    group: str | None = None
    """The group's name; None on a GPU, and for messages."""

    @property
    def overran(self) -> bool:
        """Whether it took over 5 % longer than modelled; never true with one rank, where nothing is modelled."""
        return self.modelled_ns > 0 and self.occupied_ns > TOLERANCE * self.modelled_ns


@dataclass(frozen=True, slots=True)
class _Request:
    seq: int
    kind: Kind
    tensors: Sequence[torch.Tensor]  # of the full size: they give dtype and bytes
    work: Callable[[], Any]
    outputs: Any
    future: torch.futures.Future[Any]
    queued_ns: int  # by rank 0's clock
    ready: Callable[[], None] | None  # waits for what it needs


class Carrier:
    """The thread that is a group's link, and its queue."""

    def __init__(self, wire: Wire, world_size: int, clock: Any | None) -> None:
        """Start the thread. `clock` is a gloo group for arrival times, None if the peers are phantoms."""
        self.wire = wire
        self.group_name = ""
        self.log: list[Carried] = []
        """The collectives carried so far, in order."""
        self._world_size = world_size
        self._clock = clock
        self._stamp = torch.zeros(2, dtype=torch.int64)
        self._offset_ns = 0 if clock is None else clock_offset_ns(_exchange_times(clock, world_size))
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self.launched = 0
        """How many collectives were submitted so far."""
        self.ready: Callable[[], None] | None = None
        """Waits for what the collectives that are launched now need, such as a copy; None: for nothing."""
        self._failure: Exception | None = None
        self._free_ns = 0  # when the link became free, by rank 0's clock
        self._alarm = Alarm(self.now_ns)
        if world_size > 1:
            wire.add_user()
        self._thread = threading.Thread(target=self._carry_all, name="emulated-link", daemon=True)
        self._thread.start()

    @property
    def link(self) -> Link:
        return self.wire.link

    def submit(self, kind: Kind, tensors: Sequence[torch.Tensor], work: Callable[[], Any], outputs: Any) -> Any:
        """Queue a collective and return its work at once; the work's future gets `outputs` or the exception.

        `tensors` are those of the full size. `work` launches the real collective and returns an object to wait for.
        """
        self.check()
        future: torch.futures.Future[Any] = torch.futures.Future()
        seq = self.launched
        self.launched += 1
        with labels.span(Word.LAUNCH, seq=seq, group=self.group_name):
            self._requests.put(_Request(seq, kind, tensors, work, outputs, future, self.now_ns(), self.ready))
        return create_work_from_future(future)

    def modelled_ns(self, kind: Kind, tensors: Sequence[torch.Tensor]) -> int:
        """T of a collective; `tensors` are those of the full size."""
        return self.link.modelled_ns(kind, sum(t.nbytes for t in tensors), self._world_size)

    def fail(self, error: Exception) -> None:
        """Let later collectives raise `error`: the ranks are out of step."""
        self._failure = error

    def check(self) -> None:
        """Raise the error of a collective that failed: waiting for a work made from a future does not raise it."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Carry what is queued, then end the thread. (A thread alive at exit sometimes aborts the process.)"""
        if self._thread.is_alive():
            self._requests.put(None)
            if self._world_size > 1:
                self.wire.remove_user()
            if self._thread is not threading.current_thread():  # it may hold the last reference to the group
                self._thread.join()

    def abort(self) -> None:
        """Stop waiting for the other ranks."""
        if self._clock is not None:
            self._clock.abort()

    def now_ns(self) -> int:
        """Unix time by rank 0's clock."""
        return local_ns() + self._offset_ns

    def book(self, key: Hashable, arrived_ns: int, modelled_ns: int, ways: int, latest: Callable[[int], int]) -> int:
        """Book the link from the last arrival on, by rank 0's clock as all times here; see `Wire.agree`."""
        return self.wire.agree(key, arrived_ns, modelled_ns, ways, latest, self._offset_ns)

    def correct_booking(self, key: Hashable, begin_ns: int, end_ns: int, ways: int) -> None:
        self.wire.correct_booking(key, begin_ns - self._offset_ns, end_ns - self._offset_ns, ways)

    def _carry_all(self) -> None:
        wake_on_time()
        while (request := self._requests.get()) is not None:
            self._carry(request)
            del request  # keep no tensors alive while waiting for the next

    def _carry(self, request: _Request) -> None:
        nbytes = sum(t.nbytes for t in request.tensors)
        modelled_ns = self.modelled_ns(request.kind, request.tensors)
        span = comm_span(self.link, self.group_name, request.seq, request.kind, request.tensors, modelled_ns)
        try:
            self.check()
            ready_ns = request.queued_ns
            if request.ready is not None:
                request.ready()
                ready_ns = self.now_ns()
            with span:
                begin_ns, moved_ns = self._move(request, ready_ns, modelled_ns)
                end_ns = self.now_ns()
            carried = Carried(
                seq=request.seq,
                kind=request.kind,
                nbytes=nbytes,
                modelled_ns=modelled_ns,
                occupied_ns=end_ns - begin_ns,
                queued_ns=request.queued_ns,
                arrived_ns=begin_ns,
                moved_ns=moved_ns,
                group=self.group_name,
            )
        except Exception as error:
            self.fail(error)
            request.future.set_exception(error)
            return
        self.log.append(carried)
        self._free_ns = end_ns if carried.overran else begin_ns + modelled_ns
        if carried.overran and self.wire.shared:
            self.correct_booking((id(self), request.seq), begin_ns, end_ns, BOTH_WAYS)
        request.future.set_result(request.outputs)

    def _move(self, request: _Request, ready_ns: int, modelled_ns: int) -> tuple[int, int]:
        """Run the collective and sleep until its time is over.

        Returns when that began, by rank 0's clock, and for how long after that the data was really on its way. It
        begins at the last arrival, or later if the link carries something of another group then.
        """
        self._stamp[0] = max(ready_ns, self._free_ns)
        self._stamp[1] = int(self.wire.shared)  # if it is shared on one rank, all must agree
        works = [request.work()]
        if self._clock is not None:
            works.append(self._clock.allreduce([self._stamp], _maximum_options()))
        for work in works:
            work.wait()
        moved_at_ns = self.now_ns()
        begin_ns, shared = self._stamp.tolist()
        if shared:
            begin_ns = self.book((id(self), request.seq), begin_ns, modelled_ns, BOTH_WAYS, self._maximum_over_ranks)
            self._alarm.sleep_until(begin_ns + modelled_ns)
        else:
            # Where it begins later than now, the clocks are in error.
            self._alarm.sleep_until(min(begin_ns, self.now_ns()) + modelled_ns)
        return int(begin_ns), max(moved_at_ns - int(begin_ns), 0)

    def _maximum_over_ranks(self, ns: int) -> int:
        if self._clock is None:
            return ns
        self._stamp[0] = ns
        self._clock.allreduce([self._stamp], _maximum_options()).wait()
        return int(self._stamp[0])


def comm_span(
    link: Link, group: str, seq: int, kind: Kind, tensors: Sequence[torch.Tensor], modelled_ns: int
) -> labels.Span:
    """The label of a collective on an emulated link; `tensors` are those of the full size."""
    return labels.span(
        Word.COMM,
        seq=seq,
        kind=kind,
        dtype=labels.dtype_name(tensors[0].dtype) if tensors else "none",
        bytes=sum(t.nbytes for t in tensors),
        group=group,
        link=str(link),
        modelled_ns=modelled_ns,
    )


def local_ns() -> int:
    """Unix time by this rank's clock."""
    return time.time_ns()


class ClockExchange(NamedTuple):
    """One question for the time, in ns."""

    sent_ns: int
    """When it was sent, by this rank's clock."""
    answer_ns: int
    """What rank 0's clock said."""
    received_ns: int
    """When the answer came, by this rank's clock."""


def clock_offset_ns(exchanges: Sequence[ClockExchange]) -> int:
    """Rank 0's clock minus this rank's, in ns; 0 if the difference is within the measurement's error."""
    if not exchanges:
        return 0
    fastest = min(exchanges, key=lambda exchange: exchange.received_ns - exchange.sent_ns)
    offset = fastest.answer_ns - (fastest.sent_ns + fastest.received_ns) // 2
    return offset if abs(offset) > max(LEAST_OFFSET_NS, (fastest.received_ns - fastest.sent_ns) // 2) else 0


def _exchange_times(clock: Any, world_size: int) -> list[ClockExchange]:
    """Ask rank 0 for the time; rank 0 answers the other ranks in turn."""
    exchanges = []
    time_ = torch.zeros(1, dtype=torch.int64)
    for asker in range(1, world_size):
        for _ in range(EXCHANGES if clock.rank() in (0, asker) else 0):
            sent_ns = local_ns()
            if clock.rank() == asker:
                clock.send([time_], 0, 0).wait()
                clock.recv([time_], 0, 0).wait()
                exchanges.append(ClockExchange(sent_ns, int(time_), local_ns()))
            else:
                clock.recv([time_], asker, 0).wait()
                time_[0] = local_ns()
                clock.send([time_], asker, 0).wait()
    return exchanges


def _maximum_options() -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


@contextlib.contextmanager
def urgent_threads() -> Iterator[None]:
    """Threads started inside inherit real-time priority, if this process may set it."""
    if not hasattr(os, "sched_setscheduler"):  # macOS
        yield
        return
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameters)
