"""Two processes of torch's own FSDP2, as a stranger might record them: eight blocks, two microbatches. Run by tests.

`fsdp2_ranks.py OUT stock|keep-last`, under torchrun.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import profile, schedule

WIDTH = 64


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(x).relu()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, WIDTH)
        self.layers = torch.nn.ModuleList(Block() for _ in range(8))
        self.head = torch.nn.Linear(WIDTH, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main(out: Path, keep_last: bool) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Model()
    for number, layer in enumerate(model.layers):
        fully_shard(layer, mesh=mesh, reshard_after_forward=not (keep_last and number == 7))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    out.mkdir(exist_ok=True)
    trace = str(out / f"rank{dist.get_rank()}.pt.trace.json.gz")
    with profile(
        schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(trace),
    ) as profiler:
        for _ in range(3):
            for _ in range(2):
                model(torch.randint(0, 50, (4, 16))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["KINETO_LOG_LEVEL"] = "3"
    main(Path(sys.argv[1]), sys.argv[2] == "keep-last")
