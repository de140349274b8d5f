"""Hooks into autograd."""

from collections.abc import Callable
from typing import cast

import torch
from torch.utils.hooks import RemovableHandle

__all__ = ["after_accumulation"]


def after_accumulation(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """Call `hook` with the parameter whenever autograd has accumulated its gradient; in order of registration."""
    return cast(RemovableHandle, parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
