"""The emulated link on a GPU: a stream that carries collectives in order, each for as long as the model says.

[Note: one stream is the link]
A link carries one collective after another, so all groups of a rank share one stream, which runs them in the order of
their launches. For each, it waits for the launching stream, records the time, moves the data, and waits on the device
until T after the recorded time. So a collective begins when its input is ready and the link is free, and the copies are
part of T. An event follows. Waiting for the collective makes the current stream wait for that event, and the host goes
on. All device work of a collective is launched within its `engine::comm`. Like NCCL's kernels, the link's kernels wait
until computation leaves room on the GPU; a trace counts that wait as part of the collective, the model does not. A
`LinkClock` keeps the time, either with kernels or on the host, where no room on the GPU is needed.

[Note: tensors of others]
The stream reads and writes memory that belongs to other streams, and does not keep it alive: the host would learn late
that the device is done, and memory would accumulate meanwhile. The caller keeps the tensors until it has waited, as the
engine ([Note: buffers kept alive]), FSDP2 and DDP do. For the same reason `wait` does not use a future, which would
call `record_stream`; only DDP asks for a future, and it keeps its buffers for good.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from overlaplab_engine.network.carrier import Carried, comm_span
from overlaplab_engine.network.device_clock import DeviceClock
from overlaplab_engine.network.host_clock import HostClock
from overlaplab_engine.network.link import Kind, Link, LinkWait

LinkClock = DeviceClock | HostClock
"""What records the beginning and the end of each collective on a stream, in slots from 0."""


def link_clock(wait: LinkWait, device: torch.device) -> LinkClock:
    """The clock that `wait` names, for a stream of `device`. EngineError if the GPU does not support it."""
    return HostClock(device) if wait is LinkWait.HOST else DeviceClock(device)


@cache
def _link_stream(cuda: Any, device: torch.device) -> Any:
    """The stream that is the link of all groups on the device; its priority is above the computation's."""
    return cuda.Stream(device, priority=-1)


class _LinkWork(torch._C._distributed_c10d.Work):
    """A collective on the link's stream, with the interface that torch's own code waits by."""

    def __init__(self, cuda: Any, stream: Any, event: Any | None, outputs: Any) -> None:
        """`event` follows the collective on `stream`; None: the collective is done."""
        super().__init__()
        self._cuda = cuda
        self._stream = stream
        self._event = event
        self._outputs = outputs

    def wait(self, timeout: Any = None) -> bool:
        if self._event is not None:
            self._cuda.current_stream(self._stream.device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return self._event is None or bool(self._event.query())

    def get_future(self) -> "torch.futures.Future[Any]":
        """A future of the outputs; DDP asks for it right after the launch, before anything else is queued."""
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self._stream.device])
        with self._cuda.stream(self._stream):
            future.set_result(self._outputs)
        return future


class StreamCarrier:
    """The stream that is a group's link, and its clock."""

    def __init__(
        self, link: Link, world_size: int, device: torch.device, clock: LinkClock, cuda: Any = torch.cuda
    ) -> None:
        """`device` is the GPU, with its index; `cuda` is torch.cuda, or a stand-in for tests."""
        self.link = link
        self.group_name = ""
        self._world_size = world_size
        self._device = device
        self._cuda = cuda
        self._stream = _link_stream(cuda, device)
        self._clock = clock
        self._submitted: list[tuple[Kind, int, int]] = []  # kind, bytes, modelled ns

    @property
    def launched(self) -> int:
        """How many collectives were submitted so far."""
        return len(self._submitted)

    @property
    def log(self) -> list[Carried]:
        """The collectives carried so far, in order; waits for the device."""
        self._stream.synchronize()
        occupied = self._clock.occupied_ns(self.launched)
        return [
            Carried(seq=seq, kind=kind, nbytes=nbytes, modelled_ns=modelled_ns, occupied_ns=occupied_ns)
            for seq, ((kind, nbytes, modelled_ns), occupied_ns) in enumerate(
                zip(self._submitted, occupied, strict=True)
            )
        ]

    def submit(self, kind: Kind, tensors: Sequence[torch.Tensor], work: Callable[[], Any], outputs: Any) -> Any:
        """Queue a collective on the device and return its work; see `Carrier.submit`.

        Tensors on the host, which carry pickled objects, are moved at once and bypass the link.
        """
        if any(not t.is_cuda for t in tensors):
            work().wait()
            return _LinkWork(self._cuda, self._stream, None, outputs)
        seq, nbytes = self.launched, sum(t.nbytes for t in tensors)
        modelled_ns = self.link.modelled_ns(kind, nbytes, self._world_size)
        with comm_span(self.link, self.group_name, seq, kind, tensors, modelled_ns):
            self._stream.wait_stream(self._cuda.current_stream(self._device))
            with self._cuda.stream(self._stream):
                self._clock.begin(seq, self._stream)
                work().wait()  # what is copied to its place afterwards is part of it
                self._clock.wait_until(seq, modelled_ns, self._stream)
            self._submitted.append((kind, nbytes, modelled_ns))
            return _LinkWork(self._cuda, self._stream, self._stream.record_event(), outputs)

    def check(self) -> None:
        """Raise an error that occurred after a launch, if any; only the clock can have one."""
        self._clock.check()

    def close(self) -> None:
        """Carry what is queued, then end the clock."""
        self._stream.synchronize()
        self._clock.close()

    def abort(self) -> None:
        """Do nothing: nobody waits."""
