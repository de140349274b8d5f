"""The memory of a rank's model states: parameters, gradients, optimizer states (ZeRO, arXiv 1910.02054, §3.1)."""

from collections.abc import Iterable

import torch

from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.strategies import Strategy

__all__ = ["held_bytes"]


def held_bytes(strategy: Strategy, optimizer: AdamW) -> dict[str, int]:
    """Bytes of `parameters`, `gradients` and `optimizer` states that this rank holds now, each storage counted once."""
    parameters = [*strategy.model.parameters(), *strategy.optimized()]
    gradients = [g for p in parameters for name in ("grad", "main_grad") if (g := getattr(p, name, None)) is not None]
    return {
        "parameters": _bytes(parameters),
        "gradients": _bytes(gradients),
        "optimizer": _bytes(optimizer.states()),
    }


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    local = (getattr(t, "_local_tensor", t) for t in tensors)  # a DTensor's shard
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}
    return sum(storages.values())
