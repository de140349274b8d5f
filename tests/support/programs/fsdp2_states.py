"""Ranks of torch's own FSDP2, with its units' states in the trace: run by tests, under torchrun.

`fsdp2_states.py OUT KIND…`. Whenever a unit's state changes, a range `held BYTES` says how many bytes of parameters are
then gathered, or resharded to fewer ranks, as torch's `FSDPParamGroup`s have them. A unit that is being gathered counts
in full.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.profiler import profile, record_function, schedule

WIDTH = 32
_held: dict[FSDPParamGroup, int] = {}


class Block(nn.Module):
    """A layer whose input needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    """Parameters of its own, and layers."""

    def __init__(self, layers: int = 4, *, twice: bool = False, bare: bool = False) -> None:
        super().__init__()
        self.first = nn.Identity() if bare else nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.times = 2 if twice else 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in chain.from_iterable([self.layers] * self.times):
            x = layer(x)
        return x


def sharded(model: Model, mesh: DeviceMesh, *, root: int | None = None, **options: Any) -> Model:
    """Each layer is a unit, and the rest the root, which is resharded as `root` says."""
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, reshard_after_forward=root)


def microbatches(kind: str) -> tuple[nn.Module, list[Callable[[torch.Tensor], None]]]:
    """What is trained, and each microbatch of a step."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if kind in ("freed", "kept", "halves", "whole halves", "twice", "twice halves", "late", "late halves", "replicas"):
        options: dict[str, Any] = {"reshard_after_forward": 2 if "halves" in kind or kind == "replicas" else True}
        if kind == "kept":
            options = {"reshard_after_forward": False}
        if kind == "replicas":
            mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("replicate", "shard"))
        model = sharded(Model(twice="twice" in kind), mesh, root=2 if kind == "whole halves" else None, **options)

        def accumulated(x: torch.Tensor, *, is_last: bool) -> None:
            model.set_requires_gradient_sync(is_last)
            model.set_reshard_after_backward(is_last or "late" not in kind)
            model(x).square().sum().backward()

        return model, [partial(accumulated, is_last=False), partial(accumulated, is_last=True)]
    if kind == "judged first":
        model = sharded(Model(), mesh)

        def judged_first(x: torch.Tensor) -> None:
            with torch.no_grad():
                model(x)
            model(x).square().sum().backward()

        return model, [judged_first]
    if kind in ("roots", "roots halves", "roots freed"):
        chain = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(3)), nn.Linear(WIDTH, WIDTH))
        for block in chain[1:4]:
            fully_shard(
                block, mesh=mesh, reshard_after_forward={"roots": None, "roots halves": 2, "roots freed": True}[kind]
            )
        return chain, [lambda x: chain(x).square().sum().backward()] * 2
    if kind in ("adversaries", "alike adversaries"):
        maker = fully_shard(Block(), mesh=mesh)
        judge = fully_shard(Block(), mesh=mesh) if kind.startswith("alike") else sharded(Model(2), mesh)

        def judged(x: torch.Tensor) -> None:
            (judge(x).square().sum() + judge(maker(x).detach()).square().sum()).backward()

        return nn.ModuleList([maker, judge]), [judged, lambda x: judge(maker(x)).square().sum().backward()]
    second = fully_shard(Block(), mesh=mesh) if kind == "two, one of layers" else None
    first = sharded(Model(2, bare=kind == "two bare"), mesh)
    second = second or sharded(Model(2, bare=kind == "two bare"), mesh)

    def together(x: torch.Tensor) -> None:
        (first(x).square().sum() + second(x).square().sum()).backward()

    def apart(x: torch.Tensor) -> None:
        losses = [model(x).square().sum() for model in (first, second)]
        for loss in losses:
            loss.backward()

    def taught(x: torch.Tensor) -> None:
        with torch.no_grad():
            target = first(x)
        (second(x) - target).square().sum().backward()

    return nn.ModuleList([first, second]), [{"two apart": apart, "taught": taught}.get(kind, together)]


def watch() -> None:
    """Note what is held whenever that changes."""

    def noted(name: str) -> None:
        call = getattr(FSDPParamGroup, name)

        def method(group: FSDPParamGroup, *args: Any, **kwargs: Any) -> Any:
            result = call(group, *args, **kwargs)
            size = _size(group)
            if _held.get(group, 0) != size:
                _held[group] = size
                with record_function(f"held {sum(_held.values())}"):
                    pass
            return result

        setattr(FSDPParamGroup, name, method)

    for name in ("unshard", "_to_sharded", "_to_unsharded", "_to_sharded_post_forward"):
        noted(name)


def _size(group: FSDPParamGroup) -> int:
    if group._all_gather_result is not None:
        return int(group._all_gather_result.all_gather_output.nbytes)
    if group.is_unsharded:
        return sum(tensor.nbytes for param in group.fsdp_params for tensor in param.all_gather_outputs)
    if group.is_sharded_post_forward:
        return sum(param._sharded_post_forward_param_data.nbytes for param in group.fsdp_params)
    return 0


def record(out: Path, kind: str) -> None:
    """Train for three steps, of which the last two are recorded, on the first rank."""
    torch.manual_seed(0)
    _held.clear()
    model, passes = microbatches(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def steps(profiler: profile | None) -> None:
        for _ in range(3):
            for train in passes:
                train(torch.randn(4, WIDTH))
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            if profiler is not None:
                profiler.step()

    if dist.get_rank():
        steps(None)
        return
    out.mkdir(parents=True)
    with profile(
        schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(out / "rank0.pt.trace.json")),
    ) as profiler:
        steps(profiler)


def main(out: Path, kinds: Sequence[str]) -> None:
    """Record each kind into a folder of its name."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    watch()
    for kind in kinds:
        record(out / kind, kind)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["KINETO_LOG_LEVEL"] = "3"
    main(Path(sys.argv[1]), sys.argv[2:])
