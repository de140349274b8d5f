"""Training loops of anybody's on one GPU, each with a fault that an edit answers, and without it.

    python benchmarks/_gpu_loops.py OUT [--recordings 3] [--device cuda]

Some train alone, others are one rank of an emulated group of eight, with phantoms as peers. Loops and sides take turns
in one process, which also times steps that nothing records, into OUT/steps.json. Needs torch and typer.
"""

import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from _loops import SlowItems
from overlaplab_engine.network.communicator import connect
from overlaplab_engine.network.link import Link
from overlaplab_engine.recording.recorder import Recorder
from overlaplab_engine.recording.trace_file import MANIFEST
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

LINK = "100Gbps,10us,8"
ALONE = ("launches", "saving", "pause", "loader")
"""Loops without communication, whose few tokens let the device wait for its host."""
TOGETHER = ("microbatches", "units-microbatches", "full-precision", "one-bucket", "small-buckets", "norms")
CAPS_MB = {"one-bucket": 1000, "small-buckets": 1}
STEPS, WARMUP = 5, 3
TIMED = 10
"""Steps that nothing records, timed together."""


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes and gives (batch, tokens, width)."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y: torch.Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return y


class Loop:
    """One loop, with its fault or mended."""

    def __init__(self, name: str, device: torch.device, *, mended: bool) -> None:
        self.name, self.device, self.mended = name, device, mended
        tiny = device.type == "cpu"
        width, layers = (16, 2) if tiny else (1024, 8)
        torch.backends.cuda.matmul.allow_tf32 = True
        batch, tokens = (2, 8) if tiny else (2, 256) if name in ALONE else (32, 512)
        dtype = torch.float32 if name == "full-precision" else torch.bfloat16
        torch.manual_seed(0)
        with device:
            self.model: nn.Module = nn.Sequential(*(Block(width, width // 16 if tiny else 16) for _ in range(layers)))
        self.model.to(dtype)
        self.x = torch.randn(batch, tokens, width, device=device, dtype=dtype)
        self.trained = self._parallel()
        self.optimizer = torch.optim.SGD(self.trained.parameters(), lr=1e-4)
        self.train: Callable[[], Any] = self.step
        if name == "launches" and mended and not tiny:
            self.train = self._capture()
        if name == "loader":
            workers = {"num_workers": 4, "prefetch_factor": 4, "persistent_workers": True} if mended else {}
            self.samples = iter(_endless(DataLoader(SlowItems(15, self.x.cpu()), batch_size=None, **workers)))

    def _parallel(self) -> nn.Module:
        if self.name in ALONE:
            return self.model
        if self.name == "units-microbatches":
            for layer in self.model.children():
                fully_shard(layer)
            return fully_shard(self.model)
        cap = 25 if self.mended else CAPS_MB.get(self.name, 25)
        ddp = DistributedDataParallel(self.model, bucket_cap_mb=cap)
        if self.name == "full-precision" and self.mended:
            ddp.register_comm_hook(None, fp16_compress_hook)
        return ddp

    def step(self) -> None:
        """One step of training."""
        passes = 4 if self.name.endswith("microbatches") else 1
        if self.name == "loader":
            self.x = next(self.samples).to(self.x)
        for number in range(passes):
            sends = number == passes - 1 or not self.mended
            if isinstance(self.trained, FSDPModule):
                self.trained.set_requires_gradient_sync(sends)
            hold = isinstance(self.trained, DistributedDataParallel) and not sends
            with self.trained.no_sync() if hold else nullcontext():  # type: ignore[operator]
                loss = self.trained(self.x).float().square().mean()
                loss.backward()
        if self.name == "norms":
            norms = [parameter.grad.norm() for parameter in self.trained.parameters() if parameter.grad is not None]
            if not self.mended:
                norms = [torch.tensor(norm.item()) for norm in norms]
            torch.stack(norms).norm()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.name != "launches")
        if self.name in ALONE and self.name != "launches":
            loss.item()  # as who prints it
        if self.name in {"saving", "pause"} and not self.mended:
            with torch.profiler.record_function("saving") if self.name == "saving" else nullcontext():
                time.sleep(0.02)

    def _capture(self) -> Callable[[], Any]:
        """A step as a CUDA graph (PyTorch's notes on CUDA graphs, "Whole-network capture")."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def _endless(loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


def record_loop(loop: Loop, out: Path) -> float:
    """Record some steps; the seconds of one that nothing records, before."""
    for _ in range(WARMUP):
        loop.train()
    began = _now_s(loop.device)
    for _ in range(TIMED):
        loop.train()
    seconds = (_now_s(loop.device) - began) / TIMED
    with Recorder(out, loop.trained, steps=STEPS) as recorder:
        for _ in range(STEPS + 3):
            loop.train()
            recorder.step()
    if dist.is_initialized():
        manifest = json.loads((out / MANIFEST).read_text())  # the Recorder does not know that its peers are phantoms
        manifest["phantom_ranks"] = list(range(1, manifest["world_size"]))
        (out / MANIFEST).write_text(json.dumps(manifest))
    return seconds


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main(
    out: Path,
    recordings: Annotated[int, typer.Option(help="Of each loop, with its fault and without.")] = 3,
    device: str = "cuda",
    only: Annotated[list[str] | None, typer.Option(help="Loops' names.")] = None,
) -> None:
    """Record all."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    torch_device = torch.device(device, 0) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(torch_device)
    timed = out / "steps.json"  # of an earlier call, too
    steps: dict[str, float] = json.loads(timed.read_text()) if timed.exists() else {}

    def record(names: Sequence[str]) -> None:
        for number, name, mended in product(range(recordings), names, (False, True)):
            if only and name not in only:
                continue
            folder = out / f"{name}-{'mended' if mended else 'faulty'}-{number}"
            try:
                seconds = record_loop(Loop(name, torch_device, mended=mended), folder)
            except Exception as error:  # what else there is, is recorded
                print(f"{folder.name}: {type(error).__name__}: {error}", flush=True)
                continue
            steps[folder.name] = seconds
            print(f"{folder.name}: {seconds * 1e3:.2f} ms", flush=True)
            gc.collect()
            timed.write_text(json.dumps(steps, indent=1))

    record(ALONE)
    comm = connect(torch_device, Link.parse(LINK))
    record(TOGETHER)
    comm.close()


if __name__ == "__main__":
    typer.run(main)
