"""When the model's forward and backward passes begin and end."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from overlaplab_engine.strategies.gradients.hooks import Hook, before_backward
from overlaplab_engine.watching.clock import EventClock, WatchHostClock
from overlaplab_engine.watching.log import CellKind


def called_modules(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that the loop calls: the model, or, where it is only a list of models, those."""
    is_called = isinstance(model, DistributedDataParallel | FSDPModule) or hasattr(model, "_orig_mod")  # compiled
    if type(model).forward is nn.Module.forward and not is_called:
        for module in model.children():
            yield from called_modules(module)
    elif not isinstance(model, torch.jit.ScriptModule):  # which takes no hooks
        yield model


class Passes:
    """Hooks on a model: they tell its first forward pass of each step and, while `timing`, time its passes."""

    def __init__(
        self,
        model: nn.Module,
        clock: WatchHostClock | EventClock,
        receiver: Callable[[CellKind], Callable[[int], None]],
        *,
        began: Callable[[bool], None],
        ended: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`receiver(kind)` returns the function that gets the duration of a pass of this step in ns.

        `began` is called before each forward pass, with whether it trains, and `ended` after one that does, also while
        nothing is timed; `failed` with what goes wrong in here. AttributeError where this torch does not tell when
        backward passes end.
        """
        self._clock, self._receiver = clock, receiver
        self._began, self._ended, self._failed = began, ended, failed
        self.timing = False
        self._forward_start: Any = None
        self._backward_start: Any = None
        self._backward_computed: Any = None
        engine: Any = torch.autograd.Variable._execution_engine
        self._queue_callback = engine.queue_callback
        self._ddp_is_timed = isinstance(clock, EventClock) and any(
            isinstance(module, DistributedDataParallel) for module in model.modules()
        )
        self._called = list(called_modules(model))
        self._removals: list[Callable[[], None]] = []
        self._add_hooks()

    def _add_hooks(self) -> None:
        for module in self._called:
            before, after = Hook(self._before_forward, self._failed), Hook(self._after_forward, self._failed)
            if module._compiled_call_impl is not None:
                self._removals.append(_surround_compiled(module, before, after))
            else:
                self._removals.append(module.register_forward_pre_hook(before, prepend=True).remove)
                self._removals.append(module.register_forward_hook(after).remove)
        self._calls = [module._compiled_call_impl for module in self._called]

    def remove(self) -> None:
        """Remove the hooks."""
        while self._removals:
            self._removals.pop()()

    def next_step(self) -> None:
        """Forget a pass that an error has ended; put the hooks around what `nn.Module.compile` has made meanwhile."""
        self._forward_start = self._backward_start = None
        if [module._compiled_call_impl for module in self._called] != self._calls:
            self.remove()
            self._add_hooks()

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        trains = torch.is_grad_enabled()
        self._began(trains)
        if self.timing and trains:
            self._forward_start = self._clock.mark()

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if self.timing and self._forward_start is not None:
            self._clock.span(self._forward_start, self._clock.mark(), self._receiver(CellKind.FORWARD))
            self._forward_start = None
            before_backward(output, Hook(self._before_backward, self._failed))
        self._ended()

    def _before_backward(self) -> None:
        if self.timing and self._backward_start is None:
            self._backward_start = self._clock.mark()
            self._queue_callback(Hook(self._after_computing, self._failed))

    def _after_computing(self) -> None:
        """DDP queues its waiting later than this was queued, and earlier than this queues what follows."""
        self._backward_computed = self._clock.mark()
        self._queue_callback(Hook(self._after_backward, self._failed))

    def _after_backward(self) -> None:
        if self._backward_start is not None:
            end = self._clock.mark()
            self._clock.span(self._backward_start, end, self._receiver(CellKind.BACKWARD))
            if self._ddp_is_timed:
                self._clock.span(self._backward_computed, end, self._receiver(CellKind.EXPOSED_DDP))
        self._backward_start = None


def _surround_compiled(module: nn.Module, before: Hook, after: Hook) -> Callable[[], None]:
    """Call hooks around what `nn.Module.compile` made of a module: within that they run only while it is traced.

    Returns the function that undoes it.
    """
    compiled: Any = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        before(module, args)
        output = compiled(*args, **kwargs)
        after(module, args, output)
        return output

    def undo() -> None:
        if module._compiled_call_impl is call:
            module._compiled_call_impl = compiled

    module._compiled_call_impl = call
    return undo
