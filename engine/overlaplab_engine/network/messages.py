"""Sends and receives behind the emulated link between CPUs.

[Note: lanes]
A rank that sends and receives must do both at once, or two ranks that first send to each other would wait forever. So
messages do not queue behind collectives: each peer, direction and tag has a lane, a thread that carries its messages in
order. The lane posts the real message, too. Gloo's thread has real-time priority and tries again and again for a lock
that whoever posts is holding; a caller without that priority would not get a core to let go of it, for up to a second.
A message takes T from when both ends have called, on a link that other lanes and groups may occupy ([Note: one link for
all groups]).

[Note: who waits for messages]
Torch's pipelines wait for them within torch's own code. A sleeping device shortens its next sleep by what the host took
since the last one (models/sleeping.py), but must not by waits for others. So a message's work notes its waits itself
(`alarm.note_wait`).
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from overlaplab_engine import labels
from overlaplab_engine.alarm import Alarm, note_wait, wake_on_time
from overlaplab_engine.labels import Word
from overlaplab_engine.network.carrier import Carried, Carrier, comm_span, create_work_from_future, urgent_threads
from overlaplab_engine.network.link import Kind
from overlaplab_engine.network.wire import OUT


@dataclass(frozen=True, slots=True)
class _Message:
    seq: int
    tensors: Sequence[torch.Tensor]
    post: Callable[[], Any]
    queued_ns: int  # by rank 0's clock
    future: torch.futures.Future[Any]


class _NotedWork(torch._C._distributed_c10d.Work):
    """A message under way; see [Note: who waits for messages]."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future
        self._work = create_work_from_future(future)

    def wait(self, *timeout: Any) -> bool:
        with note_wait():
            return bool(self._work.wait(*timeout))

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


class Messages:
    """The lanes of one rank in a group."""

    def __init__(self, carrier: Carrier, clock: Any, rank: int) -> None:
        """`clock` is the gloo group for arrival times, in which this is rank `rank`; `carrier` carries collectives."""
        self.carrier, self.clock, self.rank = carrier, clock, rank
        self._lanes: dict[tuple[int, int, int], _Lane] = {}
        self.log: list[Carried] = []
        """The messages carried so far, in order of their ends."""

    def submit(self, way: int, peer: int, tag: int, tensors: Sequence[torch.Tensor], post: Callable[[], Any]) -> Any:
        """Queue a message that `post` begins; returns its work. `way` is `OUT` to the peer, or `IN` from it."""
        self.carrier.check()
        lane = self._lanes.get((peer, way, tag))
        if lane is None:
            with urgent_threads():
                lane = self._lanes[peer, way, tag] = _Lane(self, way, peer, tag)
        return lane.submit(tensors, post)

    def close(self) -> None:
        """Carry what is queued, then end the threads."""
        for lane in self._lanes.values():
            lane.close()


class _Lane:
    """The thread that carries the messages of one direction, peer and tag, and its queue."""

    def __init__(self, owner: Messages, way: int, peer: int, tag: int) -> None:
        self._owner, self._way, self._peer, self._tag = owner, way, peer, tag
        self._carrier = carrier = owner.carrier
        self._alarm = Alarm(carrier.now_ns)
        self._messages: SimpleQueue[_Message | None] = SimpleQueue()
        self._posted = 0
        carrier.wire.add_user()
        self._thread = threading.Thread(target=self._carry_all, name="emulated-link-lane", daemon=True)
        self._thread.start()

    @property
    def _group(self) -> str:
        """A name for labels, as messages of a lane are numbered for themselves: group, sender, receiver, tag if any."""
        here, peer = self._owner.rank, self._peer
        sender, receiver = (here, peer) if self._way == OUT else (peer, here)
        return f"{self._carrier.group_name}:{sender}-{receiver}" + (f":{self._tag}" if self._tag else "")

    def submit(self, tensors: Sequence[torch.Tensor], post: Callable[[], Any]) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        with labels.span(Word.LAUNCH, seq=self._posted, group=self._group):
            queued_ns = self._carrier.now_ns()
            self._messages.put(_Message(self._posted, tensors, post, queued_ns, future))
        self._posted += 1
        return _NotedWork(future)

    def close(self) -> None:
        self._messages.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._carrier.wire.remove_user()

    def _carry_all(self) -> None:
        wake_on_time()
        while (message := self._messages.get()) is not None:
            try:
                self._carry(message)
            except Exception as error:
                self._carrier.fail(error)
                message.future.set_exception(error)
            else:
                message.future.set_result(list(message.tensors))
            del message

    def _carry(self, message: _Message) -> None:
        carrier = self._carrier
        carrier.check()
        modelled_ns = carrier.modelled_ns(Kind.SEND_RECV, message.tensors)
        key = (id(self), message.seq)
        span = comm_span(carrier.link, self._group, message.seq, Kind.SEND_RECV, message.tensors, modelled_ns)
        with span:
            real = message.post()
            arrived_ns = self._later_of_both(2 * self._tag, message.queued_ns)
            real.wait()
            begin_ns = carrier.book(
                key, arrived_ns, modelled_ns, self._way, partial(self._later_of_both, 2 * self._tag + 1)
            )
            self._alarm.sleep_until(begin_ns + modelled_ns)
            end_ns = carrier.now_ns()
        carrier.correct_booking(key, begin_ns, end_ns, self._way)
        self._owner.log.append(
            Carried(
                seq=message.seq,
                kind=Kind.SEND_RECV,
                nbytes=sum(t.nbytes for t in message.tensors),
                modelled_ns=modelled_ns,
                occupied_ns=end_ns - begin_ns,
            )
        )

    def _later_of_both(self, exchange: int, ns: int) -> int:
        """The greater of the two ends' times; `exchange` is 2 · tag for arrivals, 2 · tag + 1 for bookings."""
        clock, upwards = self._owner.clock, (self._owner.rank < self._peer) == (self._way == OUT)
        slot = 2 * exchange + int(upwards)  # one for messages to the higher rank, one for those to the lower
        mine, theirs = torch.tensor([ns]), torch.zeros(1, dtype=torch.int64)
        for work in (clock.send([mine], self._peer, slot), clock.recv([theirs], self._peer, slot)):
            work.wait()
        return max(ns, int(theirs))
