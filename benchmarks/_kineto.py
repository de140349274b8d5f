"""Traces as kineto writes them, of a data-parallel training that never ran: always the same.

What stands in them, and how often, follows a recording of ResNet-50 under DistributedDataParallel on A100: a third
operators, a third arrows, the rest runtime calls and kernels, about 240 bytes an event.
"""

import gzip
import random
from collections.abc import Iterator
from pathlib import Path

UNIT_EVENTS = 44.3
"""Events of one layer's forward and backward, with its share of the all-reduces."""
UNIT_DEVICE_EVENTS = 4 + 1 / 24
"""Those of them on the device."""
BUCKET = 24
"""Layers per all-reduce."""
STEPS = 10
PROCESS, MAIN, AUTOGRAD = 2910249, 2910249, 2919752
COMPUTE_STREAM, NCCL_STREAM = 7, 40
ORIGIN_NS = 4_458_676_522_690_655

_FUNCTORS = (
    "AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >",
    "FillFunctor<float>",
)
KERNELS = (
    *(
        f"void at::native::vectorized_elementwise_kernel<{width}, at::native::{functor}, at::detail::Array<char*, 2> >"
        f"(int, at::native::{functor}, at::detail::Array<char*, 2>)"
        for functor in _FUNCTORS
        for width in (1, 2, 4)
    ),
    *(
        f"void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_{shape}_16x{stages}_nn_align4>"
        f"(cutlass_80_tensorop_s1688gemm_{shape}_16x{stages}_nn_align4::Params)"
        for shape in ("64x64", "128x64", "128x128", "256x64", "256x128")
        for stages in (3, 4, 6)
    ),
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnnTensorStruct, float const*, float*)",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>"
    "(cudnn::ops::nchw2nhwc_params_t<float>, float const*, float*)",
)
NCCL = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
NCCL_ARGUMENTS = (
    '"Collective name": "allreduce", "In msg nelems": {size}, "Out msg nelems": {size}, "Group size": {ranks}, '
    '"dtype": "Float", "In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
    '"Process Group Description": "default_pg", "Process Group Ranks": "{members}", "Seq": {sequence}'
)
MOST_LISTED = 30
"""torch shortens longer lists of a group's ranks in a kernel's arguments."""
FORWARD = ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution")
BACKWARD = (
    "autograd::engine::evaluate_function: ConvolutionBackward0",
    "ConvolutionBackward0",
    "aten::convolution_backward",
)
ACCUMULATE = (
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    "torch::autograd::AccumulateGrad",
    "torch::distributed::reducer::mul_out",
    "torch.distributed.ddp.reducer::copy_bucket_to_grad",
)


def write(path: Path, *, events: int, rank: int = 0, ranks: int = 1, device_only: bool = False) -> int:
    """Write a gzipped trace of about so many events; the uncompressed size in bytes.

    With `device_only` so many on the device, and of the host only steps and launches, as without ProfilerActivity.CPU.
    """
    size = 0
    part = path.with_suffix(".part")
    with gzip.open(part, "wb", compresslevel=6) as file:
        for text in _texts(events, rank, ranks, device_only):
            size += file.write(text.encode())
    part.rename(path)
    return size


def write_ranks(folder: Path, *, events: int, ranks: int, bodies: int = 16) -> None:
    """Write the gzipped traces of the ranks that have none yet; only `bodies` of them differ, then they repeat."""
    packed: dict[int, bytes] = {}
    for rank in range(ranks):
        path = folder / f"rank{rank}.pt.trace.json.gz"
        if path.exists():
            continue
        if rank % bodies not in packed:
            texts = list(_texts(events, rank % bodies, ranks, False))
            packed[rank % bodies] = gzip.compress("".join(texts[1:]).encode(), compresslevel=6)
        head = next(_texts(events, rank, ranks, False))
        part = path.with_suffix(".part")
        part.write_bytes(gzip.compress(head.encode()) + packed[rank % bodies])
        part.rename(path)


def _texts(events: int, rank: int, ranks: int, device_only: bool) -> Iterator[str]:
    yield (
        '\n{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "A100"\n    }\n  ],\n'
        f'  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {ranks}, "pg_count": 1, "pg_config": '
        f'[{{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": {ranks}, '
        f'"ranks": {list(range(ranks))}}}], "nccl_version": "2.17.1"}},\n  "traceEvents": [\n'
    )
    writer = _Writer(random.Random(rank), ranks, device_only=device_only)
    layers = max(round(events / STEPS / (UNIT_DEVICE_EVENTS if device_only else UNIT_EVENTS)), 1)
    for step in range(STEPS):
        writer.step(step, layers)
        yield ",\n".join(writer.texts) + (",\n" if step < STEPS - 1 else "")
        writer.texts.clear()
    yield (
        '\n  ],\n  "traceName": "/tmp/trace.json",\n  "displayTimeUnit": "ms",\n'
        '  "baseTimeNanoseconds": 1711964646000000000\n}'
    )


class _Writer:
    """Three clocks (host, compute stream, NCCL's stream) and the events that move them."""

    def __init__(self, rng: random.Random, ranks: int, *, device_only: bool) -> None:
        self.texts: list[str] = []
        self._device_only = device_only
        self._random = rng
        self._ranks = ranks
        self._now = ORIGIN_NS
        self._free = {COMPUTE_STREAM: ORIGIN_NS, NCCL_STREAM: ORIGIN_NS}
        self._external = self._correlation = self._forward = self._sequence = 0

    def step(self, number: int, layers: int) -> None:
        """A forward and a backward pass; the all-reduces run beside the latter, which waits for them at its end."""
        begun = self._now
        links = [self._layer_forward() for _ in range(layers)]
        for layer, link in enumerate(reversed(links), 1):
            self._layer_backward(link)
            if layer % BUCKET == 0 or layer == layers:
                self._all_reduce()
        self._free[COMPUTE_STREAM] = max(self._free.values())
        self._launch(MAIN, "cudaLaunchKernel", KERNELS[0], COMPUTE_STREAM, 400_000)
        self._now = max(self._now, self._free[COMPUTE_STREAM] - 300_000)  # the host runs a little ahead
        self._event(f"ProfilerStep#{number}", "user_annotation", MAIN, begun, self._now - begun)

    def _layer_forward(self) -> int:
        self._forward += 1
        begun = self._now
        self._nest(FORWARD, MAIN, begun, 60_000)
        self._arrow("s", self._forward, MAIN, begun, "fwdbwd")
        self._nest(("aten::empty",), MAIN, begun + 4_000, 5_000)
        self._nest(("aten::view",), MAIN, begun + 12_000, 3_000)
        self._now += 20_000
        self._runtime(MAIN, "cudaStreamIsCapturing")
        self._runtime(MAIN, "cudaStreamGetPriority")
        self._launch(MAIN, "cudaLaunchKernel", self._random.choice(KERNELS), COMPUTE_STREAM, 60_000)
        self._now = max(self._now, begun + 62_000)
        return self._forward

    def _layer_backward(self, link: int) -> None:
        begun = self._now
        self._nest(BACKWARD, AUTOGRAD, begun, 90_000)
        self._arrow("f", link, AUTOGRAD, begun + 1_000, "fwdbwd")
        self._nest(("aten::empty",), AUTOGRAD, begun + 6_000, 5_000)
        self._now += 14_000
        for call in ("cudaStreamIsCapturing", "cudaStreamGetPriority", "cudaFuncSetAttribute"):
            self._runtime(AUTOGRAD, call)
        for _ in range(2):
            self._launch(AUTOGRAD, "cudaLaunchKernel", self._random.choice(KERNELS), COMPUTE_STREAM, 55_000)
        self._now = max(self._now, begun + 91_000)
        begun = self._now
        self._nest(ACCUMULATE, AUTOGRAD, begun, 40_000)
        self._nest(("aten::mul",), AUTOGRAD, begun + 9_000, 8_000)
        self._nest(("aten::copy_",), AUTOGRAD, begun + 19_000, 16_000)
        self._now += 20_000
        self._launch(AUTOGRAD, "cudaMemcpyAsync", "Memcpy DtoD (Device -> Device)", COMPUTE_STREAM, 4_000)
        self._now = max(self._now, begun + 42_000)

    def _all_reduce(self) -> None:
        begun = self._now
        self._nest(("c10d::allreduce_", "record_param_comms"), AUTOGRAD, begun, 90_000)
        self._event("nccl:all_reduce", "user_annotation", AUTOGRAD, begun + 9_000, 60_000)
        self._now += 20_000
        self._free[NCCL_STREAM] = max(self._free.values())  # it waits for the gradients
        self._launch(AUTOGRAD, "cudaLaunchKernelExC", NCCL, NCCL_STREAM, 2_400_000)
        self._sequence += 1
        self._now = max(self._now, begun + 92_000)

    def _nest(self, names: tuple[str, ...], thread: int, start: int, duration: int) -> None:
        for depth, name in enumerate(() if self._device_only else names):
            self._external += 1
            inside = (
                f'"External id": {self._external},"Record function id": {self._external}, "Ev Idx": {self._external}'
            )
            self._event(name, "cpu_op", thread, start + 1_000 * depth, duration - 2_000 * depth, inside)

    def _runtime(self, thread: int, name: str) -> None:
        """A call that launches nothing, with the end of an arrow that kineto writes all the same."""
        self._correlation += 1
        if not self._device_only:
            self._event(name, "cuda_runtime", thread, self._now, 700, self._call())
        self._arrow("f", self._correlation, thread, self._now, "ac2g")
        self._now += 1_000

    def _launch(self, thread: int, call: str, name: str, stream: int, duration: int) -> None:
        self._correlation += 1
        took = self._random.randrange(4_000, 9_000)
        self._event(call, "cuda_runtime", thread, self._now, took, self._call())
        self._arrow("s", self._correlation, thread, self._now, "ac2g")
        self._now += took
        start = max(self._now + self._random.randrange(2_000, 4_000), self._free[stream])
        ran = self._random.randrange(duration // 2, duration * 3 // 2)
        self._free[stream] = start + ran
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        self._event(name, category, stream, start, ran, self._device_arguments(name, stream, ran), process=0)
        self._arrow("f", self._correlation, stream, start, "ac2g", process=0)

    def _call(self) -> str:
        return f'"External id": {self._external},      "cbid": 211, "correlation": {self._correlation}'

    def _device_arguments(self, name: str, stream: int, ran: int) -> str:
        common = f'"stream": {stream}, "correlation": {self._correlation}'
        if name.startswith("Memcpy"):
            return (
                f'"External id": {self._external},      "device": 0, "context": 1,      {common},      '
                f'"bytes": 2359296, "memory bandwidth (GB/s)": {2359296 / ran:.16f}'
            )
        members_text = ""
        if name == NCCL:
            members = list(range(self._ranks)) if self._ranks <= MOST_LISTED else "[0, 1, …]"
            members_text = ", " + NCCL_ARGUMENTS.format(
                size=6637568, ranks=self._ranks, members=members, sequence=self._sequence
            )
        return (
            f'"External id": {self._external},      "queued": 0, "device": 0, "context": 1,      {common},      '
            '"registers per thread": 96,      "shared memory": 87568,      "blocks per SM": 4.740741,      '
            '"warps per SM": 75.851852,      "grid": [512, 1, 1],      "block": [512, 1, 1],      '
            f'"est. achieved occupancy %": 100{members_text}'
        )

    def _event(
        self, name: str, category: str, thread: int, start: int, ran: int, inside: str = "", process: int = PROCESS
    ) -> None:
        self.texts.append(
            f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {process}, "tid": {thread},\n'
            f'    "ts": {_us(start)}, "dur": {_us(ran)},\n    "args": {{\n      {inside}\n    }}\n  }}'
        )

    def _arrow(self, phase: str, number: int, thread: int, at: int, category: str, process: int = PROCESS) -> None:
        if self._device_only:
            return
        end = ', "bp": "e"' if phase == "f" else ""
        self.texts.append(
            f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {process}, "tid": {thread}, "ts": {_us(at)},\n'
            f'    "cat": "{category}", "name": "{category}"{end}\n  }}'
        )


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
