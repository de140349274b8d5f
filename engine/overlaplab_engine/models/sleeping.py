"""The sleeping device: a model's modules take their time without using a core.

Parameters, hooks and gradients are real, and so is all communication; only the numbers mean nothing. So the ranks do
not take cores from each other, and a step takes as long as the strategy and the link make it.

[Note: who sleeps]
A module with parameters of its own sleeps in its forward pass, and in its backward pass before its gradients arrive. A
unit's time is shared out among its modules by their parameters. Modules without parameters of their own call their
children in turn, so that the hooks of every unit run. What passes between modules is a single number; between the
stages of a pipeline, activations of their size.

[Note: what a trace shows]
Each sleep is an operator `sleep::MODULE`, which counts as computation, as any library's operators do. Gradients are
made before the sleep, within its time, so that nothing lies inside the operator.

[Note: on schedule]
A GPU's host runs ahead, so that hooks, launches and Python cost the device nothing. Here the host has to wait for each
module, since its gradients arrive when its time is over; so what the host takes between two sleeps shortens the next
ones, as does a late wake-up. A pass takes the sum of its modules' times, however many buckets are launched in it.
Waits for communication and the pause that was asked for stand still meanwhile, as they do on a GPU. At least half of
each sleep remains: a host that takes longer than the device holds it up.

Whether a thread waits or works is told by `alarm.note_wait`, which messages behind the emulated link enter by
themselves. Other waits within torch's own code do not: with torch-ddp and torch-fsdp2, and in pipelines without such a
link, the kernel tells, and a thread waits whenever it is blocked. Where run.json's `sleep.on_schedule` is false, only
late wake-ups are made up for.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast as Span

from overlaplab_engine.alarm import Alarm, note_wait, wake_on_time
from overlaplab_engine.models.times import Sleep, UnitTime
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.models.units import Unit

GRADIENT = 1e-3
"""Every element of every gradient."""
MOST_OWED_NS = 10_000_000
"""A longer delay comes from a machine that was stopped, and is not made up for."""

_share = [1.0]  # of its time that a backward pass takes now


@contextmanager
def half_a_backward() -> Iterator[None]:
    """Within it, a backward pass makes only inputs' or only weights' gradients, which take half the time each."""
    before, _share[0] = _share[0], 0.5
    try:
        yield
    finally:
        _share[0] = before


class SleepClock:
    """Takes time on one thread, one sleep after the other; see [Note: on schedule]."""

    def __init__(self, waited_ns: Callable[[], int] | None) -> None:
        """Make this thread's sleeps end on time. What the host takes between them is made up for.

        `waited_ns` says how long the thread has waited for others, which is not made up for; None: without a schedule.
        """
        wake_on_time()
        self._alarm = Alarm(time.perf_counter_ns)
        self._waited_ns = waited_ns
        self._owed_ns = 0  # how far the device is behind its schedule
        self._left_ns: int | None = None  # when the last sleep was over, less what the thread had waited until then

    def take(self, ns: int, span: Span, since_ns: int | None = None) -> None:
        """Sleep for `ns`, as the operator `span`, less what is to be made up for; it has begun `since_ns`, or now."""
        now_ns = time.perf_counter_ns()
        begun_ns = now_ns if since_ns is None else since_ns
        if self._waited_ns is not None and self._left_ns is not None:
            begun_ns = self._left_ns + self._waited_ns()
        owed_ns = min(self._owed_ns + now_ns - begun_ns, MOST_OWED_NS)
        made_up_ns = min(owed_ns, ns // 2)
        end_ns = now_ns + ns - made_up_ns
        with span:
            self._alarm.sleep_until(end_ns)
        now_ns = time.perf_counter_ns()
        self._owed_ns = owed_ns - made_up_ns + now_ns - end_ns
        self._left_ns = None if self._waited_ns is None else now_ns - self._waited_ns()


class _Sleeper:
    """What one module with parameters does instead of computing."""

    def __init__(self, name: str, forward_ns: int, backward_ns: int, clock: SleepClock) -> None:
        self.span = Span(f"sleep::{name}")
        self.forward_ns, self.backward_ns, self.clock = forward_ns, backward_ns, clock
        self.before_backward: Callable[[], None] | None = None

    def __call__(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Nap.apply(self, x, *module.parameters(recurse=False))  # type: ignore[no-untyped-call]
        return y


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sleeper: _Sleeper, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.sleeper = sleeper
        ctx.likes = [(p.shape, p.dtype, p.requires_grad) for p in parameters]
        ctx.save_for_backward(x)  # activation checkpointing runs the forward pass again when this is asked for
        sleeper.clock.take(sleeper.forward_ns, sleeper.span)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        sleeper: _Sleeper = ctx.sleeper
        if sleeper.before_backward is not None:
            sleeper.before_backward()
        assert ctx.saved_tensors
        since_ns = time.perf_counter_ns()
        gradients = [torch.full(shape, GRADIENT, dtype=dtype) if needed else None for shape, dtype, needed in ctx.likes]
        sleeper.clock.take(round(_share[0] * sleeper.backward_ns), sleeper.span, since_ns)
        return None, outputs[0] if ctx.needs_input_grad[1] else None, *gradients


def unit_times(sleep: Sleep, units: Sequence[Unit], tokens: int) -> dict[str, UnitTime]:
    """What each unit takes, by name; `tokens` are those of one pass. EngineError if `sleep` does not know one."""
    return {
        unit.name: sleep.unit_time(unit.name, sum(p.numel() for p in unit.parameters.values()), tokens)
        for unit in units
    }


def put_to_sleep(
    model: Transformer,
    units: Sequence[Unit],
    times: Mapping[str, UnitTime],
    clock: SleepClock,
    *,
    slower: float = 1.0,
    pause_ms: float = 0,
) -> None:
    """Let the model's modules take `times`, by unit, multiplied by `slower`; see [Note: who sleeps].

    Before the backward pass of the middle unit the host pauses for `pause_ms`, outside any operator.
    """
    names = {module: name for name, module in model.named_modules()}
    middle = units[len(units) // 2]
    for unit in units:
        sleepers = [m for m in _parameter_holders(unit) if any(True for _ in m.parameters(recurse=False))]
        sizes = [sum(p.numel() for p in m.parameters(recurse=False)) for m in sleepers]
        time = times[unit.name]
        for module, size in zip(sleepers, sizes, strict=True):
            share = slower * size / sum(sizes)
            sleeper = _Sleeper(names[module], round(share * time.forward_ns), round(share * time.backward_ns), clock)
            module.forward = partial(sleeper, module)
            if pause_ms and unit is middle and module is sleepers[-1]:
                sleeper.before_backward = partial(_pause, pause_ms / 1e3)
    for module in model.modules():
        if module is not model and not any(True for _ in module.parameters(recurse=False)):
            module.forward = partial(_in_turn, module)
    model.part = partial(_part, model)  # type: ignore[method-assign]


def _pause(seconds: float) -> None:
    with note_wait():
        time.sleep(seconds)


def _parameter_holders(unit: Unit) -> Iterator[nn.Module]:
    """The modules that hold the unit's parameters."""
    parameter_ids = {id(p) for p in unit.parameters.values()}
    seen = set()
    for root in unit.modules:
        for module in root.modules():
            if id(module) not in seen and any(id(p) in parameter_ids for p in module.parameters(recurse=False)):
                seen.add(id(module))
                yield module


def _in_turn(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for child in module.children():
        x = child(x)
    return x


def _part(model: Transformer, layers: range, x: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
    """In place of `Transformer.part`: a single number goes through the layers, and activations have their size."""
    batch, seq = x.shape[:2]
    y = model.embedding(torch.ones(1, dtype=model.dtype)) if layers.start == 0 else x.flatten()[:1]
    for number in layers:
        y = model.through_layer(number, y)
    if layers.stop < len(model.layers):
        return y.expand(batch, seq, model.width).contiguous()
    out: torch.Tensor = model.head(y)
    return out.sum()
