"""Hooks into autograd."""

from collections.abc import Callable

import torch

__all__ = ["after_accumulation"]


def after_accumulation(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
    """Call `hook` with the parameter whenever autograd has accumulated its gradient; in order of registration."""
    parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
