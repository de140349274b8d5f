"""Runs of torch's DDP over NCCL, as torch.profiler shows them: all ranks of one job, with buckets by rule.

Rules, beside those of `made.gpu`: gradients fill buckets in order, a bucket that holds its cap is sent with its last
gradient, all are waited for after the backward pass, each before its first gradient is copied back. An all-reduce
begins on each rank when its stream is free, and ends on all of them T after the last one began: 20 µs and 1 µs for each
10,000 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from made.gpu import COMPUTE, LINK, Event, Gpu

ELEMENTS = (100_000, 400_000, 50_000, 600_000, 250_000, 300_000)
"""Of the gradients in order of arrival."""


def transfer_us(num_bytes: int) -> int:
    """T of an all-reduce."""
    return 20 + num_bytes // 10_000


def ddp_ranks(
    caps: Sequence[int],
    *,
    backward_us: Sequence[int] = (200, 230),
    steps: int = 3,
    transfer: Callable[[int], int] = transfer_us,
    at_once: int = 0,
    **loop: Any,
) -> list[list[Event]]:
    """Each rank's events; `caps` in bytes, the last one serves on. A gradient takes a rank `backward_us`. The first
    steps, `at_once`, send one bucket. `loop`: see `_rank`.
    """
    gpus = [Gpu() for _ in backward_us]
    cuts = [tuple(caps) if step >= at_once else (1 << 60,) for step in range(steps)]
    running = [_rank(gpu, cuts, us, **loop) for gpu, us in zip(gpus, backward_us, strict=True)]
    asked = [next(own, None) for own in running]
    while all(each is not None for each in asked):
        starts, sizes = zip(*filter(None, asked), strict=True)
        end = max(starts) + transfer(sizes[0])
        asked = [_send(own, end) for own in running]
    return [gpu.events for gpu in gpus]


def _send(rank: Generator[tuple[int, int], int, None], end: int) -> tuple[int, int] | None:
    try:
        return rank.send(end)
    except StopIteration:
        return None


def _rank(
    gpu: Gpu,
    steps: Sequence[Sequence[int]],
    backward_us: int,
    *,
    forward_us: int = 100,
    copies: bool = True,
    shapes: bool = True,
    forwards: int = 1,
    elements: Sequence[int] = ELEMENTS,
    slowdown: int = 0,
    slow_copies: bool = False,
    silent: int = 0,
) -> Generator[tuple[int, int], int, None]:
    """Yields start and bytes of each all-reduce, and is told when it ends. `steps`: the caps of each.

    A gradient takes as much and `slowdown` times that much beside an all-reduce, with `slow_copies` also its copy into
    the bucket. Of the first steps, `silent`, the backward pass sends nothing, as under `no_sync`. Without `copies`
    gradients are views of their buckets; without `shapes` their sizes are not recorded.
    """
    busy: list[tuple[int, int]] = []
    for number, caps in enumerate(steps):
        sends = number >= silent
        with gpu.step():
            for _ in range(forwards):
                with gpu.range("DistributedDataParallel.forward"):
                    for _ in elements:
                        gpu.run("gemm_forward", forward_us)
            with gpu.autograd():
                buckets: list[tuple[int, int]] = []  # gradients, and when it ends
                held: list[int] = []
                for count in elements:
                    with gpu.function("AddmmBackward0"):
                        _slowed(gpu, "gemm_backward", backward_us, slowdown, busy)
                    with gpu.function("torch::autograd::AccumulateGrad"):
                        _accumulate(gpu, count if shapes else None)
                        if sends:
                            with gpu.range("torch::distributed::reducer::mul_out", cat="cpu_op"):
                                _slowed(gpu, "mul", 5, slowdown, busy) if slow_copies else gpu.run("mul", 5)
                        if not sends:
                            continue
                        held.append(count * 4)
                        full = sum(held) >= caps[min(len(buckets), len(caps) - 1)]
                        if full or sum(own for own, _ in buckets) + len(held) == len(elements):
                            buckets.append((len(held), (yield from _all_reduce(gpu, sum(held), busy))))
                            held = []
            for gradients, end in buckets:
                gpu.wait(COMPUTE, end)
                for _ in range(gradients if copies else 0):
                    with gpu.range("torch.distributed.ddp.reducer::copy_bucket_to_grad", cat="cpu_op"):
                        gpu.run("copy", 5)
            with gpu.range("Optimizer.step#AdamW.step"):
                gpu.run("adamw", 50)


def _accumulate(gpu: Gpu, elements: int | None) -> None:
    given: dict[str, Any] = {} if elements is None else {"Input Dims": [[elements]], "Input type": ["float"]}
    with gpu.range("torch::autograd::AccumulateGrad", cat="cpu_op", **given):
        pass


def _slowed(gpu: Gpu, name: str, us: int, slowdown: int, busy: Sequence[tuple[int, int]]) -> None:
    """A kernel that takes longer beside all-reduces: each µs of its work then takes 1 + `slowdown`."""
    now = start = max(gpu.now + 5, gpu.end() + 1)
    left = us * (1 + slowdown)
    while left > 0:
        beside = any(begin <= now < end for begin, end in busy)
        left -= 1 if beside else 1 + slowdown
        now += 1
    gpu.run(name, now - start)


def _all_reduce(gpu: Gpu, num_bytes: int, busy: list[tuple[int, int]]) -> Generator[tuple[int, int], int, int]:
    given = {"Input Dims": [[num_bytes // 4]], "Input type": ["float"]}
    with gpu.range("c10d::allreduce_", cat="cpu_op", **given):
        gpu.wait(LINK, gpu.end(COMPUTE))
        start = max(gpu.now + 5, gpu.end(LINK) + 1)
        until = yield start, num_bytes
        busy.append((start, until))
        gpu.run("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, LINK, until=until)
    return until
