"""Steps on a GPU, written out by rule as torch.profiler shows them: a host that launches and runs ahead, streams that
work in order, and an emulated link of which each collective is several device events. Times in µs.

Rules: the host takes 4 µs for a launch, 1 µs for a wait, and for either end of a range; what it launches starts 5 µs
later, or 1 µs after what its stream did before, or waits for, whichever is latest. So most of a step's figures can be
told from how long kernels and collectives take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from made.traces import event

Event = dict[str, Any]

MAIN, AUTOGRAD = 101, 102
"""Threads of the host."""
COMPUTE, LINK, COPY_IN, GATHERS, SCATTERS = 7, 20, 24, 28, 32
"""Streams."""
COPY_US = 10
"""What a collective copies, in one piece."""


class Gpu:
    """One rank's host and device."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0
        self.thread = MAIN
        self.steps = 0
        self._free: dict[int, int] = {}
        self._correlation = 0
        self._seq = 0

    def run(self, name: str, us: int, stream: int = COMPUTE, *, until: int = 0, driver: bool = False) -> int:
        """Launch a kernel or a copy that lasts this long, and at least until a moment; returns when it starts."""
        start = max(self.now + 5, self.end(stream) + 1)
        end = max(start + us, until)
        self._correlation += 1
        is_copy = name.startswith("Memcpy")
        call = "cuLaunchKernel" if driver else "cudaMemcpyAsync" if is_copy else "cudaLaunchKernel"
        told = {"correlation": self._correlation}
        by = "cuda_driver" if driver else "cuda_runtime"
        self.events.append(event(call, self.now, self.now + 4, cat=by, tid=self.thread, **told))
        what = "gpu_memcpy" if is_copy else "kernel"
        self.events.append(event(name, start, end, cat=what, tid=stream, stream=stream, device=0, **told))
        self._free[stream] = end
        self.now += 4
        return start

    def end(self, stream: int = COMPUTE) -> int:
        """When a stream has finished the work given to it so far."""
        return self._free.get(stream, 0)

    def wait(self, stream: int, event_at: int) -> None:
        """Make further work on a stream wait for an event at that moment."""
        self._correlation += 1
        told = {"cat": "cuda_runtime", "tid": self.thread, "correlation": self._correlation}
        self.events.append(event("cudaStreamWaitEvent", self.now, self.now + 1, **told))
        self._free[stream] = max(self.end(stream), event_at)
        self.now += 1

    def carry(self, kind: str, num_bytes: int, us: int, *, after: int = COMPUTE) -> int:
        """A collective on the emulated link, which lasts this long: begin, a copy, and the wait until the end.

        It begins when the stream `after` is done. Returns when it ends.
        """
        text = f"engine::comm seq={self._seq} kind={kind} dtype=bfloat16 bytes={num_bytes} group=0"
        self._seq += 1
        with self.range(f"{text} link=400Gbps,10us modelled_ns={us * 1000}"):
            self.wait(LINK, self.end(after))
            begun = self.run("emulated_link_begin", 1, LINK, driver=True)
            self.run("Memcpy DtoD (Device -> Device)", COPY_US, LINK)
            self.run("emulated_link_wait", 1, LINK, until=begun + us, driver=True)
        return self.end(LINK)

    @contextmanager
    def range(self, name: str, cat: str = "user_annotation", **args: Any) -> Iterator[None]:
        """The work of the host's thread meanwhile."""
        start, thread = self.now, self.thread
        self.now += 1
        yield
        self.now += 1
        self.events.append(event(name, start, self.now, cat=cat, tid=thread, **args))

    def label(self, text: str) -> None:
        """An instant."""
        with self.range(f"engine::{text}"):
            pass

    def span(self, text: str) -> Any:
        """A label with a duration."""
        return self.range(f"engine::{text}")

    @contextmanager
    def autograd(self) -> Iterator[None]:
        """The backward pass, on a thread of its own while the main one waits."""
        self.thread = AUTOGRAD
        yield
        self.thread = MAIN

    def function(self, name: str) -> Any:
        """One of autograd's functions."""
        return self.range(f"autograd::engine::evaluate_function: {name}", cat="cpu_op")

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step, from number 3 on."""
        with self.range(f"ProfilerStep#{self.steps + 3}"):
            yield
        self.steps += 1


def gradient(gpu: Gpu, name: str) -> None:
    """Autograd has computed a gradient."""
    gpu.label(f"gradient_ready parameter={name}")


def bucketed(*, ddp: bool = False, labelled: bool = True, steps: int = 2) -> list[Event]:
    """Four layers, 100 µs forward and 200 backward each; two buckets of two gradients, 300 µs each on the link.

    As `bucketed` writes it, or as `torch-ddp`, which waits within the backward pass; not `labelled`: as anybody's loop
    around DDP, which has the buckets' labels alone.
    """
    gpu = Gpu()
    for _ in range(steps):
        with gpu.step():
            _forward(gpu, ddp=ddp, labelled=labelled)
            if labelled:
                with gpu.span("backward microbatch=0 sync=1"):
                    _backward(gpu)
                    if ddp:
                        gpu.wait(COMPUTE, gpu.end(LINK))
                if not ddp:
                    with gpu.span("wait"):
                        gpu.wait(COMPUTE, gpu.end(LINK))
            else:
                _backward(gpu)
                gpu.wait(COMPUTE, gpu.end(LINK))
            for bucket in (0, 1) if labelled else ():
                gpu.label(f"bucket_done bucket={bucket}")
            _optimizer(gpu, labelled=labelled)
    return gpu.events


def _forward(gpu: Gpu, *, ddp: bool, labelled: bool) -> None:
    outer = gpu.span("forward microbatch=0") if labelled else gpu.range("forward")
    with outer, gpu.range("DistributedDataParallel.forward" if ddp else "model"):
        for _ in range(4):
            gpu.run("gemm_forward", 100)


def _backward(gpu: Gpu) -> None:
    with gpu.autograd():
        for layer in (3, 2, 1, 0):
            with gpu.function("AddmmBackward0"):
                gpu.run("gemm_backward", 200)
            with gpu.function("torch::autograd::AccumulateGrad"):
                gradient(gpu, f"layers.{layer}.w")
                if layer % 2 == 0:
                    bucket = 1 - layer // 2
                    names = f"layers.{layer + 1}.w,layers.{layer}.w"
                    gpu.label(f"bucket_ready bucket={bucket} bytes=8000000 parameters={names}")
                    with gpu.span(f"bucket_launch bucket={bucket}"):
                        gpu.carry("all_reduce", 8_000_000, 300)


def _optimizer(gpu: Gpu, *, labelled: bool = True) -> None:
    with gpu.span("optimizer") if labelled else gpu.range("Optimizer.step#AdamW.step"):
        gpu.run("adamw", 50)


GATHER_US, SCATTER_US = 150, 100
UNITS = ("embedding", "layers.0", "layers.1", "head")
UNIT_BYTES = 4_000_000


class Zero3:
    """zero3's hooks around an embedding, two layers and a head: 100 µs forward and 200 backward each."""

    def __init__(self, prefetch: int) -> None:
        self.gpu = Gpu()
        self._prefetch = prefetch
        self._held: set[str] = set()
        self._coming: dict[str, int] = {}  # when the gather ends
        self._flying: list[tuple[str, int]] = []

    def step(self) -> None:
        """One step of one microbatch."""
        gpu = self.gpu
        with gpu.step():
            with gpu.span("forward microbatch=0"):
                for place, unit in enumerate(UNITS):
                    self._hold(UNITS[place : place + 1 + self._prefetch], "forward")
                    gpu.run("gemm_forward", 100)
                    self._mark("last_use", unit, "forward")
                    if unit in UNITS[:2]:  # the last layer and the head stay
                        self._free(unit, "forward")
            with gpu.span("backward microbatch=0 sync=1"), gpu.autograd():
                back = UNITS[:0:-1]
                for place, unit in enumerate(back):
                    with gpu.function("AddmmBackward0"):
                        self._hold(back[place : place + 1 + self._prefetch], "backward")
                        gpu.run("gemm_backward", 200)
                    with gpu.function("_AfterBackwardBackward"):
                        self._mark("last_use", unit, "backward")
                        self._free(unit, "backward")
                        self._send(unit)
                with gpu.function("EmbeddingBackward0"):
                    gpu.run("embedding_backward", 200)
            self._send("embedding")
            self._land(leave=0)
            _optimizer(gpu)

    def _hold(self, wanted: tuple[str, ...], phase: str) -> None:
        for unit in wanted:
            if unit not in self._held:
                self._held.add(unit)
                with self.gpu.span(f"gather_launch unit={unit} phase={phase} microbatch=0 bytes={UNIT_BYTES}"):
                    self._coming[unit] = self.gpu.carry("all_gather", UNIT_BYTES, GATHER_US)
        if wanted[0] in self._coming:
            with self.gpu.span(f"gather_wait unit={wanted[0]} phase={phase} microbatch=0"):
                self.gpu.wait(COMPUTE, self._coming.pop(wanted[0]))
        self._mark("first_use", wanted[0], phase)

    def _mark(self, word: str, unit: str, phase: str) -> None:
        self.gpu.label(f"{word} unit={unit} phase={phase} microbatch=0")

    def _free(self, unit: str, phase: str) -> None:
        self._held.discard(unit)
        self.gpu.label(f"free unit={unit} phase={phase} microbatch=0 bytes={UNIT_BYTES}")

    def _send(self, unit: str) -> None:
        self.gpu.run("prescale", 10)
        with self.gpu.span(f"scatter_launch unit={unit} microbatch=0 bytes={UNIT_BYTES}"):
            self._flying.append((unit, self.gpu.carry("reduce_scatter", UNIT_BYTES, SCATTER_US)))
        self._land(leave=1)

    def _land(self, leave: int) -> None:
        while len(self._flying) > leave:
            unit, done_at = self._flying.pop(0)
            with self.gpu.span("wait"):
                self.gpu.wait(COMPUTE, done_at)
            self.gpu.label(f"scatter_done unit={unit} microbatch=0")
            self.gpu.run("accumulate", 10)


def zero3(prefetch: int, *, steps: int = 2) -> list[Event]:
    """So many steps of `Zero3`."""
    made = Zero3(prefetch)
    for _ in range(steps):
        made.step()
    return made.gpu.events


def fsdp2(*, steps: int = 2) -> list[Event]:
    """torch-fsdp2 around two layers, the rest is the root, which stays gathered: FSDP2's own ranges and streams."""
    gpu = Gpu()
    for _ in range(steps):
        with gpu.step():
            with gpu.span("forward microbatch=0"):
                _fsdp2_forward(gpu)
            with gpu.span("backward microbatch=0 sync=1"), gpu.autograd():
                _fsdp2_backward(gpu)
            _optimizer(gpu)
    return gpu.events


LAYERS = ("layers.0", "layers.1")


def _fsdp2_forward(gpu: Gpu) -> None:
    with gpu.range("FSDP::pre_forward"):
        _unshard(gpu, "")
    gpu.run("gemm_forward", 100)
    for layer in LAYERS:
        with gpu.range(f"FSDP::pre_forward ({layer})"):
            _unshard(gpu, f" ({layer})")
        gpu.run("gemm_forward", 100)
        with gpu.range(f"FSDP::post_forward ({layer})"):
            pass
    with gpu.range("FSDP::post_forward"):
        pass


def _fsdp2_backward(gpu: Gpu) -> None:
    coming: dict[str, int] = {}
    with gpu.range("FSDP::pre_backward"), gpu.range("FSDP::backward_prefetch for layers.1"):
        coming["layers.1"] = _all_gather(gpu, " (layers.1)")
    for place, layer in enumerate(reversed(LAYERS)):
        with gpu.range(f"FSDP::pre_backward ({layer})"):
            _copy_out(gpu, f" ({layer})", coming[layer])
            if place == 0:
                with gpu.range("FSDP::backward_prefetch for layers.0"):
                    coming["layers.0"] = _all_gather(gpu, " (layers.0)")
        with gpu.function("AddmmBackward0"):
            gpu.run("gemm_backward", 200)
        _post_backward(gpu, f" ({layer})")
    with gpu.function("EmbeddingBackward0"):
        gpu.run("gemm_backward", 200)
    with gpu.range("FSDP::root_post_backward_callback"):
        _post_backward(gpu, "")
        gpu.wait(COMPUTE, gpu.end(SCATTERS))


def _unshard(gpu: Gpu, unit: str) -> None:
    _copy_out(gpu, unit, _all_gather(gpu, unit))


def _all_gather(gpu: Gpu, unit: str) -> int:
    """Copy in on a stream of its own, and gather on another; returns when it ends."""
    with gpu.range(f"FSDP::all_gather{unit}"):
        gpu.run("copy_in", 5, COPY_IN)
        gpu.wait(GATHERS, gpu.end(COPY_IN))
        gpu.wait(GATHERS, gpu.carry("all_gather", UNIT_BYTES, GATHER_US, after=GATHERS))
    return gpu.end(GATHERS)


def _copy_out(gpu: Gpu, unit: str, gathered_at: int) -> None:
    with gpu.range(f"FSDP::all_gather_copy_out{unit}"):
        gpu.wait(COMPUTE, gathered_at)
        gpu.run("split_with_sizes_copy_out", 8)
    gpu.wait(COPY_IN, gpu.end())


def _post_backward(gpu: Gpu, unit: str) -> None:
    for word in ("accumulate", "reshard"):
        with gpu.range(f"FSDP::post_backward_{word}{unit}"):
            pass
    with gpu.range(f"FSDP::post_backward_reduce{unit}"):
        gpu.wait(SCATTERS, gpu.end())
        gpu.run("chunk_cat", 5, SCATTERS)
        gpu.wait(SCATTERS, gpu.carry("reduce_scatter", UNIT_BYTES, SCATTER_US, after=SCATTERS))
        gpu.run("div", 2, SCATTERS)
