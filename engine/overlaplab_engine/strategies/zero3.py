"""zero3: parameters are sharded too. A unit's are gathered before it computes, and freed after.

Rajbhandari et al. 2020 (arXiv 1910.02054, §5.3), P_os+g+p; with the units and the prefetching of FSDP (Zhao et al.
2023, arXiv 2304.11277, §3.2 and §3.3.2).

[Note: one step of layer 5]
What happens to layer 5 of eight (0 to 7), each of them a unit, with `prefetch` 1:

1. Forward, layer 4 begins: its hook launches the all-gather of layer 5, which runs while layer 4 computes.
2. Forward, layer 5 begins: its hook launches the gather of layer 6 and waits for that of layer 5. Layer 5 computes.
3. Forward, layer 5 ends: its full parameters are freed, and each rank has only its shard again.
4. The turn: layer 7 and the head are kept, not freed, because the backward pass needs them at once.
5. Backward, layer 6 begins: the hook on its output launches the second gather of layer 5.
6. Backward, layer 5 begins: the gather of layer 4 is launched, and that of layer 5 is waited for. Layer 5 computes.
7. Backward, layer 5 ends: its full parameters are freed, and the reduce-scatter of its gradients is launched. Of the
   earlier reduce-scatters all but `IN_FLIGHT` are waited for, so that full gradients do not pile up.
8. The backward pass ends: the last reduce-scatters are waited for. Each rank has the mean gradients of its own shard of
   layer 5 and updates it. Nothing is gathered then: the next forward pass begins with 1.

[Note: the window]
When a unit is about to be used, the gathers of it and of the `prefetch` next ones are launched, if they are not held,
and the unit before has been freed. So no more than `prefetch` + 1 are held, beside those that are kept at the turn.
Forward, the next units are those of the last forward pass; a wrong guess only costs a wait. Backward, they are those of
this forward pass in reverse.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.models.units import reads_parameters_in_backward
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.agreement import OrderAgreement
from overlaplab_engine.strategies.base import Options, Traits, register
from overlaplab_engine.strategies.hooks import after_accumulation, after_backward, differentiable
from overlaplab_engine.strategies.sharded import Sharded
from overlaplab_engine.strategies.sharded_unit import ShardedUnit

__all__ = ["Zero3"]

IN_FLIGHT = 1
"""Units whose full gradients may wait for the network, before the backward pass waits for them."""

FORWARD, BACKWARD = "forward", "backward"


@dataclass(slots=True, eq=False)
class _Use:
    """One forward pass through a unit, and whether its backward pass has begun."""

    unit: ShardedUnit
    in_backward: bool = False


@register
class Zero3(Sharded):
    """Hooks around each unit's forward and backward gather, free, and reduce-scatter. See [Note: one step of layer 5].

    The ranks must run the same units in the same order: EngineError where they do not. A rank that fails alone cannot
    keep the others' collectives matched.
    """

    name = "zero3"
    traits = Traits(
        gradients="reduce_scatter",
        sends_every_microbatch=True,
        gathers="units",
        sharded=("parameters", "gradients", "optimizer"),
    )
    keeps_last = True
    refuses: ClassVar[Mapping[str, str]] = {"keep_last": Sharded.refuses["keep_last"]}

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        """See `Strategy`. Raises EngineError for a unit with parameters of several dtypes."""
        super().__init__(model, comm, options)
        self.sharded_units = [ShardedUnit(unit, comm, self.gradients) for unit in self.units()]
        self.flats = [unit.flat for unit in self.sharded_units]
        self._expected_order = list(self.sharded_units)  # in which the forward pass uses the units, if it is as before
        self._forward_order: list[ShardedUnit] = []  # in which this forward pass has used them
        self._backward_order: list[_Use] = []  # in which the backward pass will use them
        self._in_backward = False
        self._with_gradient: set[str] = set()  # parameters that this rank has sent a gradient of
        self._agreement = OrderAgreement(comm, self.name)
        for unit in self.sharded_units:
            self._register_hooks(unit)

    def _register_hooks(self, unit: ShardedUnit) -> None:
        for module in unit.modules:
            module.register_forward_pre_hook(partial(self._before_forward, unit), with_kwargs=True)
            module.register_forward_hook(partial(self._after_forward, unit))
        for number, parameter in enumerate(unit.parameters):
            if parameter.requires_grad:
                after_accumulation(parameter, partial(self._gradient_accumulated, unit, number))

    # The schedule, forward

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """See `Strategy`; after an exception no unit is held."""
        forward_order, backward_order = self._forward_order, self._backward_order
        collectives = len(self._agreement)
        self._forward_order = []
        try:
            loss = super().__call__(*inputs)
            if not loss.requires_grad:  # no backward pass will follow
                self._forward_order = forward_order
                self._agreement.forget_after(collectives)
            return loss
        except BaseException as error:
            self._forward_order, self._backward_order = forward_order, backward_order
            self._agreement.forget_after(collectives)
            self.on_error(error)
            self._free_all()
            raise

    def _before_forward(
        self, unit: ShardedUnit, module: nn.Module, args: Any, kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._in_backward:  # activation checkpointing runs it again: the backward pass has gathered it
            if not unit.held:
                raise EngineError(
                    f"zero3: {unit.name} runs again and is not gathered; checkpoint with use_reentrant=False"
                )
            return None
        position = len(self._forward_order)
        self._forward_order.append(unit)
        if self._expected_order[position : position + 1] != [unit]:
            self._expected_order = []
            self._agreement.exchange(f"using {unit.name}")
        self._gather([unit, *self._expected_order[position + 1 :][: self.options.prefetch]], FORWARD)
        unit.active += 1
        if not torch.is_grad_enabled():
            return None
        return after_backward((args, kwargs), partial(self._after_backward, unit))  # type: ignore[no-any-return]

    def _after_forward(self, unit: ShardedUnit, module: nn.Module, args: Any, output: Any) -> None:
        if self._in_backward:
            return
        self._mark(Word.LAST_USE, unit, FORWARD)
        unit.active -= 1
        outputs = differentiable(output)
        if outputs:
            unit.uses += 1
            unit.ran = True
            if reads_parameters_in_backward(module):
                use = _Use(unit)
                self._backward_order = [use, *self._backward_order]
                for x in outputs:
                    x.register_hook(partial(self._before_backward, use))  # type: ignore[no-untyped-call]
        if not unit.active and not (unit.kept and outputs):
            self._free(unit, FORWARD)

    # The schedule, backward

    def backward(self, loss: torch.Tensor, microbatch: int = 0) -> None:
        """See `Strategy`."""
        if len(self._forward_order) != len(self._expected_order):
            self._agreement.exchange(f"the backward pass after {len(self._forward_order)} units")
        self._in_backward = True
        self._expected_order, self._forward_order = self._forward_order, []
        try:
            super().backward(loss, microbatch)
        finally:
            self._in_backward = False
            self._backward_order = [use for use in self._backward_order if not use.in_backward]
            self._free_all()

    def _before_backward(self, use: _Use, grad: torch.Tensor) -> None:
        if use.in_backward:
            return
        use.in_backward = True
        following = self._backward_order[self._backward_order.index(use) + 1 :][: self.options.prefetch]
        self._gather([use.unit, *(other.unit for other in following)], BACKWARD)

    def _after_backward(self, unit: ShardedUnit) -> None:
        self._mark(Word.LAST_USE, unit, BACKWARD)
        self._free(unit, BACKWARD)
        unit.uses -= 1
        if not unit.uses and self._sync and unit.trained:
            self._send_gradients(unit)

    # Parameters

    def _gather(self, window: Sequence[ShardedUnit], phase: str) -> None:
        """Launch the gathers of the window's units that are not held, and wait for the first. [Note: the window]"""
        for unit in window:
            if not unit.held:
                self._agreement.require(f"the gather of {unit.name}")
                with unit.label(Word.GATHER_LAUNCH, self.microbatch, phase):
                    unit.gather(self.comm)
        unit = window[0]
        if unit.work is not None:
            with unit.label(Word.GATHER_WAIT, self.microbatch, phase):
                unit.wait()
        self._mark(Word.FIRST_USE, unit, phase)

    def _free(self, unit: ShardedUnit, phase: str) -> None:
        if unit.held:
            unit.free()
            self._mark(Word.FREE, unit, phase)

    def _free_all(self) -> None:
        """No unit is in use: free what is held, used or not."""
        for unit in self.sharded_units:
            unit.active = 0
            unit.uses = 0
            with suppress(Exception):  # a lost peer: the exception on its way says more
                unit.wait()
            self._free(unit, BACKWARD)

    def updated(self) -> None:
        """The shards are updated, so what a forward pass without a backward pass has left gathered is stale."""
        self._backward_order = []
        self._free_all()

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """See `Strategy`."""
        return {name: tensor for flat in self.flats for name, tensor in self.assemble(flat, flat.shard).items()}

    # Gradients

    def _gradient_accumulated(self, unit: ShardedUnit, number: int, parameter: torch.Tensor) -> None:
        """Autograd has accumulated the gradient of the unit's parameter `number`."""
        if not self._sync:
            self.gradients.place(parameter, None, 1.0)
        elif unit.sent:
            name = unit.flat.names[number]
            raise EngineError(f"zero3: {name} got a gradient after unit {unit.name}'s were sent; is it used elsewhere?")

    @torch.no_grad()
    def _send_gradients(self, unit: ShardedUnit) -> None:
        """Reduce-scatter the unit's gradients, zeros where there are none."""
        unit.sent = True
        self._agreement.require(f"the gradients of {unit.name}")
        full = unit.empty_gradients()
        for name, parameter, view in zip(unit.flat.names, unit.parameters, unit.layout.views(full), strict=True):
            if self._has_gradient(parameter):
                self._move_prescaled(parameter, view)
                self._with_gradient.add(name)
            else:
                view.zero_()
        self._reduce_scatter(
            unit.flat,
            full,
            full.new_empty(unit.layout.chunk),
            unit.label(Word.SCATTER_LAUNCH, self.microbatch),
            unit.label(Word.SCATTER_DONE, self.microbatch),
        )
        self._wait_for_scatters(leave=IN_FLIGHT)

    # The end of a pass

    @torch.no_grad()
    def _finish(self) -> None:
        self._free_all()
        for unit in reversed(self.sharded_units):
            pending = any(self._has_gradient(p) for p in unit.parameters)
            if unit.trained and not unit.sent and (unit.ran or pending):
                self._send_gradients(unit)
        self._agreement.require("the end of the step")
        self._agreement.end_pass()
        self._finish_gradients([i for i, name in enumerate(self.names) if name not in self._with_gradient])
        self._restart()

    def _abandon(self) -> None:
        self._free_all()
        self._drain()
        self._agreement.begin_pass()
        self._restart()

    def _restart(self) -> None:
        self._with_gradient = set()
        for unit in self.sharded_units:
            unit.sent = unit.ran = False

    def _mark(self, word: Word, unit: ShardedUnit, phase: str) -> None:
        labels.instant(unit.label(word, self.microbatch, phase))
