"""Hooks into autograd."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

__all__ = ["after_accumulation", "after_backward", "differentiable"]


def after_accumulation(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """Call `hook` with the parameter whenever autograd has accumulated its gradient; in order of registration."""
    return cast(RemovableHandle, parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]


def differentiable(value: Any) -> list[torch.Tensor]:
    """The tensors that require gradients in a module's inputs or outputs, however they are nested."""
    return [x for x in tree_flatten(value)[0] if isinstance(x, torch.Tensor) and x.requires_grad]


def after_backward(inputs: Any, call: Callable[[], None]) -> Any:
    """A module's inputs, changed so that `call` runs once the module's backward pass is over.

    It never runs if no input requires a gradient. As `_register_post_backward_hook` in
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
    """
    flat, spec = tree_flatten(inputs)
    places = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor) and x.requires_grad]
    if places:
        for i, x in zip(places, _identity(call, *(flat[i] for i in places)), strict=True):
            flat[i] = x
    return tree_unflatten(flat, spec)


class _AfterBackward(torch.autograd.Function):
    """The identity on a module's inputs; its backward runs once the module's backward is over."""

    @staticmethod
    def forward(ctx: Any, call: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        ctx.call()
        return None, *grads


_identity: Callable[..., tuple[torch.Tensor, ...]] = _AfterBackward.apply
