"""Hooks into autograd and modules."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.hooks import RemovableHandle

_NODE = "overlaplab_node"
"""The attribute of an alias that holds autograd's node of it."""


class Hook:
    """A function that torch calls while the model trains. It never fails, and a copy of the model does not call it."""

    def __init__(self, call: Callable[..., None], failed: Callable[[Exception], None]) -> None:
        self._call, self._note_failure = call, failed

    def __call__(self, *args: Any) -> None:
        try:
            self._call(*args)
        except Exception as error:
            self._note_failure(error)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one that is loaded where there is no overlaplab, calls what takes anything and does nothing."""
        return getattr, (nullcontext(), "__exit__")


def after_accumulation(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """Call `hook` with the parameter whenever autograd has accumulated its gradient; in order of registration."""
    return cast(RemovableHandle, parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]


def differentiable_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors that require gradients in a module's inputs or outputs, however they are nested."""
    tensors = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            tensors += [leaf] if leaf.requires_grad else []
        # What follows is a leaf to torch: a dataclass, and a mapping of a class of its own.
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            tensors += differentiable_tensors([getattr(leaf, field.name, None) for field in fields(leaf)])
        elif isinstance(leaf, Mapping):
            tensors += differentiable_tensors(list(leaf.values()))
    return tensors


def before_backward(outputs: Any, call: Callable[[], None]) -> None:
    """Run `call` when the backward pass of a module that returned `outputs` begins; possibly several times.

    If somebody changes in place an output that is a view, torch calls only the hook of what it is a view of.
    """
    for output in differentiable_tensors(outputs):
        for tensor in (output, output._base):
            if tensor is not None and tensor.grad_fn is not None:
                tensor.register_hook(lambda grad: call())  # type: ignore[no-untyped-call]


def alias_inputs(inputs: Any) -> Any:
    """A module's inputs for `after_backward`, in which each tensor that requires a gradient is a view of itself.

    So the module may change it in place, and whoever else has the tensor sees that, as without the view.
    """

    def alias(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return tensor
        view = tensor.view_as(tensor)
        setattr(view, _NODE, view.grad_fn)
        return view

    return tree_map_only(torch.Tensor, alias, inputs)


def after_backward(inputs: Any, call: Callable[[], None]) -> None:
    """Run `call` once the backward pass of the module that has run on `inputs`, which `alias_inputs` returned, is over.

    It never runs if no input requires a gradient, nor if gradients reach an input on ways that are not seen: the module
    has changed it in place, or torch cannot look into the object that holds it.
    """
    tensors = differentiable_tensors(inputs)
    if tensors and all(getattr(tensor, _NODE, call) is tensor.grad_fn for tensor in tensors):  # `call`: no node
        register_multi_grad_hook(tensors, lambda grads: call())
