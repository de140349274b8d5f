"""Keeps the emulated link's time on the GPU: one kernel records a start time, another waits until a span has passed.

Both kernels have one thread. They are written in PTX, which the driver compiles when it loads them, so neither nvcc nor
NVRTC is needed. Launching them through the driver's API takes the host a few µs. PTX ISA: `%globaltimer` counts ns, in
steps that depend on the GPU; `nanosleep` needs sm_70.
"""

import ctypes
import os
from typing import Any

import torch

from overlaplab_engine.errors import EngineError

PTX = """
.version 6.3
.target sm_70
.address_size 64

// at[0] = now
.visible .entry emulated_link_begin(.param .u64 at)
{
    .reg .b64 %at, %now;
    ld.param.u64 %at, [at];
    cvta.to.global.u64 %at, %at;
    mov.u64 %now, %globaltimer;
    st.global.u64 [%at], %now;
    ret;
}

// until at[0] + ns; then at[1] = now
.visible .entry emulated_link_wait(.param .u64 at, .param .u64 ns)
{
    .reg .pred %late;
    .reg .b64 %at, %ns, %now, %end;
    ld.param.u64 %at, [at];
    ld.param.u64 %ns, [ns];
    cvta.to.global.u64 %at, %at;
    ld.global.u64 %end, [%at];
    add.u64 %end, %end, %ns;
AGAIN:
    mov.u64 %now, %globaltimer;
    setp.ge.u64 %late, %now, %end;
    @%late bra DONE;
    nanosleep.u32 100;
    bra AGAIN;
DONE:
    st.global.u64 [%at + 8], %now;
    ret;
}
"""
NAMES = ("emulated_link_begin", "emulated_link_wait")


def _edges_ns(text: str) -> int:
    if not text.isdecimal():
        raise EngineError(f"OVERLAPLAB_EDGES_NS={text} is not a whole number of ns, such as 1500")
    return int(text)


EDGES_NS = _edges_ns(os.environ.get("OVERLAPLAB_EDGES_NS") or "900")
"""From the first kernel's start to the second's end takes this much longer than from timestamp to timestamp, about as
long as an empty kernel. So `wait_until` waits for less, and `occupied_ns` adds it. OVERLAPLAB_EDGES_NS sets a measured
value.
"""
SLOTS = 4096
"""Pairs of timestamps per block of memory."""


class DeviceClock:
    """Records the beginning and the end of each collective on a stream, in numbered slots."""

    def __init__(self, device: torch.device) -> None:
        """Load the kernels onto the GPU `device` and run them once. EngineError if its driver cannot load them."""
        from torch.cuda._utils import _cuda_load_module

        self._device = device
        self._blocks = [self._block()]  # first: this makes the device's context current in this thread
        try:
            with torch.cuda.device(device):
                kernels: Any = _cuda_load_module(PTX, list(NAMES))
        except RuntimeError as error:
            raise EngineError(f"--link: this GPU cannot keep time ({error}); it must be sm_70 or newer") from error
        self._begin, self._wait = (kernels[name] for name in NAMES)
        self._driver: Any = ctypes.CDLL("libcuda.so.1")  # as torch/cuda/_utils.py does
        self.begin(0, torch.cuda.current_stream(device))
        self.wait_until(0, 0, torch.cuda.current_stream(device))

    def begin(self, slot: int, stream: torch.cuda.Stream) -> None:
        """Record the beginning in `slot`, when `stream` reaches it."""
        if slot // SLOTS == len(self._blocks):
            self._blocks.append(self._block())
        self._launch(self._begin, stream, self._address(slot))

    def wait_until(self, slot: int, ns: int, stream: torch.cuda.Stream) -> None:
        """Hold up `stream` until `ns` after the beginning, and record the end."""
        self._launch(self._wait, stream, self._address(slot), max(ns - EDGES_NS, 0))

    def occupied_ns(self, count: int) -> list[int]:
        """Time from beginning to end of the first `count` slots; the caller must have waited for the streams."""
        begin, end = torch.cat(self._blocks)[:count].unbind(1)
        return [int(ns) + EDGES_NS for ns in (end - begin).tolist()]

    def check(self) -> None:
        """Do nothing: no error appears after the launch."""

    def close(self) -> None:
        """Do nothing."""

    def _block(self) -> torch.Tensor:
        return torch.empty(SLOTS, 2, dtype=torch.int64, device=self._device)

    def _address(self, slot: int) -> int:
        return self._blocks[slot // SLOTS].data_ptr() + 16 * (slot % SLOTS)

    def _launch(self, kernel: Any, stream: torch.cuda.Stream, *arguments: int) -> None:
        """Like `_CudaKernel.__call__` in torch/cuda/_utils.py, which passes 32 bits and loads the driver each time."""
        values = [ctypes.c_uint64(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        queue = ctypes.c_void_p(stream.cuda_stream)
        error = self._driver.cuLaunchKernel(kernel.func, 1, 1, 1, 1, 1, 1, 0, queue, pointers, None)
        if error:
            raise RuntimeError(f"CUDA error {error} from cuLaunchKernel")
