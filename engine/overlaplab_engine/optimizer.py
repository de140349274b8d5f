"""AdamW, with fp32 master weights for parameters of lower precision."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext

import torch

from overlaplab_engine import labels
from overlaplab_engine.labels import Word

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's running means of a parameter's gradients and of their squares, by torch's names."""


def gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """A parameter's gradient: its fp32 `main_grad` if there is one, else `.grad`."""
    main: torch.Tensor | None = getattr(parameter, "main_grad", None)
    return parameter.grad if main is None else main


class AdamW:
    """torch's AdamW over the parameters, or over fp32 copies of those in bfloat16 (Micikevicius et al. 2018)."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float, units: Sequence[str] | None = None) -> None:
        """Parameters that need no gradient are skipped. Of those with fp32 copies a state must be loaded before: the
        next update writes the copies' values. `units`, one for each parameter, are updated one by one, each
        with a label; the numbers are the same.
        """
        tensors = list(parameters)
        named = [(p, unit) for p, unit in zip(tensors, units or [""] * len(tensors), strict=True) if p.requires_grad]
        self._master_of = {
            p: p if self.exact(p.dtype) is p.dtype else p.detach().to(self.exact(p.dtype)) for p, _ in named
        }
        masters_of_unit: dict[str, list[torch.Tensor]] = {}
        for p, unit in named:
            masters_of_unit.setdefault(unit, []).append(self._master_of[p])
        self._torch_optimizers = {
            unit: torch.optim.AdamW(masters, lr=lr, fused=True) for unit, masters in masters_of_unit.items()
        }
        self.took_ns: dict[str, int] = {}
        """How long the update of each unit took at least, in ns."""
        self._unit_of = {master: unit for unit, masters in masters_of_unit.items() for master in masters}

    @staticmethod
    def exact(dtype: torch.dtype) -> torch.dtype:
        """The dtype of the masters and moments of parameters of `dtype`."""
        return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype

    def states(self) -> list[torch.Tensor]:
        """All fp32 masters and moments that exist so far."""
        masters = [master for p, master in self._master_of.items() if master is not p]
        states = [state for each in self._torch_optimizers.values() for state in each.state.values()]
        return masters + [t for state in states for t in state.values() if t.dim()]

    def state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """A parameter's fp32 `masters`, if any, and its moments `exp_avg` and `exp_avg_sq`, once it was updated."""
        master = self._master_of[parameter]
        masters = {} if master is parameter else {"masters": master}
        state = self._state(master)
        return masters | {name: state[name] for name in MOMENTS if name in state}

    def updates_of(self, parameter: torch.Tensor) -> int:
        """How often a parameter was updated; AdamW's bias correction depends on it."""
        return int(self._state(self._master_of[parameter]).get("step", 0))

    @torch.no_grad()
    def restore(self, parameter: torch.Tensor, state: Mapping[str, torch.Tensor], updates: int) -> None:
        """Restore what `state_of` and `updates_of` returned for a parameter; its own values stay as they are."""
        master = self._master_of[parameter]
        if master is not parameter:
            master.copy_(state["masters"].view(master.shape))
        states = self._torch_optimizers[self._unit_of[master]].state
        states.pop(master, None)
        if updates:
            moments = {name: torch.empty_like(master).copy_(state[name].view(master.shape)) for name in MOMENTS}
            step = torch.tensor(float(updates), dtype=torch.float32, device=master.device)  # as in fused AdamW
            states[master] = {"step": step, **moments}

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        borrowed = []
        for parameter, master in self._master_of.items():
            grad = gradient(parameter)
            if grad is not master.grad:  # in lower precision, or in `main_grad`
                master.grad = None if grad is None else grad.to(master.dtype)
                borrowed.append((parameter, master))
        for unit in self._torch_optimizers:
            since_ns = time.perf_counter_ns()
            with labels.span(Word.UPDATE, unit=unit) if unit else nullcontext():  # a server's threads update, too
                self._update(unit)
            took_ns = time.perf_counter_ns() - since_ns
            self.took_ns[unit] = min(took_ns, self.took_ns.get(unit, took_ns))
        for parameter, master in borrowed:
            master.grad = None
            if master is not parameter:
                parameter.copy_(master)

    def _update(self, unit: str) -> None:
        self._torch_optimizers[unit].step()

    def _state(self, master: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self._torch_optimizers[self._unit_of[master]].state.get(master, {})
        return state


class SleepingAdamW(AdamW):
    """Sleeps in place of every update but the first, after which it holds the moments that AdamW holds."""

    def __init__(
        self, parameters: Iterable[torch.Tensor], lr: float, units: Sequence[str], sleep: Callable[[str], None]
    ) -> None:
        """`sleep` takes as long as an update of what this rank owns of a unit."""
        super().__init__(parameters, lr, units)
        self._sleep = sleep

    def _update(self, unit: str) -> None:
        if self._torch_optimizers[unit].state:
            self._sleep(unit)
        else:
            super()._update(unit)
