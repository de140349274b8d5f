"""The GPU's own clock: stamps of its time, and waiting until some time has passed since one, without the host.

Two kernels of one thread each, in PTX, which the driver compiles when they are loaded: neither nvcc nor NVRTC is
needed. They are launched through the driver's own interface, for a few µs of the host's time. PTX ISA: `%globaltimer`
counts ns, in steps that depend on the GPU; `nanosleep` needs sm_70.
"""

import ctypes
import os
from typing import Any

import torch

from overlaplab_engine.errors import EngineError

__all__ = ["DeviceClock"]

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
        raise EngineError(f"OVERLAPLAB_EDGES_NS={text} is no whole number of ns, such as 1500")
    return int(text)


EDGES_NS = _edges_ns(os.environ.get("OVERLAPLAB_EDGES_NS") or "1500")
"""What a trace shows of the two kernels before the first one's stamp and after the second one's: about what an empty
kernel takes. Both the wait and the times read reckon with it. OVERLAPLAB_EDGES_NS sets it to what a GPU was found to
take."""
SLOTS = 4096
"""Stamps are kept in blocks of so many pairs."""


class DeviceClock:
    """Stamps in slots: begin and end of what happens on a stream."""

    def __init__(self, device: torch.device) -> None:
        """Load the kernels onto the GPU `device` and run them once. EngineError if its driver will not have them."""
        from torch.cuda._utils import _cuda_load_module

        self._device = device
        self._blocks = [self._block()]  # before the kernels: now the device's context is this thread's
        try:
            with torch.cuda.device(device):
                kernels: Any = _cuda_load_module(PTX, list(NAMES))
        except RuntimeError as error:
            raise EngineError(f"--link: this GPU cannot tell the time ({error}); it needs sm_70 or newer") from error
        self._begin, self._wait = (kernels[name] for name in NAMES)
        self._driver: Any = ctypes.CDLL("libcuda.so.1")  # as torch/cuda/_utils.py does
        self.begin(0, torch.cuda.current_stream(device))
        self.wait_until(0, 0, torch.cuda.current_stream(device))

    def begin(self, slot: int, stream: torch.cuda.Stream) -> None:
        """Stamp the beginning in `slot`, when `stream` comes to it."""
        if slot // SLOTS == len(self._blocks):
            self._blocks.append(self._block())
        self._launch(self._begin, stream, self._at(slot))

    def wait_until(self, slot: int, ns: int, stream: torch.cuda.Stream) -> None:
        """Hold up `stream` until `ns` after the beginning, and stamp the end."""
        self._launch(self._wait, stream, self._at(slot), max(ns - EDGES_NS, 0))

    def occupied_ns(self, count: int) -> list[int]:
        """From beginning to end of the first `count` slots; whoever asks has waited for the streams."""
        begin, end = torch.cat(self._blocks)[:count].unbind(1)
        return [int(ns) + EDGES_NS for ns in (end - begin).tolist()]

    def check(self) -> None:
        """Nothing fails later than its launch."""

    def close(self) -> None:
        """Nothing is to be ended."""

    def _block(self) -> torch.Tensor:
        return torch.empty(SLOTS, 2, dtype=torch.int64, device=self._device)

    def _at(self, slot: int) -> int:
        return self._blocks[slot // SLOTS].data_ptr() + 16 * (slot % SLOTS)

    def _launch(self, kernel: Any, stream: torch.cuda.Stream, *arguments: int) -> None:
        """As `_CudaKernel.__call__` of torch/cuda/_utils.py, which takes 32 bits and opens the driver each time."""
        values = [ctypes.c_uint64(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        queue = ctypes.c_void_p(stream.cuda_stream)
        error = self._driver.cuLaunchKernel(kernel.func, 1, 1, 1, 1, 1, 1, 0, queue, pointers, None)
        if error:
            raise RuntimeError(f"CUDA error {error} from cuLaunchKernel")
