"""The memory of a rank's model states (ZeRO, arXiv 1910.02054, §3.1), and of what autograd keeps of a pass."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.strategies import Strategy
from overlaplab_engine.strategies.sharding.optimizers import local_part
from overlaplab_engine.strategies.sharding.sharded import Sharded


@contextmanager
def count_saved(model: nn.Module) -> Iterator[dict[int, int]]:
    """Count what autograd saves of forward passes of `model`, but for its parameters: storages' bytes by their address.

    Of checkpointed modules that is their inputs.
    """
    saved: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = _local(tensor).untyped_storage()
        if storage.data_ptr() not in {_local(p).untyped_storage().data_ptr() for p in model.parameters()}:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        yield saved


def held_bytes(strategy: Strategy, optimizer: AdamW) -> dict[str, int]:
    """Bytes of `parameters`, `gradients` and `optimizer` states that this rank holds now, each storage counted once.

    With `offload` the device holds parameters alone, or not even those, and `host` counts what lies in the host's
    memory.
    """
    parameters, updated = list(strategy.model.parameters()), strategy.optimized()
    gradients = [
        g
        for p in (*parameters, *updated)
        for name in ("grad", "main_grad")
        if (g := getattr(p, name, None)) is not None
    ]
    if strategy.options.offload:
        flats = strategy.flats if isinstance(strategy, Sharded) else []
        resident = [] if strategy.traits.offloads_parameters else [*parameters, *(flat.resident for flat in flats)]
        host = _bytes(updated) + _bytes(gradients) + _bytes(optimizer.states())
        return {"parameters": _bytes(resident), "gradients": 0, "optimizer": 0, "host": host}
    return {
        "parameters": _bytes([*parameters, *updated]),
        "gradients": _bytes(gradients),
        "optimizer": _bytes(optimizer.states()),
    }


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    storages = {s.data_ptr(): s.nbytes() for s in (_local(t).untyped_storage() for t in tensors)}
    return sum(storages.values())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return a DTensor's shard on this rank; of what a functional collective returns, what will hold its result."""
    local = local_part(tensor)
    return local.elem if isinstance(local, AsyncCollectiveTensor) else local
