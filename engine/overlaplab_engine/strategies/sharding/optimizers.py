"""What the optimizer updates where a rank owns parts of parameters, and which of torch's optimizers cannot do so."""

from typing import Any

import torch
from torch.optim import LBFGS, Adafactor, Muon, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from overlaplab_engine.errors import EngineError

_PART = "overlaplab_part"
"""The attribute of a tensor that is only a part of a parameter."""
_WHOLE = (LBFGS, Adafactor, Muon)
"""Optimizers that update an element by more than its own history: by norms, rows or all of the parameter."""


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def make_part(values: torch.Tensor) -> torch.Tensor:
    """Make a leaf over the memory of `values`, a part of a parameter, for the optimizer to update."""
    part = values.detach().requires_grad_()
    mark_part(part)
    return part


def mark_part(tensor: torch.Tensor) -> None:
    """`tensor`, which the optimizer updates, is a part of a parameter."""
    setattr(tensor, _PART, True)


def _require_suited(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    name = type(optimizer).__name__
    for tensor in (tensor for group in optimizer.param_groups for tensor in group["params"]):
        if tensor.grad is None and getattr(tensor, "main_grad", None) is not None:
            raise EngineError(f"{name} reads .grad, and main_grad leaves none; use overlaplab_engine.AdamW")
        if isinstance(optimizer, _WHOLE) and hasattr(tensor, _PART):
            raise EngineError(f"{name} needs whole parameters, and this rank updates parts; use a replicating strategy")


register_optimizer_step_pre_hook(_require_suited)
