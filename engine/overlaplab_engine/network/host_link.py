"""The link between a device and its host's memory (PCIe): a GPU's own, or emulated where the device is a CPU.

It carries both directions at once, and the copies of a direction one after another. An emulated copy takes T = latency
+ bytes ÷ bandwidth, or as long as it really takes. On a GPU pinned memory is copied, on a stream for each direction.

[Note: copies to the host]
A copy waits for everything queued on the computation's stream so far, and runs beside what is queued later. The current
stream waits for a copy to the device. The host waits for a copy to the host, because it reads the data next: this is
the only place where the host waits for the device in a pass. Sources are kept until the copy is waited for (see [Note:
buffers kept alive] in `overlaplab_engine.network.streams`).

The host may write to a parameter only once the parameter's copy to the device is over. It is: the host updates what got
a gradient, and that gradient came after a pass that had waited for this copy.
"""

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from queue import SimpleQueue
from typing import Any

import torch

from overlaplab_engine import labels
from overlaplab_engine.alarm import Alarm, note_wait, wake_on_time
from overlaplab_engine.labels import Word
from overlaplab_engine.network.carrier import local_ns, urgent_threads
from overlaplab_engine.network.link import Kind, Link

_host_allocation_depth = 0


@contextmanager
def host_allocation() -> Iterator[None]:
    """Count what this rank allocates meanwhile as the host's, where the device is a CPU (see `recording.peak`)."""
    global _host_allocation_depth
    _host_allocation_depth += 1
    try:
        yield
    finally:
        _host_allocation_depth -= 1


def allocates_on_host() -> bool:
    """Whether memory that is allocated now is the host's."""
    return _host_allocation_depth > 0


def host_memory(like: torch.Tensor) -> torch.Tensor:
    """Memory of the host for what `like` holds; pinned where that lies on a GPU, so that copies do not block."""
    if like.is_cuda:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
    with host_allocation():
        return torch.empty_like(like)


class Way(StrEnum):
    """The direction of a copy."""

    DOWN = "down"
    """From the device to its host."""
    UP = "up"
    """From the host to the device."""


class Copy:
    """A copy under way; keep its tensors as they are until it is waited for."""

    def __init__(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        self._destination, self._source = destination, source
        self._done = threading.Event()

    def wait(self) -> None:
        with note_wait():
            self._done.wait()

    def is_completed(self) -> bool:
        return self._done.is_set()

    @torch.no_grad()
    def carry(self, link: Link, way: Way, alarm: Alarm) -> None:
        """Copy, and take the time that it takes on the link."""
        nbytes = self._source.nbytes
        modelled_ns = link.modelled_ns(Kind.SEND_RECV, nbytes, world_size=2)
        span = labels.span(Word.COPY, way=way, bytes=nbytes, link=str(link), modelled_ns=modelled_ns)
        with span:
            end_ns = local_ns() + modelled_ns
            self._destination.copy_(self._source)
            alarm.sleep_until(end_ns)
        self._done.set()


class HostLink:
    """One rank's emulated link to its host's memory, a thread for each direction."""

    def __init__(self, link: Link) -> None:
        """Start the threads; they end when this is garbage-collected."""
        self._queues: Mapping[Way, SimpleQueue[Copy | None]] = {way: SimpleQueue() for way in Way}
        with urgent_threads():
            for way, queue in self._queues.items():
                threading.Thread(
                    target=_carry_all, args=(link, way, queue), name=f"host-link-{way}", daemon=True
                ).start()
        weakref.finalize(self, _end, self._queues)

    def copy(self, way: Way, destination: torch.Tensor, source: torch.Tensor) -> Copy:
        """Copy `source` to `destination`, of the same shape; returns at once."""
        copy = Copy(destination, source)
        self._queues[way].put(copy)
        return copy


def _carry_all(link: Link, way: Way, queue: "SimpleQueue[Copy | None]") -> None:
    wake_on_time()
    alarm = Alarm(local_ns)
    while (copy := queue.get()) is not None:
        copy.carry(link, way, alarm)
        del copy  # keep no tensors alive while waiting for the next


def _end(queues: "Mapping[Way, SimpleQueue[Copy | None]]") -> None:
    for queue in queues.values():
        queue.put(None)


class StreamCopy:
    """A copy on its stream; keep the destination as it is until it is waited for."""

    def __init__(self, cuda: Any, way: Way, event: Any, source: torch.Tensor) -> None:
        """`event` follows the copy on its stream."""
        self._cuda, self._way, self._event = cuda, way, event
        self._source: torch.Tensor | None = source

    def wait(self) -> None:
        """Make the host wait for a copy to it, the current stream for one to the device."""
        if self._way is Way.DOWN:
            self._event.synchronize()
        else:
            self._cuda.current_stream().wait_event(self._event)
        self._source = None

    def is_completed(self) -> bool:
        """Whether the device is done. No launch of a collective may depend on it, since ranks get different answers."""
        return bool(self._event.query())


class HostStreams:
    """A GPU's link to its host's memory, a stream for each direction; see [Note: copies to the host]."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        """`cuda` is torch.cuda, or a stand-in for tests."""
        self._cuda = cuda
        self._streams = {way: cuda.Stream(priority=-1) for way in Way}

    @torch.no_grad()
    def copy(self, way: Way, destination: torch.Tensor, source: torch.Tensor) -> StreamCopy:
        """Copy `source` to `destination`, of the same shape; returns at once if the host's memory is pinned."""
        stream = self._streams[way]
        with labels.span(Word.COPY, way=way, bytes=source.nbytes):
            stream.wait_stream(self._cuda.current_stream())
            with self._cuda.stream(stream):
                destination.copy_(source, non_blocking=True)
            return StreamCopy(self._cuda, way, stream.record_event(), source)
