"""The emulated link on a GPU: a stream that carries collectives in order, each for as long as the model says.

[Note: one stream is the link]
A link carries one collective after another, so one stream per group takes them in the order of their launches. For each
it waits for the stream that launches, notes the time, moves the data, and waits on the device until T after the noted
time: a collective begins when its input is there and the link is free, and copies count inside T. An event follows:
whoever waits makes the current stream wait for it, and the host goes on. All that a collective has on the device is
launched within its `engine::comm`. As NCCL's, the link's kernels wait for a place on the GPU that computation leaves
them; a trace counts that to the collective, the model does not. What keeps the time is a `Clock`: one of kernels, or
one of the host, which needs no such place.

[Note: tensors of others]
The stream reads and writes memory that other streams own, and keeps none of it alive: the host would learn late that
the device is done, and memory would run up meanwhile. Whoever launches keeps the tensors until they have waited, as the
engine does ([Note: buffers kept alive]), and FSDP2 and DDP. For the same reason waiting is not a future's, which calls
`record_stream`; only DDP asks for a future, of buffers that it keeps for good.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from overlaplab_engine.network.carrier import Carried, comm_span
from overlaplab_engine.network.device_clock import DeviceClock
from overlaplab_engine.network.host_clock import HostClock
from overlaplab_engine.network.link import Kind, Link, LinkWait

__all__ = ["Clock", "StreamCarrier", "link_clock"]


class Clock(Protocol):
    """What keeps a stream's time: of each collective the beginning and the end, in slots from 0 on."""

    def begin(self, slot: int, stream: torch.cuda.Stream) -> None:
        """Note the beginning in `slot`, when `stream`, which is the current one, comes to it."""

    def wait_until(self, slot: int, ns: int, stream: torch.cuda.Stream) -> None:
        """Hold up `stream`, which is the current one, until `ns` after the beginning, and note the end."""

    def occupied_ns(self, count: int) -> list[int]:
        """From beginning to end of the first `count` slots; whoever asks has waited for the streams."""

    def check(self) -> None:
        """Raise what went wrong without anybody's asking."""

    def close(self) -> None:
        """End; a stream that still waits goes on."""


def link_clock(wait: LinkWait, device: torch.device) -> Clock:
    """A clock for a stream of `device`, of the kind that `wait` names. EngineError where the GPU cannot have it."""
    return HostClock(device) if wait is LinkWait.HOST else DeviceClock(device)


class _LinkWork(torch._C._distributed_c10d.Work):
    """A collective on the link's stream, as torch's own code may wait for it."""

    def __init__(self, cuda: Any, stream: Any, event: Any | None, outputs: Any) -> None:
        """`event` comes after it on `stream`; None: it is done."""
        super().__init__()
        self._cuda = cuda
        self._stream = stream
        self._event = event
        self._outputs = outputs

    def wait(self, timeout: Any = None) -> bool:
        """Make the current stream wait."""
        if self._event is not None:
            self._cuda.current_stream(self._stream.device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        """Whether the device is done."""
        return self._event is None or bool(self._event.query())

    def get_future(self) -> "torch.futures.Future[Any]":
        """The outputs; DDP asks right after the launch, when nothing else is queued on the link."""
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self._stream.device])
        with self._cuda.stream(self._stream):
            future.set_result(self._outputs)
        return future


class StreamCarrier:
    """A stream and a clock."""

    def __init__(self, link: Link, world_size: int, device: torch.device, clock: Clock, cuda: Any = torch.cuda) -> None:
        """Carry over `link`; `device` is the GPU, with its index. `clock` keeps the stream's time, `cuda` makes it."""
        self.link = link
        self.group_name = ""
        self._world_size = world_size
        self._device = device
        self._cuda = cuda
        self._stream = cuda.Stream(device, priority=-1)  # before the computation's kernels
        self._clock = clock
        self._submitted: list[tuple[Kind, int, int]] = []  # kind, bytes, modelled ns

    @property
    def launched(self) -> int:
        """How many collectives were submitted so far."""
        return len(self._submitted)

    @property
    def log(self) -> list[Carried]:
        """What was carried so far, in order; waits for the device."""
        self._stream.synchronize()
        occupied = self._clock.occupied_ns(self.launched)
        return [
            Carried(seq=seq, kind=kind, nbytes=nbytes, modelled_ns=modelled_ns, occupied_ns=occupied_ns)
            for seq, ((kind, nbytes, modelled_ns), occupied_ns) in enumerate(
                zip(self._submitted, occupied, strict=True)
            )
        ]

    def submit(self, kind: Kind, tensors: Sequence[torch.Tensor], work: Callable[[], Any], outputs: Any) -> Any:
        """Queue a collective on the device, and return its work. See `Carrier.submit`.

        Tensors of the host, which objects travel in, are moved at once: they are not the link's.
        """
        if any(not t.is_cuda for t in tensors):
            work()
            return _LinkWork(self._cuda, self._stream, None, outputs)
        seq, nbytes = self.launched, sum(t.nbytes for t in tensors)
        modelled_ns = self.link.modelled_ns(kind, nbytes, self._world_size)
        with comm_span(self.link, self.group_name, seq, kind, tensors, modelled_ns):
            self._stream.wait_stream(self._cuda.current_stream(self._device))
            with self._cuda.stream(self._stream):
                self._clock.begin(seq, self._stream)
                work()
                self._clock.wait_until(seq, modelled_ns, self._stream)
            self._submitted.append((kind, nbytes, modelled_ns))
            return _LinkWork(self._cuda, self._stream, self._stream.record_event(), outputs)

    def check(self) -> None:
        """Raise what went wrong since the launch: only a clock can."""
        self._clock.check()

    def close(self) -> None:
        """Carry what is queued, then end the clock."""
        self._stream.synchronize()
        self._clock.close()

    def abort(self) -> None:
        """Nobody waits for anybody."""
