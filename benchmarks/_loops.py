"""Training loops of anybody's, each with a fault that an edit answers, and without it; two ranks or four behind a
link.

    torchrun --nproc-per-node 2 benchmarks/_loops.py LOOP OUT [--mended]

Layers sleep instead of computing, so that times are exact on two cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from overlaplab_engine.labels import Span
from overlaplab_engine.models.sleeping import SleepClock
from overlaplab_engine.network import process_group
from overlaplab_engine.network.link import Link
from overlaplab_engine.recording.recorder import Recorder
from overlaplab_engine.worker import finish
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LAYERS, FORWARD_NS, BACKWARD_NS = 6, 5_000_000, 10_000_000
BANDWIDTH_GBPS, LATENCY_US = 0.1, 500.0
STEPS = 6
BY_HAND = ("after-backward", "blocking-hooks", "reduced-to-one")
"""Loops that average their gradients with collectives of their own."""
REPLICAS = "units-replicas-microbatches"
"""The loop of HSDP, of two replicas."""
PIPELINED = "few-microbatches"
"""The loop whose ranks are stages of a pipeline by GPipe."""


class Nap(torch.autograd.Function):
    """A layer that sleeps, in its backward pass before its gradient arrives."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Takes the layer, its input and its weight."""
        ctx.layer, ctx.like = layer, weight
        layer.clock.take(round(FORWARD_NS * layer.slower), Span(layer.name))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        """Sleeps twice as long."""
        layer = ctx.layer
        layer.clock.take(round(BACKWARD_NS * layer.slower), Span(layer.name))
        return None, outputs[0], torch.full_like(ctx.like, 1e-3) if ctx.needs_input_grad[2] else None


class Sync(torch.autograd.Function):
    """What SyncBatchNorm does: a small all-reduce in both passes, of which the result is needed at once."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Takes the layer's output."""
        dist.all_reduce(torch.ones(8))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        """Reduces in the other pass, too."""
        dist.all_reduce(torch.ones(8))
        return outputs[0]


class Layer(nn.Module):
    """One weight of 100 kB, unless it has another size."""

    def __init__(
        self, name: str, clock: SleepClock, *, elements: int = 25_000, slower: float = 1.0, syncs: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self.name, self.clock, self.slower, self.syncs = f"sleep::{name}", clock, slower, syncs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pass it on."""
        y: torch.Tensor = Nap.apply(self, x, self.weight)  # type: ignore[no-untyped-call]
        return Sync.apply(y) if self.syncs else y  # type: ignore[no-untyped-call,no-any-return]


class Backwards(nn.Module):
    """Uses its layers in the reverse of the order in which they are registered."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last one first."""
        for layer in reversed(self.layers):
            x = layer(x)
        return x


class SlowItems(Dataset[torch.Tensor]):
    """An item, always the same, takes so many ms to load."""

    def __init__(self, ms: float, item: torch.Tensor | None = None) -> None:
        self.ms, self.item = ms, torch.ones(1) if item is None else item

    def __len__(self) -> int:
        """More than are asked for."""
        return 100

    def __getitem__(self, item: int) -> torch.Tensor:
        """The item."""
        time.sleep(self.ms / 1e3)
        return self.item


def main(
    loop: str, out: Path, mended: Annotated[bool, typer.Option("--mended", help="Without the fault.")] = False
) -> None:
    """Record the loop."""
    sys.setswitchinterval(1e-4)
    process_group.register()
    link = Link(bandwidth_gbps=BANDWIDTH_GBPS, latency_us=3000.0 if loop == "small-buckets" else LATENCY_US)
    emulation = process_group.Emulation(link=link)
    dist.init_process_group(process_group.BACKEND, timeout=timedelta(seconds=60), pg_options=emulation)
    torch.set_num_threads(1)
    model = make_model(loop, mended=mended)
    ddp = parallel(loop, model, mended=mended)
    second = second_model(mended=mended) if loop == "two-models" else None
    recorded = ddp if second is None else nn.ModuleDict({"generator": ddp, "discriminator": second})
    optimizer: torch.optim.Optimizer = torch.optim.SGD(recorded.parameters(), lr=1e-3)
    if loop == "sharded-optimizer" and not mended:
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=1e-3)
    items = loader(loop, mended=mended)
    pass_through = pipeline(model, mended=mended) if loop == PIPELINED else None
    with Recorder(out, recorded, steps=STEPS) as recorder:
        for number in range(STEPS + 3):
            if loop == "lengths":  # one rank's input is 1.4 times as long, the other one's in the next step
                length = 1.2 if mended else (1.0, 1.4)[(number + dist.get_rank()) % 2]
                for layer in model.modules():
                    layer.slower = length  # type: ignore[assignment]
            if items is not None:
                next(items)
            if pass_through is None:
                train(loop, ddp, mended=mended)
            else:
                pass_through()
            if second is not None:
                second(torch.ones(1, requires_grad=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if not mended:
                after_the_step(loop, number, model)
            recorder.step()
    dist.destroy_process_group()
    finish()


def make_model(loop: str, *, mended: bool) -> nn.Sequential | Backwards:
    """The layers, asleep."""
    clock = SleepClock(None)
    slower = 1.4 if loop == "late-rank" and dist.get_rank() == 1 and not mended else 1.0
    slower = {"no-problem": 4.0, "small-buckets": 1 / 3, "tiny-units": 1 / 3}.get(loop, slower)
    slower = (0.5 if mended else 2.0) if loop == PIPELINED else slower  # of a microbatch
    elements = {"small-buckets": 5_000, "tiny-units": 8_000}.get(loop, 25_000)
    syncs = loop == "sync-batch-norm" and not mended
    count = {"small-buckets": 3 * LAYERS, "tiny-units": 3 * LAYERS, PIPELINED: 2}.get(loop, LAYERS)
    layers: list[nn.Module] = [
        Layer(f"layer{n}", clock, elements=elements, slower=slower, syncs=syncs) for n in range(count)
    ]
    if loop == "large-embedding":
        layers[0] = Layer("embedding", clock, elements=400_000)
        layers[0].requires_grad_(not mended)
    if loop == "tiny-units" and mended:
        layers = [nn.Sequential(*layers[first : first + 3]) for first in range(0, count, 3)]
    if loop == "broadcast-buffers":
        layers[0].register_buffer("statistics", torch.zeros(100_000))
    return Backwards(layers) if loop == "registration-order" else nn.Sequential(*layers)


def parallel(loop: str, model: nn.Sequential | Backwards, *, mended: bool) -> nn.Module:
    """The model as the loop's ranks train it together; some do so by hand."""
    if loop == PIPELINED:
        return model
    if isinstance(model, nn.Sequential) and "units" in loop:
        ranks = dist.get_world_size()
        mesh = init_device_mesh("cpu", (ranks,))
        if loop == REPLICAS:
            mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
        return fully_sharded(model, mesh, frees=loop != "units-metrics" and not (loop == "units-freed" and mended))
    if loop in BY_HAND and not mended:
        if loop == "blocking-hooks":
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda weight: dist.all_reduce(weight.grad))
        return model
    caps = (
        {"one-bucket": 25, "small-buckets": 0.01}
        if not mended
        else {"small-buckets": 0.06, **dict.fromkeys(BY_HAND, 0.09)}
    )
    ddp = DistributedDataParallel(
        model,
        bucket_cap_mb=caps.get(loop, 0.12),
        find_unused_parameters=loop == "registration-order" and not mended,
        broadcast_buffers=not mended,
    )
    if loop == "full-precision" and mended:
        ddp.register_comm_hook(None, fp16_compress_hook)
    if loop == "waiting-hook":
        ddp.register_comm_hook(None, allreduce_hook if mended else lambda _, bucket: all_reduced(bucket))
    return ddp


def pipeline(stage_model: nn.Module, *, mended: bool) -> Callable[[], None]:
    """What sends a batch through the stages, one on each rank."""
    rank, ranks, microbatches = dist.get_rank(), dist.get_world_size(), 8 if mended else 2
    stage = PipelineStage(stage_model, rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, microbatches, loss_fn=lambda output, _: output.sum())
    batch = torch.ones(microbatches, 1, requires_grad=True)
    inputs = [batch] if rank == 0 else []
    return partial(schedule.step, *inputs, **({"target": batch, "losses": []} if rank == ranks - 1 else {}))


def second_model(*, mended: bool) -> nn.Module:
    """Another model in DDP, in one bucket or several, with backward passes of its own."""
    clock = SleepClock(None)
    layers = [Layer(f"other{n}", clock) for n in range(LAYERS)]
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.12 if mended else 25)


def all_reduced(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What a communication hook returns that waits for its all-reduce."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(allreduce_hook(dist.group.WORLD, bucket).wait())
    return future


def fully_sharded(model: nn.Sequential, mesh: DeviceMesh, *, frees: bool) -> nn.Module:
    """The model with a unit for each layer, which it perhaps frees after its forward pass."""
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=frees)
    return fully_shard(model, mesh=mesh)


def loader(loop: str, *, mended: bool) -> Iterator[torch.Tensor] | None:
    """What gives the steps their items, if anything does."""
    loads = {"loader-of-one": 40.0 * dist.get_rank(), "loader-of-all": 40.0}.get(loop)
    workers = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True} if mended else {}
    return None if loads is None else iter(DataLoader(SlowItems(loads), batch_size=1, **workers))


def after_the_step(loop: str, number: int, model: nn.Module) -> None:
    """What the loop does between the optimizer's step and the next one's forward pass."""
    saves = {
        "saving": 0.03,
        "units-saving": 0.05,
        "saving-of-one": 0.03 * (dist.get_rank() == 0),
        "saving-each-third": 0.09 * (number % 3 == 0),
    }.get(loop, 0.0)
    if saves:
        with torch.profiler.record_function("saving"):
            time.sleep(saves)
    for _ in range(10 if loop == "barriers" else 0):
        dist.barrier()
    if loop == "broadcast-parameters":
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
    if loop == "pause" or (loop == "pause-of-one" and dist.get_rank() == 0):
        time.sleep(0.03)


def train(loop: str, ddp: nn.Module, *, mended: bool) -> None:
    """The forward and backward passes of a step."""
    passes = 4 if loop.endswith("microbatches") else 1
    features = None
    if loop == "late-features" and mended:
        features = dist.all_reduce(torch.ones(50_000), async_op=True)
    for number in range(passes):
        sends = number == passes - 1 or not mended
        if isinstance(ddp, FSDPModule) and loop == REPLICAS:
            ddp.set_requires_all_reduce(sends)
        elif isinstance(ddp, FSDPModule):
            ddp.set_requires_gradient_sync(sends)
        with ddp.no_sync() if isinstance(ddp, DistributedDataParallel) and not sends else nullcontext():
            loss = ddp(torch.ones(1, requires_grad=True)).sum()
            metrics = [*all_reduced_metrics(loop, mended=mended)]
            loss.backward()
            for work in metrics:
                work.wait()
    if loop == "late-features" and not mended:
        features = dist.all_reduce(torch.ones(50_000), async_op=True)
    if features is not None:
        features.wait()
    if loop == "after-backward" and not mended:
        for parameter in ddp.parameters():
            dist.all_reduce(parameter.grad)
    if loop == "reduced-to-one" and not mended:
        for parameter in ddp.parameters():
            dist.reduce(parameter.grad, 0)
            dist.broadcast(parameter.grad, 0)
    if loop == "gradient-norms":
        for _ in range(1 if mended else 20):
            dist.all_reduce(torch.ones(1))


def all_reduced_metrics(loop: str, *, mended: bool) -> Iterator[Any]:
    """Reduce metrics between the passes, one after the other or stacked; yields the works that are still under way."""
    if loop == "metrics":
        for _ in range(6):
            work = dist.all_reduce(torch.ones(1), async_op=True)
            if mended:
                yield work
            else:
                work.wait()
    elif loop == "gathered-objects":
        values: list[dict[str, float]] = [{}, {}]
        for _ in range(1 if mended else 10):
            dist.all_gather_object(values, {"loss": 1.0})
    elif loop in ("metrics-apart", "units-metrics") and mended:
        dist.all_reduce(torch.ones(6))
    elif loop in ("metrics-apart", "units-metrics"):
        for _ in range(20 if loop == "units-metrics" else 6):
            dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    typer.run(main)
