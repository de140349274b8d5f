"""zero3: parameters are sharded too. A unit's are gathered before it computes, and freed after.

Rajbhandari et al. 2020 (arXiv 1910.02054, §5.3), P_os+g+p; with the units, the prefetching and the storage that is
resized of FSDP (Zhao et al. 2023, arXiv 2304.11277, §3.2, §3.3.2 and §4.2; torch/distributed/fsdp/_flat_param.py).

[Note: the window]
Units are used one after the other: forward in the model's order, backward in reverse. When one is about to be used, the
gathers of it and of the `prefetch` next ones are launched, if they are not held; by then the one before is freed. So no
more than `prefetch` + 1 are held, beside those kept at the turn. What comes next is foretold by the last forward pass,
and a wrong guess only costs a wait.

[Note: the same storage]
A parameter's memory is a view of its unit's flat buffer, whose storage is resized to nothing when the unit is freed and
back before it is gathered. So whatever autograd saved, views too, sees the values again. While its unit is free, a
parameter reads NaN everywhere (0 if it holds integers).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Span, Word
from overlaplab_engine.models.deferred import hollow, materialise
from overlaplab_engine.models.transformer import Unit, reads_parameters_in_backward
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.base import Options, Traits, register
from overlaplab_engine.strategies.buckets import Gradients
from overlaplab_engine.strategies.hooks import after_accumulation
from overlaplab_engine.strategies.sharded import Sharded
from overlaplab_engine.strategies.shards import Flat, Layout

__all__ = ["ShardedUnit", "Zero3"]

AGREEMENT_S = 60.0
"""How long a rank that runs the units in a new order waits for the others to do the same."""

IN_FLIGHT = 1
"""Units whose full gradients may wait for the network, before the backward pass waits for them."""

FORWARD, BACKWARD = "forward", "backward"


class ShardedUnit:
    """One unit's parameters: this rank's part always, all of them while it is held."""

    def __init__(self, unit: Unit, comm: Communicator, kept_in: Gradients) -> None:
        """Take over the parameters, with rank 0's values, and free what other ranks own.

        Deferred ones are materialised here, one by one. EngineError if they have several dtypes.
        """
        parameters = list(unit.parameters.values())
        dtypes = {p.dtype for p in parameters}
        if len(dtypes) > 1:
            raise EngineError(
                f"unit {unit.name} has parameters of several dtypes ({', '.join(sorted(map(str, dtypes)))}); "
                "zero3 gathers a unit in one piece"
            )
        self.name = unit.name
        self.modules = unit.modules
        self.kept = unit.kept
        self.parameters = parameters
        self.trained = any(p.requires_grad for p in parameters)
        self.layout = Layout([p.shape for p in parameters], comm.rank, comm.world_size)
        self.full = torch.zeros(self.layout.padded, dtype=parameters[0].dtype, device=parameters[0].device)
        self._views = self.layout.views(self.full)
        self._nothing = [hollow(p) for p in parameters]
        for parameter, view, nothing in zip(parameters, self._views, self._nothing, strict=True):
            materialise(parameter)
            view.copy_(parameter.detach())
            parameter.data = nothing
        comm.broadcast([self.full])
        shard = self.layout.own(self.full).clone()
        trained = [p.requires_grad for p in parameters]
        self.flat = Flat(list(unit.parameters), self.layout, shard, trained)
        self.work: Work | None = None
        """The gather under way."""
        self.held = True
        """Whether the full parameters have memory; they may still be on their way."""
        self.free()
        self.active = 0
        """Its modules whose forward has begun and not ended."""
        self.uses = 0
        """Forward passes through it whose backward has not ended."""
        self.ran = False
        """Whether it was used since gradients were last sent."""
        self.gradient_dtype = kept_in.dtype(parameters[0])
        """In which gradients are sent."""
        self.sent = False
        """Whether this pass's gradients are on their way."""
        self.label = cache(self._label)

    def gather(self, comm: Communicator) -> None:
        """Launch the all-gather of the full parameters."""
        self.full.untyped_storage().resize_(self.full.nbytes)
        self.held = True
        self._show(self._views)
        self.work = comm.all_gather(self.full, self.flat.shard)

    def wait(self) -> None:
        """Wait for the gather under way, if there is one; on CUDA, make the stream wait."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()

    def free(self) -> None:
        """Give the full parameters' memory back."""
        self._show(self._nothing)
        self.full.untyped_storage().resize_(0)
        self.held = False

    def _show(self, values: Sequence[torch.Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.data = value

    def _label(self, word: Word, microbatch: int, phase: str = "") -> Span:
        values: dict[str, str | int] = {"unit": self.name, "microbatch": microbatch}
        if phase:
            values["phase"] = phase
        if word in (Word.GATHER_LAUNCH, Word.FREE):
            values["bytes"] = self.full.nbytes
        if word is Word.SCATTER_LAUNCH:
            values["bytes"] = self.layout.padded * self.gradient_dtype.itemsize
        return labels.span(word, **values)


class _AfterBackward(torch.autograd.Function):
    """The identity on a module's inputs; its backward runs once the module's backward is over.

    As RegisterPostBackwardFunction in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
    """

    @staticmethod
    def forward(ctx: Any, then: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.then = then
        ctx.set_materialize_grads(False)
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        ctx.then()
        return None, *grads


_after_backward: Callable[..., tuple[torch.Tensor, ...]] = _AfterBackward.apply


@dataclass(slots=True, eq=False)
class _Use:
    """One forward pass through a unit, whose backward may have begun."""

    unit: ShardedUnit
    begun: bool = False


@register
class Zero3(Sharded):
    """Hooks around each unit's forward and backward gather, free, and reduce-scatter.

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
        self._foretold = list(self.sharded_units)  # the order of use, as far as one can tell
        self._seen: list[ShardedUnit] = []  # what this forward pass has used
        self._returning: list[_Use] = []  # what the backward pass will use, last first
        self._in_backward = False
        self._used: set[str] = set()  # parameters that this rank sends a gradient of
        self._order: list[str] = []  # of this pass's collectives
        self._agreed: list[str] = []  # of the pass before: the same on all ranks
        self._topic = comm.topic()
        self._pass = 0
        self._asked = 0  # in this pass
        for unit in self.sharded_units:
            for module in unit.modules:
                module.register_forward_pre_hook(partial(self._before_forward, unit), with_kwargs=True)
                module.register_forward_hook(partial(self._after_forward, unit))
            for number, parameter in enumerate(unit.parameters):
                if parameter.requires_grad:
                    after_accumulation(parameter, partial(self._arrived, unit, number))

    # Forward

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """See `Strategy`; after an exception no unit is held."""
        seen, returning, noted = self._seen, self._returning, len(self._order)
        self._seen = []
        try:
            loss = super().__call__(*inputs)
            if not loss.requires_grad:
                self._seen = seen
                del self._order[noted:]
            return loss
        except BaseException as error:
            self._seen, self._returning = seen, returning
            del self._order[noted:]
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
        position = len(self._seen)
        self._seen.append(unit)
        if self._foretold[position : position + 1] != [unit]:
            self._foretold = []
            self._agree(f"using {unit.name}")
        ahead = self._foretold[position + 1 : position + 1 + self.options.prefetch]
        self._hold([unit, *ahead], FORWARD)
        unit.active += 1
        if not torch.is_grad_enabled():
            return None
        flat, spec = tree_flatten((args, kwargs))
        places = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor) and x.requires_grad]
        if places:
            marked = _after_backward(partial(self._after_backward, unit), *(flat[i] for i in places))
            for i, x in zip(places, marked, strict=True):
                flat[i] = x
        return tree_unflatten(flat, spec)  # type: ignore[no-any-return]

    def _after_forward(self, unit: ShardedUnit, module: nn.Module, args: Any, output: Any) -> None:
        if self._in_backward:
            return
        self._mark(Word.LAST_USE, unit, FORWARD)
        unit.active -= 1
        outputs = [x for x in tree_flatten(output)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
        if outputs:
            unit.uses += 1
            unit.ran = True
            if reads_parameters_in_backward(module):
                use = _Use(unit)
                self._returning = [use, *self._returning]
                for x in outputs:
                    x.register_hook(partial(self._before_backward, use))  # type: ignore[no-untyped-call]
        if not unit.active and not (unit.kept and outputs):
            self._free(unit, FORWARD)

    # Backward

    def backward(self, loss: torch.Tensor, microbatch: int = 0) -> None:
        """See `Strategy`."""
        if len(self._seen) != len(self._foretold):
            self._agree(f"the backward pass after {len(self._seen)} units")
        self._in_backward = True
        self._foretold, self._seen = self._seen, []
        try:
            super().backward(loss, microbatch)
        finally:
            self._in_backward = False
            self._returning = [use for use in self._returning if not use.begun]
            self._free_all()

    def _before_backward(self, use: _Use, grad: torch.Tensor) -> None:
        if use.begun:
            return
        use.begun = True
        position = self._returning.index(use)
        ahead = [u.unit for u in self._returning[position + 1 : position + 1 + self.options.prefetch]]
        self._hold([use.unit, *ahead], BACKWARD)

    def _after_backward(self, unit: ShardedUnit) -> None:
        self._mark(Word.LAST_USE, unit, BACKWARD)
        self._free(unit, BACKWARD)
        unit.uses -= 1
        if not unit.uses and self._sync and unit.trained:
            self._send(unit)

    def _arrived(self, unit: ShardedUnit, number: int, parameter: torch.Tensor) -> None:
        """Autograd has accumulated the gradient of the unit's parameter `number`."""
        if not self._sync:
            self.gradients.take(parameter, None, 1.0)
        elif unit.sent:
            name = unit.flat.names[number]
            raise EngineError(f"zero3: {name} got a gradient after unit {unit.name}'s were sent; is it used elsewhere?")

    @torch.no_grad()
    def _send(self, unit: ShardedUnit) -> None:
        """Reduce-scatter the unit's gradients, zeros where there are none."""
        unit.sent = True
        self._note(f"the gradients of {unit.name}")
        full = torch.empty_like(unit.full, dtype=unit.gradient_dtype)
        full[unit.layout.numel :].zero_()
        for name, parameter, view in zip(unit.flat.names, unit.parameters, unit.layout.views(full), strict=True):
            if self._has_gradient(parameter):
                self._collect(parameter, view)
                self._used.add(name)
            else:
                view.zero_()
        self._scatter(
            unit.flat,
            full,
            full.new_empty(unit.layout.chunk),
            unit.label(Word.SCATTER_LAUNCH, self.microbatch),
            unit.label(Word.SCATTER_DONE, self.microbatch),
        )
        self._land(leave=IN_FLIGHT)

    @torch.no_grad()
    def _finish(self) -> None:
        self._free_all()
        for unit in reversed(self.sharded_units):
            pending = any(self._has_gradient(p) for p in unit.parameters)
            if unit.trained and not unit.sent and (unit.ran or pending):
                self._send(unit)
        self._note("the end of the step")
        self._agreed = self._order
        self._settle_usage([i for i, name in enumerate(self.names) if name not in self._used])
        self._restart()

    def _abandon(self) -> None:
        self._free_all()
        self._drain()
        self._restart()

    def _restart(self) -> None:
        self._used, self._order = set(), []
        self._pass += 1
        self._asked = 0
        for unit in self.sharded_units:
            unit.sent = unit.ran = False

    # Holding and freeing

    def _hold(self, wanted: Sequence[ShardedUnit], phase: str) -> None:
        """Launch what is wanted and not held; wait for the first. [Note: the window]"""
        for unit in wanted:
            if not unit.held:
                self._note(f"the gather of {unit.name}")
                with unit.label(Word.GATHER_LAUNCH, self.microbatch, phase):
                    unit.gather(self.comm)
        unit = wanted[0]
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
        """Shards are updated: what a forward pass without a backward pass has left is stale."""
        self._returning = []
        self._free_all()

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """See `Strategy`."""
        return {name: tensor for flat in self.flats for name, tensor in self.assemble(flat, flat.shard).items()}

    def _mark(self, word: Word, unit: ShardedUnit, phase: str) -> None:
        labels.instant(unit.label(word, self.microbatch, phase))

    def _note(self, what: str) -> None:
        """What comes next, in the order that must be the same on all ranks.

        In the first pass, and where this rank leaves the order of the pass before, the ranks compare it: a collective
        that they do not share would block them, or mix up units of one size.
        """
        position = len(self._order)
        self._order.append(what)
        if self._agreed[position : position + 1] != [what]:
            self._agree(what)

    def _agree(self, what: str) -> None:
        """Ask whether all ranks have come to this, through the store, so that the host waits for no device."""
        if self.comm.world_size == 1:
            return
        self._asked += 1
        everyones = self.comm.say(f"{self._topic}/{self._pass}/{self._asked}", what, AGREEMENT_S)
        if everyones is None:
            raise EngineError(
                f"zero3 needs all ranks to run the same units in the same order: here came {what}, "
                "other than in the pass before, and not on all ranks"
            )
        for rank, theirs in enumerate(everyones):
            if theirs != everyones[0]:
                raise EngineError(
                    "zero3 needs all ranks to run the same units in the same order: "
                    f"rank 0 has come to {everyones[0]}, rank {rank} to {theirs}"
                )
