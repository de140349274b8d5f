"""torch's DistributedDataParallel, recorded: three lines speak of the recorder.

torchrun --nproc-per-node 2 examples/ddp.py runs/my-ddp
"""

import os
import sys

import torch
import torch.distributed as dist
from model import Model, batches
from torch.nn.parallel import DistributedDataParallel

from overlaplab import Recorder


def main(out: str) -> None:
    """Train for ten steps."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    model = DistributedDataParallel(Model().to(device), bucket_cap_mb=0.5)
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
