"""What ZeRO-1 and ZeRO-2 share: every rank has all parameters, and the optimizer's work and state are partitioned.

Parameters lie in flat buckets, in reverse order, as gradients are expected. A rank updates its part of every bucket,
and an all-gather brings it the others' parts, which the next forward pass can hide as the backward pass hides the
gradients (Megatron-LM's `overlap_param_gather`, megatron/core/distributed/param_and_grad_buffer.py).
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast as Span

from overlaplab_engine import labels
from overlaplab_engine.labels import Word
from overlaplab_engine.models.units import Unit
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.base import Options
from overlaplab_engine.strategies.gradients.buckets import Marks, assign
from overlaplab_engine.strategies.gradients.hooks import after_accumulation
from overlaplab_engine.strategies.sharding.absent import early_read_error, mark_absent, mark_present
from overlaplab_engine.strategies.sharding.sharded import Sharded
from overlaplab_engine.strategies.sharding.shards import Flat, Layout


@dataclass(slots=True)
class ShardedBucket:
    """Parameters in one flat buffer, of which this rank updates a part."""

    index: int
    """In launch order."""
    members: list[int]
    """Positions of the parameters in the strategy's list, in the order of the buffer."""
    nbytes: int
    """Bytes of the gradients, without padding."""
    full: torch.Tensor
    """(padded,), the parameters' memory."""
    flat: Flat
    marks: Marks
    gather_label: Span
    wait_label: Span
    gradients: torch.Tensor | None = None
    """(padded,), where there is room for them."""
    views: list[torch.Tensor] = field(default_factory=list)
    """Each parameter's gradient in it."""
    missing: set[int] = field(default_factory=set)
    """Members whose gradient has not arrived in this backward pass."""


class Partitioned(Sharded):
    """Gradients move to their buckets as they arrive; after the optimizer's update each bucket's all-gather follows.

    With `overlap_param_gather` the next forward pass runs meanwhile: when a module of a unit is called, it waits for
    the buckets that the unit's parameters lie in. EngineError if a forward pass reads them before; who reads them
    outside of it waits, too.
    """

    _buckets: list[ShardedBucket]  # type: ignore[assignment]

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        super().__init__(model, comm, options)
        nbytes = [self.gradients.nbytes(p) for p in self.parameters]
        keys = [(p.device, p.dtype) for p in self.parameters]
        order = reversed(range(len(self.parameters)))
        self._buckets = [
            self._make_bucket(index, members) for index, members in enumerate(assign(order, nbytes, keys, options.caps))
        ]
        self.flats = [bucket.flat for bucket in self._buckets]
        # Each parameter's bucket and place in it.
        self._slots = {member: (bucket, k) for bucket in self._buckets for k, member in enumerate(bucket.members)}
        self._bucket_index = {name: bucket.index for bucket in self._buckets for name in bucket.flat.names}
        self._gathers: dict[int, Work] = {}
        for i, parameter in enumerate(self.parameters):
            after_accumulation(parameter, partial(self._take_gradient, i))
        self._expected: set[str] = set()  # units whose parameters must not be read before `_receive`
        self._units = [unit for unit in map(self._without_frozen, self.units()) if unit.parameters]
        for unit in self._units:
            for module in unit.modules:
                module.register_forward_pre_hook(partial(self._before_forward, unit), prepend=True)
        self._expect_parameters()
        for module in model.modules() if self._host is not None else ():
            module.register_load_state_dict_post_hook(self._take_loaded)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _take_loaded(self, module: nn.Module, _: Any) -> None:
        """A state was loaded into the device's parameters of a module: the host's copies go on from it."""
        loaded = {id(parameter) for parameter in module.parameters(recurse=False)}
        members = [member for member, parameter in enumerate(self.parameters) if id(parameter) in loaded]
        for index in sorted({self._slots[member][0].index for member in members}):
            flat = self._buckets[index].flat
            self._wait_for_device_copy(flat)
            flat.shard.copy_(flat.resident)

    def _make_bucket(self, index: int, members: list[int]) -> ShardedBucket:
        parameters = [self.parameters[m] for m in members]
        names = [self.names[m] for m in members]
        nbytes = sum(self.gradients.nbytes(p) for p in parameters)
        layout = Layout([p.shape for p in parameters], self.comm.rank, self.comm.world_size)
        full = torch.zeros(layout.padded, dtype=parameters[0].dtype, device=parameters[0].device)
        for parameter, view in zip(parameters, layout.views(full), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        return ShardedBucket(
            index,
            members,
            nbytes,
            full,
            Flat(names, layout, layout.local_chunk(full), [True] * len(members), offload=self.options.offload),
            Marks.for_bucket(index, nbytes, names),
            labels.span(Word.PARAM_GATHER_LAUNCH, bucket=index, bytes=full.nbytes),
            labels.span(Word.PARAM_GATHER_WAIT, bucket=index),
            missing=set(members),
        )

    # The backward pass

    def _take_gradient(self, i: int, parameter: torch.Tensor) -> None:
        if not self._sync:
            self.gradients.place(parameter, None, 1.0)
            return
        if i not in self._slots[i][0].missing:
            raise self._second_gradient_error(i)
        self._place_gradient(i)

    def _place_gradient(self, i: int) -> None:
        """Put parameter `i`'s gradient, or zeros for none, into its bucket."""
        bucket, k = self._slots[i]
        if len(bucket.missing) == len(bucket.members):
            self._open_bucket(bucket)
        if self._has_gradient(self.parameters[i]):
            self._move_prescaled(self.parameters[i], bucket.views[k])
        else:
            bucket.views[k].zero_()
        bucket.missing.discard(i)
        if not bucket.missing:
            labels.instant(bucket.marks.ready)
            self._mark_full(bucket)

    @abstractmethod
    def _open_bucket(self, bucket: ShardedBucket) -> None:
        """The bucket's first gradient is about to arrive: see to it that there is room."""

    @abstractmethod
    def _mark_full(self, bucket: ShardedBucket) -> None:
        """The bucket holds all its gradients."""

    def _make_room(self, bucket: ShardedBucket) -> None:
        dtype = self.gradients.dtype(self.parameters[bucket.members[0]])
        bucket.gradients = torch.empty_like(bucket.full, dtype=dtype)
        bucket.gradients[bucket.flat.layout.numel :].zero_()
        bucket.views = bucket.flat.layout.views(bucket.gradients)

    def _place_missing(self) -> list[int]:
        """Place what did not arrive; returns the numbers of the parameters that this rank has no gradient for."""
        unused = []
        for bucket in self._buckets:
            for i in sorted(bucket.missing):
                if not self._has_gradient(self.parameters[i]):
                    unused.append(i)
                self._place_gradient(i)
        return unused

    # Parameters

    def updated(self) -> None:
        """All-gather the updated parameters, those that the next forward pass needs first at first."""
        self.settle()  # of buckets that no module has needed
        self._expect_parameters()
        self._copy_to_device([bucket.flat for bucket in reversed(self._buckets)])
        for bucket in reversed(self._buckets):
            self._wait_for_device_copy(bucket.flat)
            with bucket.gather_label:
                self._gathers[bucket.index] = self.comm.all_gather(bucket.full, bucket.flat.resident)
        if not self.options.overlap_param_gather:
            self.settle()

    def settle(self) -> None:
        for unit in self._units:
            self._receive(unit)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        self.settle()
        return super().full_parameters()

    def _without_frozen(self, unit: Unit) -> Unit:
        """The unit without its frozen parameters, which nobody updates."""
        return replace(unit, parameters={name: p for name, p in unit.parameters.items() if p.requires_grad})

    def _expect_parameters(self) -> None:
        for unit in self._units:
            self._expected.add(unit.name)
            mark_absent(unit.parameters.values(), partial(self._read_early, unit))

    def _receive(self, unit: Unit) -> None:
        """Wait for the buckets with a unit's parameters."""
        if unit.name not in self._expected:
            return
        self._expected.remove(unit.name)
        buckets = {self._bucket_index[name] for name in unit.parameters}
        for index in sorted(buckets & self._gathers.keys(), reverse=True):
            with self._buckets[index].wait_label:
                self._gathers.pop(index).wait()
        mark_present(unit.parameters.values())

    def _before_forward(self, unit: Unit, module: nn.Module, inputs: Any) -> None:
        self._receive(unit)

    def _read_early(self, unit: Unit) -> None:
        """A unit's parameters are read, and none of its modules has been called since the update."""
        if self._in_forward:
            raise early_read_error(self.name, unit.name)
        self._receive(unit)

    # The end of a pass

    @torch.no_grad()
    def _finish(self) -> None:
        unused = self._place_missing()
        self._send_remaining()
        self._finish_gradients(unused)
        self._restart()

    def _send_remaining(self) -> None:
        """All buckets are full: send those that have not been sent."""

    def _match_others(self) -> None:
        for bucket in (bucket for bucket in self._buckets if bucket.missing):
            if len(bucket.missing) == len(bucket.members):
                self._open_bucket(bucket)
            bucket.missing = set()
            assert bucket.gradients is not None
            bucket.gradients.fill_(torch.nan)
            self._mark_full(bucket)
        self._send_remaining()
        self._finish_gradients(())

    def _abandon(self) -> None:
        self._drain()
        self._restart()

    def _restart(self) -> None:
        for bucket in self._buckets:
            bucket.missing = set(bucket.members)
