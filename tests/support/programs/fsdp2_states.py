"""Ranks of torch's own FSDP2, with its units' states in the trace: run by tests, under torchrun.

`fsdp2_states.py OUT KIND`. Whenever a unit's state changes, a range `held BYTES` says how many bytes of parameters are
then gathered, or resharded to fewer ranks, as torch's `FSDPParamGroup`s have them. A unit that is being gathered counts
in full.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
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
_held: dict[int, int] = {}


class Block(nn.Module):
    """A layer whose input needs a gradient."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    """Parameters of its own, and layers."""

    def __init__(self, layers: int = 4, *, twice: bool = False, bare: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Identity() if bare else nn.Linear(width, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
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


def joint(*models: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """The models' losses, added up."""
    return lambda x: torch.stack([model(x).square().sum() for model in models]).sum()


def passes(kind: str) -> tuple[nn.Module, Iterator[Callable[[torch.Tensor], None]]]:
    """What is trained, and each microbatch of a step."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if kind in ("freed", "kept", "halves", "whole halves", "twice", "twice halves", "late frees", "late halves"):
        options: dict[str, Any] = {"reshard_after_forward": kind != "kept"}
        if "halves" in kind:
            options = {"reshard_after_forward": 2}
        model = sharded(Model(twice="twice" in kind), mesh, root=2 if kind == "whole halves" else None, **options)
        late = kind.startswith("late")

        def accumulated(x: torch.Tensor, number: int) -> None:
            model.set_requires_gradient_sync(number == 1)
            if late:
                model.set_reshard_after_backward(number == 1)
            joint(model)(x).backward()

        return model, [lambda x: accumulated(x, 0), lambda x: accumulated(x, 1)]
    if kind == "replicated halves":
        mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
        model = sharded(Model(), mesh, reshard_after_forward=2)
        return model, [lambda x: joint(model)(x).backward()]
    if kind in ("roots", "roots halves", "roots freed"):
        blocks = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(3)), nn.Linear(WIDTH, WIDTH))
        reshard = {"roots": None, "roots halves": 2, "roots freed": True}[kind]
        for block in blocks[1:4]:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        return blocks, [lambda x: joint(blocks)(x).backward() for _ in range(2)]
    if kind in ("models", "bare models"):
        models = nn.ModuleList(sharded(Model(2, bare=kind == "bare models"), mesh) for _ in range(2))
        return models, [lambda x: joint(*models)(x).backward()]
    if kind == "one of two has layers":
        models = nn.ModuleList([sharded(Model(2), mesh), fully_shard(Block(), mesh=mesh)])
        return models, [lambda x: joint(*models)(x).backward()]
    if kind in ("adversaries", "alike adversaries"):
        made = fully_shard(Block(), mesh=mesh)
        judge = fully_shard(Block(), mesh=mesh) if kind.startswith("alike") else sharded(Model(2), mesh)
        models = nn.ModuleList([made, judge])

        def judged(x: torch.Tensor) -> None:
            (judge(x).square().sum() + judge(made(x).detach()).square().sum()).backward()

        return models, [judged, lambda x: judge(made(x)).square().sum().backward()]
    if kind in ("taught", "apart"):
        models = nn.ModuleList(sharded(Model(2), mesh) for _ in range(2))

        def taught(x: torch.Tensor) -> None:
            with torch.no_grad():
                target = models[0](x)
            (models[1](x) - target).square().sum().backward()

        def apart(x: torch.Tensor) -> None:
            losses = [joint(model)(x) for model in models]
            for loss in losses:
                loss.backward()

        return models, [taught if kind == "taught" else apart]
    if kind == "freezes":
        model = sharded(Model(), mesh)

        def judged_first(x: torch.Tensor) -> None:
            with torch.no_grad():
                model(x)
            joint(model)(x).backward()

        return model, [judged_first]
    raise SystemExit(f"no kind {kind}")


def watch() -> None:
    """Note what each unit holds whenever that changes."""

    def noted(name: str) -> None:
        call = getattr(FSDPParamGroup, name)

        def method(group: FSDPParamGroup, *args: Any, **kwargs: Any) -> Any:
            done = call(group, *args, **kwargs)
            size = _size(group)
            if size is not None and _held.get(id(group), 0) != size:
                _held[id(group)] = size
                with record_function(f"held {sum(_held.values())}"):
                    pass
            return done

        setattr(FSDPParamGroup, name, method)

    for name in ("unshard", "_to_sharded", "_to_unsharded", "_to_sharded_post_forward"):
        noted(name)


def _size(group: FSDPParamGroup) -> int:
    if group._all_gather_result is not None:
        return group._all_gather_result.all_gather_output.nbytes
    if group.is_unsharded:
        return sum(tensor.nbytes for param in group.fsdp_params for tensor in param.all_gather_outputs)
    if group.is_sharded_post_forward:
        return sum(param._sharded_post_forward_param_data.nbytes for param in group.fsdp_params)
    return 0


def main(out: Path, kind: str) -> None:
    """Train for a few steps, of which the last two are recorded."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, microbatches = passes(kind)
    watch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    out.mkdir(exist_ok=True, parents=True)
    trace = str(out / f"rank{dist.get_rank()}.pt.trace.json")
    with profile(
        schedule=schedule(wait=0, warmup=2, active=2, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(trace),
    ) as profiler:
        for _ in range(4):
            for train in microbatches:
                train(torch.randn(4, WIDTH))
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["KINETO_LOG_LEVEL"] = "3"
    main(Path(sys.argv[1]), sys.argv[2])
