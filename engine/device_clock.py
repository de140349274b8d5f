"""The GPU's own clock: stamps of its time, and waiting until some time has passed since one, without the host.

Two kernels of one thread each, in PTX, which the driver compiles when they are loaded, so that neither nvcc nor NVRTC
is needed. PTX ISA: `%globaltimer` counts ns, in steps that depend on the GPU; `nanosleep` needs sm_70.
"""

from typing import Any

import torch

from engine.errors import EngineError

__all__ = ["DeviceClock"]

PTX = """
.version 6.3
.target sm_70
.address_size 64

// stamps[2 * slot] = now
.visible .entry emulated_link_begin(.param .u64 stamps, .param .u32 slot)
{
    .reg .b32 %slot;
    .reg .b64 %base, %at, %now;
    ld.param.u64 %base, [stamps];
    ld.param.u32 %slot, [slot];
    cvta.to.global.u64 %base, %base;
    mad.wide.u32 %at, %slot, 16, %base;
    mov.u64 %now, %globaltimer;
    st.global.u64 [%at], %now;
    ret;
}

// until stamps[2 * slot] + ns; then stamps[2 * slot + 1] = now
.visible .entry emulated_link_wait(.param .u64 stamps, .param .u32 slot, .param .u32 ns)
{
    .reg .pred %late;
    .reg .b32 %slot, %ns;
    .reg .b64 %base, %at, %now, %end, %more;
    ld.param.u64 %base, [stamps];
    ld.param.u32 %slot, [slot];
    ld.param.u32 %ns, [ns];
    cvta.to.global.u64 %base, %base;
    mad.wide.u32 %at, %slot, 16, %base;
    ld.global.u64 %end, [%at];
    cvt.u64.u32 %more, %ns;
    add.u64 %end, %end, %more;
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

EDGES_NS = 1_200
"""What a trace shows of the two kernels before the first one's stamp and after the second one's: about what an empty
kernel takes. Both waiting and the times read reckon with it."""
LONGEST_NS = 2_000_000_000
"""A kernel's integer argument has 31 bits."""
SLOTS = 4096
"""Stamps are kept in blocks of so many."""


class DeviceClock:
    """Stamps in slots: begin and end of what happens on a stream."""

    def __init__(self, device: torch.device) -> None:
        """Load the kernels onto the GPU `device`. EngineError if its driver will not have them."""
        from torch.cuda._utils import _cuda_load_module

        self._device = device
        try:
            with torch.cuda.device(device):
                kernels: Any = _cuda_load_module(PTX, ["emulated_link_begin", "emulated_link_wait"])
        except RuntimeError as error:
            raise EngineError(f"--link: this GPU cannot tell the time ({error}); it needs sm_70 or newer") from error
        self._begin, self._wait = kernels["emulated_link_begin"], kernels["emulated_link_wait"]
        self._blocks = [self._block()]

    def begin(self, slot: int) -> None:
        """Stamp the beginning in `slot`, when the current stream comes to it."""
        if slot // SLOTS == len(self._blocks):
            self._blocks.append(self._block())
        self._begin(args=[self._blocks[slot // SLOTS], slot % SLOTS])

    def wait_until(self, slot: int, ns: int) -> None:
        """Hold up the current stream until `ns` after the beginning, and stamp the end.

        Raises EngineError above 2 s.
        """
        if ns > LONGEST_NS:
            raise EngineError(f"--link: one collective would take {ns / 1e9:.1f} s; a GPU waits for 2 s at most")
        self._wait(args=[self._blocks[slot // SLOTS], slot % SLOTS, max(ns - EDGES_NS, 0)])

    def occupied_ns(self, count: int) -> list[int]:
        """From beginning to end of the first `count` slots; whoever asks has waited for the streams."""
        stamps = torch.cat(self._blocks)[:count]
        return [int(ns) + EDGES_NS for ns in (stamps[:, 1] - stamps[:, 0]).tolist()]

    def _block(self) -> torch.Tensor:
        return torch.zeros(SLOTS, 2, dtype=torch.int64, device=self._device)
