"""A GPU's stream as a thread, with the driver's memory operations on real memory: for clocks that wait at a gate.

What is queued is carried out in order by the thread. A wait looks at memory until the number there is great enough, as
the device does; `log` holds what was carried out.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

CAN_USE_64_BIT_STREAM_MEM_OPS = 122
REFUSED = 801
"""CUDA_ERROR_NOT_SUPPORTED."""


class Stream:
    """The only one there is."""

    cuda_stream = 77

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def synchronize(self) -> None:
        self._gpu.synchronize()


class Event:
    """The moment when the stream comes to it."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.at_ns = 0

    def record(self, stream: Stream) -> None:
        def note() -> None:
            self.at_ns = time.perf_counter_ns()

        self._gpu.queue(note)

    def query(self) -> bool:
        return self.at_ns > 0

    def elapsed_time(self, end: Event) -> float:
        assert self.at_ns
        assert end.at_ns
        return (end.at_ns - self.at_ns) / 1e6


class FakeGpu:
    """What a clock asks of torch.cuda and of libcuda.so.1."""

    def __init__(self, able: int = 1, error: int = 0) -> None:
        """`able` is what the driver says of memory operations; `error` what it answers when memory is registered."""
        self.log: list[tuple[str, int, int]] = []
        self.registered: list[int] = []
        self._able, self._error = able, error
        self._stream = Stream(self)
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def queue(self, operation: Callable[[], None]) -> None:
        self._queue.put(operation)

    def _work(self) -> None:
        while True:
            self._queue.get()()

    # torch.cuda

    def Event(self, enable_timing: bool) -> Event:  # noqa: N802
        assert enable_timing
        return Event(self)

    def current_stream(self, device: Any) -> Stream:
        return self._stream

    def synchronize(self, device: Any = None) -> None:
        done = threading.Event()
        self.queue(done.set)
        assert done.wait(300), "the stream waits for ever"

    # libcuda.so.1; addresses are the same on the device

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        assert attribute == CAN_USE_64_BIT_STREAM_MEM_OPS
        value._obj.value = self._able
        return 0

    def cuMemHostRegister_v2(self, page: Any, size: Any, flags: int) -> int:  # noqa: N802
        assert (page.value % 4096, size.value, flags) == (0, 4096, 2)
        self.registered.append(page.value)
        return self._error

    def cuMemHostGetDevicePointer_v2(self, at: Any, page: Any, flags: int) -> int:  # noqa: N802
        assert flags == 0
        at._obj.value = page.value
        return 0

    def cuMemHostUnregister(self, page: Any) -> int:  # noqa: N802
        self.registered.remove(page.value)
        return 0

    def cuStreamWriteValue64_v2(self, stream: Any, at: Any, value: Any, flags: int) -> int:  # noqa: N802
        assert (stream.value, flags) == (77, 0)

        def write() -> None:
            ctypes.c_uint64.from_address(at.value).value = value.value
            self.log.append(("write", at.value - self.registered[0], value.value))

        self.queue(write)
        return 0

    def cuStreamWaitValue64_v2(self, stream: Any, at: Any, value: Any, flags: int) -> int:  # noqa: N802
        assert (stream.value, flags) == (77, 0)

        def wait() -> None:
            number = ctypes.c_uint64.from_address(at.value)
            while number.value < value.value:
                time.sleep(0.0001)
            self.log.append(("wait", at.value - self.registered[0], value.value))

        self.queue(wait)
        return 0
