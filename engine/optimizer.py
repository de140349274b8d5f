"""AdamW, with fp32 master weights for parameters of lower precision."""

from collections.abc import Iterable

import torch

__all__ = ["AdamW", "gradient"]


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
            p.detach().float() if p.dtype in (torch.bfloat16, torch.float16) else p for p in self._parameters
        ]
        self._adamw = torch.optim.AdamW(self._masters, lr=lr, fused=True) if self._masters else None

    def states(self) -> list[torch.Tensor]:
        """fp32 masters and moments, as far as there are any."""
        masters = [m for p, m in zip(self._parameters, self._masters, strict=True) if m is not p]
        moments = [t for state in (self._adamw.state if self._adamw else {}).values() for t in state.values()]
        return masters + [t for t in moments if t.dim()]

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        if self._adamw is None:
            return
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                grad = gradient(parameter)
                master.grad = None if grad is None else grad.float()
        self._adamw.step()
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)
                master.grad = None
