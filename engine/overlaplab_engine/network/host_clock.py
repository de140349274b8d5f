"""Keeps the emulated link's time on the host: the link's stream waits at a gate, and no kernel occupies the GPU.

For each collective the stream writes to the host's memory that it begins, and how long it is to take. Then it waits
until the gate keeper has written there that the time is over. These are stream memory operations
(`cuStreamWriteValue64`, `cuStreamWaitValue64`), which the GPU's front end executes. A trace does not show them, so two
copies of 8 bytes to the host, executed by a copy engine, mark the beginning and the end in it. The reported times come
from two CUDA events around all of this.
"""

import ctypes
import statistics
from typing import Any

import torch

from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.gate import Gate
from overlaplab_engine.network.gate_keeper import BEGUN, ORDER, PAGE, RELEASED, order

# From cuda.h. Version 2 of the operations (CUDA 11.7) needs no option of the driver's kernel module.
CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122
CU_MEMHOSTREGISTER_DEVICEMAP = 2
CU_STREAM_WRITE_VALUE_DEFAULT = 0
CU_STREAM_WAIT_VALUE_GEQ = 0

ROUNDS = 16
"""Number of waits at the start that measure by how much a wait takes too long."""
ROUND_NS = 200_000
"""How long each of them should take."""
MOST_LEAD_NS = 50_000
"""The largest lead: longer delays come from a busy core and do not predict the next one."""
KEPT = 256
"""The last slots keep their events; of older slots only the times are kept."""


class HostClock:
    """Records the beginning and the end of each collective on a stream, in slots from 0, as `DeviceClock` does."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        """Start a gate keeper for `device` and measure its lead. EngineError if streams cannot wait for the host."""
        self._device, self._cuda = device, cuda
        self._mark_source = torch.zeros(1, dtype=torch.int64, device=device)  # first: makes the context current here
        self._mark_target = torch.zeros(1, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._driver: Any = ctypes.CDLL("libcuda.so.1")  # as torch/cuda/_utils.py does
        self._number = 0  # of the last collective that began, from 1
        self._spans: list[Any] = []  # per slot: its two events, or its time in ns
        self._gate: Gate | None = None
        self.lead_ns = 0
        """The gate opens this much early, because the stream takes that long to go on."""
        try:
            self._require()
            self._gate = Gate()
            self._page = self._register(self._gate)
            self.lead_ns = self._find_lead()
        except RuntimeError as error:
            if self._gate is not None:
                self._gate.close()
            raise EngineError(f"--link-wait host: {error}; use --link-wait kernel") from error

    def begin(self, slot: int, stream: Any) -> None:
        """Record the beginning in `slot`, when `stream`, which must be current, reaches it."""
        self._number += 1
        old = self._spans[slot - KEPT] if slot >= KEPT else 0
        if not isinstance(old, int) and old[1].query():
            self._spans[slot - KEPT] = _elapsed_ns(*old)
        begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._spans[slot:] = [(begin, end)]  # after a failed launch the same slot begins again
        begin.record(stream)
        self._mark()
        self._write(BEGUN, self._number, stream)

    def wait_until(self, slot: int, ns: int, stream: Any) -> None:
        """Hold up `stream`, which must be current, until `ns` after the beginning, and record the end."""
        self._write(ORDER, order(self._number, max(ns - self.lead_ns, 0)), stream)
        address, value = ctypes.c_uint64(self._page + 8 * RELEASED), ctypes.c_uint64(self._number)
        self._call("cuStreamWaitValue64_v2", _handle(stream), address, value, CU_STREAM_WAIT_VALUE_GEQ)
        self._mark()
        self._spans[slot][1].record(stream)

    def occupied_ns(self, count: int) -> list[int]:
        """Time from beginning to end of the first `count` slots; the caller must have waited for the streams."""
        return [span if isinstance(span, int) else _elapsed_ns(*span) for span in self._spans[:count]]

    def check(self) -> None:
        """EngineError if the gate keeper has ended."""
        if self._gate is not None:
            self._gate.check()

    def close(self) -> None:
        """End the keeper; waiting streams go on."""
        gate, self._gate = self._gate, None
        if gate is None:
            return
        gate.close()
        self._cuda.synchronize(self._device)  # afterwards no stream writes to the page
        self._call("cuMemHostUnregister", ctypes.c_void_p(gate.address))
        gate.free()

    def _mark(self) -> None:
        """Leave a mark in the trace, without a kernel."""
        self._mark_target.copy_(self._mark_source, non_blocking=True)

    def _write(self, index: int, value: int, stream: Any) -> None:
        address, number = ctypes.c_uint64(self._page + 8 * index), ctypes.c_uint64(value)
        self._call("cuStreamWriteValue64_v2", _handle(stream), address, number, CU_STREAM_WRITE_VALUE_DEFAULT)

    def _find_lead(self) -> int:
        """Measure by how much waits take too long: the round trip to the host, and the marks."""
        stream = self._cuda.current_stream(self._device)
        for slot in range(ROUNDS):
            self.begin(slot, stream)
            self.wait_until(slot, ROUND_NS, stream)
        self._cuda.synchronize(self._device)
        late_ns = round(statistics.median(self.occupied_ns(ROUNDS))) - ROUND_NS
        self._spans.clear()
        return min(max(late_ns, 0), MOST_LEAD_NS)

    def _require(self) -> None:
        """EngineError for a driver without 64-bit stream memory operations."""
        device, supported = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), self._device.index or 0)
        attribute = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        self._call("cuDeviceGetAttribute", ctypes.byref(supported), attribute, device)
        if not supported.value or not hasattr(self._driver, "cuStreamWaitValue64_v2"):
            raise EngineError("--link-wait host: this GPU's streams cannot wait for the host; use --link-wait kernel")

    def _register(self, gate: Gate) -> int:
        """Register the gate's page with the device; returns its address there."""
        address, page = ctypes.c_uint64(), ctypes.c_void_p(gate.address)
        self._call("cuMemHostRegister_v2", page, ctypes.c_size_t(PAGE), CU_MEMHOSTREGISTER_DEVICEMAP)
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(address), page, 0)
        return address.value

    def _call(self, name: str, *arguments: Any) -> None:
        if error := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"CUDA error {error} from {name}")


def _handle(stream: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(stream.cuda_stream)


def _elapsed_ns(begin: Any, end: Any) -> int:
    """Time in ns; the resolution of events is about 500 ns."""
    return round(1e6 * float(begin.elapsed_time(end)))
