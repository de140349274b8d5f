"""AdamW, with fp32 master weights for parameters of lower precision."""

from collections.abc import Iterable, Mapping

import torch

__all__ = ["MOMENTS", "AdamW", "gradient"]

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's running means of a parameter's gradients and of their squares, by torch's names."""


def gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """A parameter's gradient: its fp32 `main_grad` if there is one, else `.grad`."""
    main: torch.Tensor | None = getattr(parameter, "main_grad", None)
    return parameter.grad if main is None else main


class AdamW:
    """torch's AdamW over the parameters, or over fp32 copies of those in bfloat16 (Micikevicius et al. 2018)."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float) -> None:
        """Parameters that need no gradient are skipped."""
        self._parameters = [p for p in parameters if p.requires_grad]
        self._masters = [
            p if self.exact(p.dtype) is p.dtype else p.detach().to(self.exact(p.dtype)) for p in self._parameters
        ]
        self._adamw = torch.optim.AdamW(self._masters, lr=lr, fused=True) if self._masters else None
        self._number = {id(p): i for i, p in enumerate(self._parameters)}

    @staticmethod
    def exact(dtype: torch.dtype) -> torch.dtype:
        """The dtype of the masters and moments of parameters of `dtype`."""
        return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype

    def states(self) -> list[torch.Tensor]:
        """All fp32 masters and moments that exist so far."""
        masters = [m for p, m in zip(self._parameters, self._masters, strict=True) if m is not p]
        moments = [t for state in (self._adamw.state if self._adamw else {}).values() for t in state.values()]
        return masters + [t for t in moments if t.dim()]

    def state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """A parameter's fp32 `masters`, if any, and its moments `exp_avg` and `exp_avg_sq`, once it was updated."""
        master = self._masters[self._number[id(parameter)]]
        masters = {} if master is parameter else {"masters": master}
        state = self._adamw.state.get(master, {}) if self._adamw else {}
        return masters | {name: state[name] for name in MOMENTS if name in state}

    def updates_of(self, parameter: torch.Tensor) -> int:
        """How often a parameter was updated; AdamW's bias correction depends on it."""
        master = self._masters[self._number[id(parameter)]]
        state = self._adamw.state.get(master, {}) if self._adamw else {}
        return int(state["step"]) if "step" in state else 0

    @torch.no_grad()
    def restore(self, parameter: torch.Tensor, state: Mapping[str, torch.Tensor], updates: int) -> None:
        """Restore what `state_of` and `updates_of` returned for a parameter; its own values stay as they are."""
        master = self._masters[self._number[id(parameter)]]
        if master is not parameter:
            master.copy_(state["masters"].view(master.shape))
        assert self._adamw is not None
        self._adamw.state.pop(master, None)
        if updates:
            moments = {name: torch.empty_like(master).copy_(state[name].view(master.shape)) for name in MOMENTS}
            step = torch.tensor(float(updates), dtype=torch.float32, device=master.device)  # as in fused AdamW
            self._adamw.state[master] = {"step": step, **moments}

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        if self._adamw is None:
            return
        borrowed = []
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            grad = gradient(parameter)
            if grad is not master.grad:  # in lower precision, or in `main_grad`
                master.grad = None if grad is None else grad.to(master.dtype)
                borrowed.append((parameter, master))
        self._adamw.step()
        for parameter, master in borrowed:
            master.grad = None
            if master is not parameter:
                parameter.copy_(master)
