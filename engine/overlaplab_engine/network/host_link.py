"""The link between a device and its host's memory (PCIe), emulated where the device is a CPU.

It carries both directions at once, and the copies of a direction one after another. A copy takes T = latency + bytes ÷
bandwidth, or as long as it really takes.
"""

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from queue import SimpleQueue

import torch

from overlaplab_engine import labels
from overlaplab_engine.alarm import Alarm, note_wait, wake_on_time
from overlaplab_engine.labels import Word
from overlaplab_engine.network.carrier import local_ns, urgent_threads
from overlaplab_engine.network.link import Kind, Link

_depth = 0


@contextmanager
def host_allocation() -> Iterator[None]:
    """Let this rank allocate the host's memory, where the device is a CPU itself."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def allocates_on_host() -> bool:
    """Whether memory that is allocated now is the host's."""
    return _depth > 0


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
        """Whether it is done."""
        return self._done.is_set()

    @torch.no_grad()
    def carry(self, link: Link, way: Way, alarm: Alarm) -> None:
        """Copy, and take the time that it takes on the link."""
        nbytes = self._source.nbytes
        modelled_ns = link.modelled_ns(Kind.SEND_RECV, nbytes, 2)
        span = labels.span(Word.COPY, way=way, bytes=nbytes, link=str(link), modelled_ns=modelled_ns)
        with span:
            end_ns = local_ns() + modelled_ns
            self._destination.copy_(self._source)
            alarm.sleep_until(end_ns)
        self._done.set()


class HostLink:
    """One rank's link to its host's memory, a thread for each direction."""

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
