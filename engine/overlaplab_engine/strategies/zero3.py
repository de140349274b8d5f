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
When a unit is about to be used, the gathers of it and of the `prefetch` next ones are launched, if they are sharded,
and the unit before has been freed. So no more than `prefetch` + 1 are gathered, beside those that are kept at the turn.
Forward, the next units are those of the last forward pass; a wrong guess only costs a wait, and in the first pass
nothing is gathered ahead. Backward, they are those of this forward pass in reverse.

[Note: read elsewhere]
A weight may also be read by another module than its unit's, as when the root calls `linear(x, embedding.weight)`. After
the unit was used this is noticed, and the unit gathered once more; from then on it stays gathered from its use to the
end of the backward pass. Before, it is an error: whether the unit will be used at all is not known.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.models.units import reads_parameters_in_backward
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.base import Options, Traits, register
from overlaplab_engine.strategies.gradients import hooks
from overlaplab_engine.strategies.gradients.buckets import Gradients
from overlaplab_engine.strategies.sharding.absent import early_read_error
from overlaplab_engine.strategies.sharding.agreement import OrderAgreement
from overlaplab_engine.strategies.sharding.sharded import Sharded
from overlaplab_engine.strategies.sharding.sharded_unit import ShardedUnit, ShardState

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
    labels_units = True
    keeps_last = True
    takes = ("communicators",)

    @classmethod
    def require(cls, config: Any) -> None:
        super().require(config)
        if config.main_grad and (config.param_dtype or config.reduce_dtype):
            raise EngineError(
                "--main-grad goes without --param-dtype and --reduce-dtype, with which shards and their gradients keep "
                "the parameters' type; leave it out"
            )

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        """See `Strategy`. Raises EngineError for a unit with parameters of several dtypes."""
        super().__init__(model, comm, options)
        if options.reduce_dtype != options.param_dtype and options.reduce_dtype is not None:
            self.whole_gradients = Gradients(options.reduce_dtype)
        self.sharded_units = [
            ShardedUnit(unit, comm, self.whole_gradients, self._before_read, options.param_dtype, options.offload)
            for unit in self.units()
        ]
        self.flats = [unit.flat for unit in self.sharded_units]
        self._expected_order: list[ShardedUnit] = []  # in which the forward pass uses the units, if it is as before
        self._has_run_backward = False
        self._forward_order: list[ShardedUnit] = []  # in which this forward pass has used them
        self._backward_order: list[_Use] = []  # in which the backward pass will use them
        self._in_backward = False
        self._sent_names: set[str] = set()  # parameters that this rank has sent a gradient of
        self._agreement = OrderAgreement(comm, self.name)
        for unit in self.sharded_units:
            self._register_hooks(unit)

    def _register_hooks(self, unit: ShardedUnit) -> None:
        for module in unit.modules:
            module.register_forward_pre_hook(partial(self._before_forward, unit), prepend=True, with_kwargs=True)
            module.register_forward_hook(partial(self._after_forward, unit), with_kwargs=True)
        for number, parameter in enumerate(unit.parameters):
            if parameter.requires_grad:
                hooks.after_accumulation(parameter, partial(self._gradient_accumulated, unit, number))

    # The schedule, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `Strategy`; after an exception no unit is gathered."""
        forward_order, backward_order = self._forward_order, self._backward_order
        collectives = len(self._agreement)
        self._forward_order = []
        try:
            args, kwargs = self._cast((args, kwargs))
            output = super().__call__(*args, **kwargs)
            if not hooks.differentiable_tensors(output):  # no backward pass will follow
                self._forward_order = forward_order
                self._agreement.forget_after(collectives)
            return output
        except BaseException as error:
            self._forward_order, self._backward_order = forward_order, backward_order
            self._agreement.forget_after(collectives)
            self.on_error(error)
            self._free_all()
            raise

    def _before_forward(self, unit: ShardedUnit, module: nn.Module, args: Any, kwargs: Any) -> Any:
        args, kwargs = self._cast((args, kwargs))
        if self._in_backward:  # activation checkpointing runs it again: the backward pass has gathered it
            if unit.state is ShardState.SHARDED:
                raise EngineError(
                    f"zero3: {unit.name} runs again and is not gathered; checkpoint with use_reentrant=False"
                )
            return args, kwargs
        position = len(self._forward_order)
        self._forward_order.append(unit)
        if self._expected_order[position : position + 1] != [unit]:
            self._expected_order = []
            if self._has_run_backward:  # else its gather is agreed on, if it has one
                self._agreement.exchange(f"using {unit.name}")
        self._gather([unit, *self._expected_order[position + 1 :][: self.options.prefetch]], FORWARD)
        unit.active += 1
        return hooks.alias_inputs((args, kwargs)) if torch.is_grad_enabled() else (args, kwargs)

    def _cast(self, inputs: Any) -> Any:
        """A module's inputs, those that are floating-point numbers in `options.param_dtype`."""
        dtype = self.options.param_dtype
        if dtype is None:
            return inputs
        return tree_map_only(torch.Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, inputs)

    def _after_forward(self, unit: ShardedUnit, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._in_backward:
            return
        self._mark(Word.LAST_USE, unit, FORWARD)
        unit.active -= 1
        if outputs := hooks.differentiable_tensors(output):
            unit.uses += 1
            unit.ran = True
            hooks.after_backward((args, kwargs), partial(self._after_backward, unit))
            if reads_parameters_in_backward(module):
                use = _Use(unit)
                self._backward_order = [use, *self._backward_order]
                hooks.before_backward(outputs, partial(self._before_backward, use))
        if not unit.active and not (unit.stays_gathered and outputs) and not unit.read_elsewhere:
            self._free(unit, FORWARD)

    # The schedule, backward

    def backward(self, loss: torch.Tensor, microbatch: int = 0) -> None:
        if len(self._forward_order) != len(self._expected_order):
            self._agreement.exchange(f"the backward pass after {len(self._forward_order)} units")
        self._in_backward = True
        self._has_run_backward = True
        self._expected_order, self._forward_order = self._forward_order, []
        try:
            super().backward(loss, microbatch)
        finally:
            self._in_backward = False
            self._backward_order = [use for use in self._backward_order if not use.in_backward]
            self._free_all()

    def _before_backward(self, use: _Use) -> None:
        if use.in_backward:
            return
        use.in_backward = True
        following = self._backward_order[self._backward_order.index(use) + 1 :][: self.options.prefetch]
        self._gather([use.unit, *(other.unit for other in following)], BACKWARD)

    def _after_backward(self, unit: ShardedUnit) -> None:
        self._mark(Word.LAST_USE, unit, BACKWARD)
        if unit.read_elsewhere:  # gradients may still come
            return
        self._free(unit, BACKWARD)
        unit.uses -= 1
        if not unit.uses and self._sync and unit.trained:
            self._send_gradients(unit)

    # Parameters

    def _before_read(self, unit: ShardedUnit) -> None:
        """A parameter of a unit that is not here is about to be read. See [Note: read elsewhere]."""
        if not self._in_forward:
            raise EngineError(
                f"zero3: parameters of unit {unit.name} are read, and only parts of them are here; "
                "`full_parameters` gathers them"
            )
        if unit not in self._forward_order:
            raise early_read_error(self.name, unit.name)
        unit.read_elsewhere = True
        self._gather([unit], FORWARD)

    def _gather(self, window: Sequence[ShardedUnit], phase: str) -> None:
        """Launch the gathers of the window's units that are sharded, and wait for the first. [Note: the window]"""
        for unit in window:
            if unit.state is ShardState.SHARDED:
                self._agreement.require(f"the gather of {unit.name}")
                self._wait_for_device_copy(unit.flat)
                with unit.label(Word.GATHER_LAUNCH, self.microbatch, phase):
                    unit.gather(self.comm)
        unit = window[0]
        if unit.state is ShardState.GATHERING:
            with unit.label(Word.GATHER_WAIT, self.microbatch, phase):
                unit.wait()
        self._mark(Word.FIRST_USE, unit, phase)

    def _free(self, unit: ShardedUnit, phase: str) -> None:
        if unit.state is not ShardState.SHARDED:
            unit.free()
            self._mark(Word.FREE, unit, phase)

    def _free_all(self) -> None:
        """Free all units, used or not, when none is in use any more."""
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
        self._copy_to_device(self.flats)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        return {name: tensor for flat in self.flats for name, tensor in self.assemble(flat, flat.shard).items()}

    def _before_state_dict(self, module: nn.Module, *_: Any) -> None:
        if not self._assembling and any(True for _ in module.parameters()):
            raise EngineError(
                "zero3: a rank's model holds parameters only while it computes; call the strategy's state_dict() on "
                "every rank, and load a state before the strategy is made"
            )

    # Gradients

    def _gradient_accumulated(self, unit: ShardedUnit, number: int, parameter: torch.Tensor) -> None:
        if not self._sync:
            self.whole_gradients.place(parameter, None, 1.0)
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
                self._sent_names.add(name)
            else:
                view.zero_()
        self._reduce_scatter(
            unit.flat,
            full,
            full.new_empty(unit.layout.chunk),
            unit.label(Word.SCATTER_LAUNCH, self.microbatch),
            unit.label(Word.SCATTER_DONE, self.microbatch),
            unit.label(Word.REPLICA_LAUNCH, self.microbatch),
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
        self._finish_gradients([i for i, name in enumerate(self.names) if name not in self._sent_names])
        self._restart()

    def _abandon(self) -> None:
        self._free_all()
        self._drain()
        self._agreement.begin_pass()
        self._restart()

    def _restart(self) -> None:
        self._sent_names = set()
        for unit in self.sharded_units:
            unit.sent = unit.ran = False

    def _mark(self, word: Word, unit: ShardedUnit, phase: str) -> None:
        labels.instant(unit.label(word, self.microbatch, phase))
