"""Two processes whose hooks block on an all-reduce: torch alone, as a stranger might write it. Run by a test.

What a tool that counts autograd's wrapper ranges as compute calls "fully hidden" is in truth fully exposed.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import profile, schedule


def main(out: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trace = str(out / f"rank{dist.get_rank()}.pt.trace.json.gz")
    with profile(
        schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(trace),
    ) as profiler:
        for _ in range(5):
            model(torch.randn(256, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["KINETO_LOG_LEVEL"] = "3"
    main(Path(sys.argv[1]))
