"""torch-tensor: torch's own tensor parallelism (DTensor, `parallelize_module`), as the reference for tensor.

It cuts the same matrices in the same way, and launches its own collectives. After the backward pass one blocking
all-reduce averages this rank's parts over the data-parallel ranks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel

from overlaplab_engine.models.units import Unit
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.base import Options, Traits, register
from overlaplab_engine.strategies.sharding.optimizers import local_part, make_part
from overlaplab_engine.strategies.tensor_parallel import layers


@register
class TorchTensorParallel(layers.CutsLayers):
    """DTensors in the place of the parameters that are cut; the optimizer gets plain tensors that share their memory.

    `cut` comes first.
    """

    name = "torch-tensor"
    traits = Traits(cuts_layers=True)
    refuses: ClassVar[Mapping[str, str]] = {
        "main_grad": "torch-tensor has no fp32 main_grad; leave --main-grad out",
        "compute": "torch-tensor computes with DTensors, which cannot sleep; use tensor",
    }

    @classmethod
    def cut(cls, model: nn.Module, comm: Communicator, options: Options) -> None:
        """Replace what is cut by DTensors; the group's rank 0 gives the values. EngineError for another model."""
        tensor = layers.tensor_group(cls.name, comm)
        to_cut = layers.shared_layers(cls.name, model, tensor)
        mesh = DeviceMesh.from_group(tensor.group, comm.device.type)
        for layer in to_cut:
            parallel.parallelize_module(layer, mesh, _plan(options.sequence_parallel))
        if options.sequence_parallel:
            parallel.parallelize_module(model, mesh, _ends())

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        self._local = [make_part(local_part(p)) if isinstance(p, DTensor) else p for p in self.parameters]

    def _share(self, parameters: Sequence[nn.Parameter]) -> None:
        """See `Strategy`; of each this rank's part."""
        self.comm.broadcast([local_part(p).detach() for p in parameters])

    def named_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        return [(name, local_part(p).detach()) for name, p in self.model.named_parameters()]

    def units(self) -> list[Unit]:
        """See `Strategy`; of each parameter this rank's part."""
        parts = dict(self.named_parameters())
        return [
            replace(u, parameters={name: nn.Parameter(parts[name]) for name in u.parameters}) for u in super().units()
        ]

    @torch.no_grad()
    def _finish(self) -> None:
        for parameter, part in zip(self.parameters, self._local, strict=True):
            if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor):
                # with sequence parallelism it may be a term of a sum still
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
                part.grad = local_part(parameter.grad).detach()
        grads = [part.grad for part in self._local if part.grad is not None]
        if self._has_replicas and grads:
            layers.reduce_together(grads, self.comm.all_reduce_mean, self.comm.prescale)

    def _abandon(self) -> None:
        """Nothing is in flight: every collective was waited for."""

    def gather_whole(self, name: str, part: torch.Tensor) -> torch.Tensor:
        return part.full_tensor() if isinstance(part, DTensor) else part


def _plan(sequence_parallel: bool) -> dict[str, parallel.ParallelStyle]:
    """How the modules of a layer are cut."""
    if not sequence_parallel:
        columns, rows = parallel.ColwiseParallel(), parallel.RowwiseParallel()
        return {"attention.qkv": columns, "attention.output": rows, "up": columns, "down": rows}
    return {
        "attention_norm": parallel.SequenceParallel(),
        "attention": parallel.PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "attention.qkv": parallel.ColwiseParallel(),
        "attention.output": parallel.RowwiseParallel(output_layouts=Shard(1)),
        "mlp_norm": parallel.SequenceParallel(),
        "up": parallel.ColwiseParallel(input_layouts=Shard(1)),
        "down": parallel.RowwiseParallel(output_layouts=Shard(1)),
    }


def _ends() -> dict[str, parallel.ParallelStyle]:
    """Between the embedding and the head each rank has a part of the sequence."""
    return {
        "embedding": parallel.PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1)),
        "head": parallel.PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
        ),
    }
