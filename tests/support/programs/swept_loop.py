"""A user's training script: DDP with a cap from the command line, and a Recorder."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlaplab import Recorder

parser = argparse.ArgumentParser()
parser.add_argument("--cap", type=float)
parser.add_argument("--deaf", action="store_true")
given = parser.parse_args()
dist.init_process_group("gloo")
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
model = DistributedDataParallel(model, bucket_cap_mb=25 if given.deaf else given.cap)
with Recorder(None, model, warmup=1, steps=4) as recorder:
    for _ in range(5):
        model(torch.ones(4, 64)).sum().backward()
        recorder.step()
dist.destroy_process_group()
