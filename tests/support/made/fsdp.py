"""Runs of torch's FSDP2 over NCCL, as torch.profiler shows them: a root and three layers, on ranks that are alike.

Rules, beside those of `made.gpu`: each unit is gathered `ahead` units before its use, at the end of the copying out of
the unit in use, or before its own use where `ahead` is 0; the root stays gathered. What is copied in waits for the
last copying out of a backward pass, and for the last but one of a forward pass.
"""

from __future__ import annotations

from made.gpu import COMPUTE, COPY_IN, GATHERS, SCATTERS, Event, Gpu
from made.traces import event

UNITS = ("", " (layers.0)", " (layers.1)", " (layers.2)")
GATHER_US, SCATTER_US = 140, 60


def fsdp(ahead: int, *, host_us: int = 450, gemm_us: int = 300, steps: int = 3, stays: bool = False) -> list[Event]:
    """One rank's events; for each forward pass of a unit host and device take so long; `stays`: until its backward."""
    gpu = Gpu()
    for _ in range(steps):
        with gpu.step():
            one = _Pass(gpu, ahead, forward=True)
            for place, unit in enumerate(UNITS):
                gpu.now += host_us if place else 0
                with gpu.range(f"FSDP::pre_forward{unit}"):
                    one.use(place, UNITS)
                gpu.run("gemm_forward", gemm_us)
                with gpu.range(f"FSDP::post_forward{unit}"):
                    pass
            with gpu.autograd():
                _backward(gpu, ahead, stays=stays)
            with gpu.range("Optimizer.step#AdamW.step"):
                gpu.run("adamw", 50)
            gpu.wait(COPY_IN, gpu.end())
            _synchronize(gpu)
    return gpu.events


def _synchronize(gpu: Gpu) -> None:
    """The host waits for all, as for a loss that it prints."""
    start, gpu.now = gpu.now, max(gpu.now, gpu.end()) + 10
    gpu.events.append(event("cudaDeviceSynchronize", start, gpu.now, cat="cuda_runtime", tid=gpu.thread))


class _Pass:
    """A pass over units: what is gathered when."""

    def __init__(self, gpu: Gpu, ahead: int, *, forward: bool) -> None:
        self._gpu, self._ahead, self._forward = gpu, ahead, forward
        self._coming: dict[str, int] = {}
        self._copied = 0

    def use(self, place: int, units: tuple[str, ...], *, held: bool = False) -> None:
        """Gather a unit, unless it is held or on its way, and those that follow."""
        gpu, unit = self._gpu, units[place]
        if not held:
            if unit not in self._coming:
                self._gather(unit)
            if self._forward:
                gpu.wait(COPY_IN, self._copied)
            with gpu.range(f"FSDP::all_gather_copy_out{unit}"):
                gpu.wait(COMPUTE, self._coming[unit])
                gpu.run("split_with_sizes_copy_out", 8)
            self._copied = gpu.end()
            if not self._forward:
                gpu.wait(COPY_IN, self._copied)
        for other in units[place + 1 : place + 1 + self._ahead]:
            if other not in self._coming:
                self._gather(other)

    def _gather(self, unit: str) -> None:
        gpu = self._gpu
        with gpu.range(f"FSDP::all_gather{unit}"):
            gpu.run("copy_in", 5, COPY_IN)
            gpu.wait(GATHERS, gpu.end(COPY_IN))
            given = {"Input Dims": [[500_000], [1_000_000]], "Input type": ["float", "float"]}
            with gpu.range("c10d::_allgather_base_", cat="cpu_op", **given):
                gpu.run("ncclDevKernel_AllGather_RING_LL", GATHER_US, GATHERS)
        self._coming[unit] = gpu.end(GATHERS)


def _backward(gpu: Gpu, ahead: int, *, stays: bool) -> None:
    one, order = _Pass(gpu, max(ahead, 1), forward=False), ("", *UNITS[:0:-1])
    for place, unit in enumerate(order):
        with gpu.range(f"FSDP::pre_backward{unit}"):
            if not stays:
                one.use(place, order, held=not place)
        if place:
            with gpu.function("AddmmBackward0"):
                gpu.run("gemm_backward", 200)
            _reduce(gpu, unit)
    with gpu.range("FSDP::root_post_backward_callback"):
        _reduce(gpu, "")
        gpu.wait(COMPUTE, gpu.end(SCATTERS))


def _reduce(gpu: Gpu, unit: str) -> None:
    for word in ("accumulate", "reshard"):
        with gpu.range(f"FSDP::post_backward_{word}{unit}"):
            pass
    with gpu.range(f"FSDP::post_backward_reduce{unit}"):
        gpu.wait(SCATTERS, gpu.end())
        given = {"Input Dims": [[1_000_000], [500_000]], "Input type": ["float", "float"]}
        with gpu.range("c10d::_reduce_scatter_base_", cat="cpu_op", **given):
            gpu.run("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", SCATTER_US, SCATTERS)
