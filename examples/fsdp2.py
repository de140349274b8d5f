"""torch's FSDP2, recorded: three lines speak of the recorder.

torchrun --nproc-per-node 2 examples/fsdp2.py runs/my-fsdp2
"""

import os
import sys

import torch
import torch.distributed as dist
from model import Model, batches
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from overlaplab import Recorder


def main(out: str) -> None:
    """Train for ten steps."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = Model().to(device)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    with Recorder(out, model) as recorder:
        for tokens, targets in batches(10, device):
            optimizer.zero_grad()
            model(tokens, targets).backward()
            optimizer.step()
            recorder.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
