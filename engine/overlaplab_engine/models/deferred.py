"""Deferred parameters: they have a shape, a type and a device, and get memory and values only when they are asked to.

A model is made on the `meta` device, then deferred. Whoever shards it materialises one unit at a time, so that a model
may be larger than a device's memory. (FSDP calls this deferred initialization: Zhao et al. 2023, arXiv 2304.11277,
§3.1.)
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

_VALUES = "deferred_values"
"""The attribute of a deferred parameter that makes its values."""


def hollow_like(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A tensor of the same shape and type, in the memory of one element: NaN everywhere, or 0 if it holds integers."""
    nothing = torch.nan if tensor.is_floating_point() else 0
    return torch.full((), nothing, dtype=tensor.dtype, device=device or tensor.device).expand(tensor.shape)


def defer(
    model: nn.Module, device: torch.device, values: Callable[[str, torch.Size, torch.device], torch.Tensor]
) -> None:
    """Replace each parameter of a model on `meta` by one on `device` that is hollow until it is materialised.

    `values(name, shape, device)` then makes its values, of any type. Parameters that modules share stay shared.
    """
    deferred = {}
    for name, parameter in model.named_parameters():
        deferred[parameter] = nn.Parameter(hollow_like(parameter, device), parameter.requires_grad)
        setattr(deferred[parameter], _VALUES, partial(values, name, parameter.shape, device))
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, deferred[parameter])


def materialise(parameter: nn.Parameter) -> None:
    """Give a deferred parameter memory and values; others have them."""
    if (values := parameter.__dict__.pop(_VALUES, None)) is not None:
        parameter.data = values().to(parameter.dtype)
