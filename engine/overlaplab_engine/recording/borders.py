"""Where units' forward and backward passes begin and end: labels, the kernel's counts, and times.

A unit's forward pass is the call of one of its modules, after what the strategy does first (gathering, waiting). Its
backward pass begins when the gradient of its output is there, and ends with its last parameter's gradient; where one
does not come, when another unit's begins, or with the whole backward pass. So nothing is added to autograd's graph. Of
nested units the inner one counts.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from overlaplab_engine import labels
from overlaplab_engine.labels import Word
from overlaplab_engine.models.units import Unit
from overlaplab_engine.recording import processor
from overlaplab_engine.strategies.gradients.hooks import before_backward

FORWARD, BACKWARD = "forward", "backward"


class UnitBorders:
    """Labels the borders of units' passes with `engine::first_use` and `engine::last_use`, and can measure them."""

    def __init__(
        self,
        units: Sequence[Unit],
        microbatch: Callable[[], int],
        *,
        labelled: Callable[[Unit, str], bool] = lambda unit, phase: True,
        counted: bool = False,
        hook: Callable[[Callable[..., None]], Callable[..., None]] = lambda call: call,
    ) -> None:
        """`microbatch` tells the number for labels; `labelled` which phases of which unit get any.

        With `counted` the kernel's counts go with the borders of forward passes, see `recording.processor`. What torch
        is to call is what `hook` makes of it.
        """
        self._microbatch, self._labelled, self._counted = microbatch, labelled, counted
        self._units, self._hook = units, hook
        self._open: tuple[Unit, int] | None = None  # whose backward pass is under way, and since when
        self._missing: set[str] = set()  # its parameters whose gradients have not come
        self._ending = False  # whether autograd will call `_end` after the pass
        self._entered: list[tuple[Unit, int]] = []  # whose forward passes are under way, and since when
        self._inner_ns: list[int] = []  # how long inner units took within each of these
        self._times: dict[tuple[str, str], int] | None = None
        self.handles: list[RemovableHandle] = []
        """Remove these to stop."""

    def register(self) -> Self:
        """Begin, after the strategy has registered its own hooks."""
        for unit in self._units:
            for module in unit.modules:
                if isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                    continue
                self.handles.append(module.register_forward_pre_hook(self._hook(partial(self._enter, unit))))
                self.handles.append(module.register_forward_hook(self._hook(partial(self._leave, unit))))
        return self

    def gradient_came(self, parameter: str) -> None:
        """Autograd has accumulated the gradient of this parameter."""
        self._missing.discard(parameter)
        if not self._missing:
            self._end()

    @contextmanager
    def measure_times(self) -> Iterator[dict[tuple[str, str], int]]:
        """Add up how long each (unit, phase) takes in the dictionary that this yields, in ns."""
        self._times = {}
        try:
            yield self._times
        finally:
            self._times = None

    def _enter(self, unit: Unit, module: nn.Module, inputs: Any) -> None:
        if _is_no_pass():
            return
        self._open, self._ending = None, False  # an exception has ended the backward pass before
        if self._counted:
            processor.mark()
        self._mark(Word.FIRST_USE, unit, FORWARD)
        self._entered.append((unit, time.perf_counter_ns()))
        self._inner_ns.append(0)

    def _leave(self, unit: Unit, module: nn.Module, inputs: Any, output: Any) -> None:
        if _is_no_pass():
            return
        while self._entered and self._entered[-1][0] is not unit:  # left by an exception
            self._forget()
        if self._entered:
            took_ns = time.perf_counter_ns() - self._entered[-1][1]
            self._add_time(unit, FORWARD, took_ns - self._inner_ns[-1])
            self._forget()
            if self._inner_ns:
                self._inner_ns[-1] += took_ns
        self._mark(Word.LAST_USE, unit, FORWARD)
        if self._counted:
            processor.mark(unit.name, FORWARD)
        before_backward(output, self._hook(partial(self._begin, unit)))

    def _forget(self) -> None:
        self._entered.pop()
        self._inner_ns.pop()

    def _begin(self, unit: Unit) -> None:
        if self._open is not None and self._open[0] is unit:
            return
        self._end()
        if not self._ending:
            torch.autograd.Variable._execution_engine.queue_callback(self._hook(self._end_pass))
            self._ending = True
        self._mark(Word.FIRST_USE, unit, BACKWARD)
        self._missing = {name for name, p in unit.parameters.items() if p.requires_grad}
        self._open = (unit, time.perf_counter_ns())

    def _end_pass(self) -> None:
        self._ending = False
        self._end()

    def _end(self) -> None:
        if self._open is None:
            return
        (unit, since_ns), self._open = self._open, None
        self._add_time(unit, BACKWARD, time.perf_counter_ns() - since_ns)
        self._mark(Word.LAST_USE, unit, BACKWARD)

    def _add_time(self, unit: Unit, phase: str, ns: int) -> None:
        if self._times is not None:
            self._times[unit.name, phase] = self._times.get((unit.name, phase), 0) + ns

    def _mark(self, word: Word, unit: Unit, phase: str) -> None:
        if self._labelled(unit, phase):
            mark = labels.kept_span(word, unit=unit.name, phase=phase, microbatch=self._microbatch())
            labels.instant(mark)


def _is_no_pass() -> bool:
    """Whether a module is called while it is compiled, or again in a backward pass (activation checkpointing)."""
    return torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1
