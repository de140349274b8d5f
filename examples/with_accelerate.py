"""Hugging Face Accelerate, recorded, with DDP or, on GPUs, with FSDP2; three lines speak of the recorder.

Gradients are accumulated, and `step()` is called after each microbatch.

torchrun --nproc-per-node 2 examples/with_accelerate.py runs/my-accelerate
torchrun --nproc-per-node 2 examples/with_accelerate.py runs/my-accelerate --fsdp2
"""

import sys

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, FullyShardedDataParallelPlugin
from accelerate.utils import DDPCommunicationHookType
from model import Layer, Model, batches

from overlaplab.integrations import AccelerateRecorder


def main(out: str, fsdp2: bool = False) -> None:
    """Train for ten steps of two microbatches; with DDP gradients are sent in 16 bits, by a comm hook."""
    cpu = not torch.cuda.is_available()  # where Accelerate has no FSDP2
    if fsdp2:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=[Layer.__name__]
        )
        accelerator = Accelerator(cpu=cpu, fsdp_plugin=plugin, gradient_accumulation_steps=2)
    else:
        hook = DDPCommunicationHookType.FP16
        options = DistributedDataParallelKwargs(bucket_cap_mb=1, comm_hook=hook)
        accelerator = Accelerator(cpu=cpu, kwargs_handlers=[options], gradient_accumulation_steps=2)
    model = Model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    with AccelerateRecorder(out, accelerator, model) as recorder:
        for tokens, targets in batches(20, accelerator.device):
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(model(tokens, targets))
                optimizer.step()
            recorder.step()
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], "--fsdp2" in sys.argv)
