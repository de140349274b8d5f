"""Four processes on gloo whose collectives are in groups of two and of all. Run by tests.

`gloo_groups.py OUT pairs|hsdp`, under torchrun, recorded by torch's profiler alone.
"""

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import profile, schedule


def in_pairs() -> Callable[[], None]:
    """Two ranks reduce among themselves, then, after a barrier of all, the other two; then all together."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank, values = dist.get_rank(), torch.ones(1000)

    def train_step() -> None:
        if rank < 2:
            dist.all_reduce(values, group=pairs[0])
        dist.barrier()
        if rank >= 2:
            dist.all_reduce(values, group=pairs[1])
        dist.all_gather_into_tensor(torch.empty(2000), values, group=pairs[rank // 2])
        dist.all_reduce(values)

    return train_step


def in_a_mesh() -> Callable[[], None]:
    """FSDP2, sharded among two ranks and replicated on two."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters())

    def train_step() -> None:
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()

    return train_step


def main(out: str, what: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train_step = in_pairs() if what == "pairs" else in_a_mesh()
    os.makedirs(out, exist_ok=True)
    with profile(
        record_shapes=what == "hsdp",
        schedule=schedule(wait=0, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(f"{out}/rank{dist.get_rank()}.pt.trace.json.gz"),
    ) as profiler:
        for _ in range(4):
            train_step()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
