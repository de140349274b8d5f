"""One unit's parameters in zero3: sharded at rest, gathered into one flat buffer while they are used.

FSDP's FlatParameter (Zhao et al. 2023, arXiv 2304.11277, §3.2.3 and §4.2; torch/distributed/fsdp/_flat_param.py).

[Note: the same storage]
A parameter's memory is a view of its unit's flat buffer, whose storage is resized to nothing when the unit is freed and
back before it is gathered. So whatever autograd saved, views too, sees the values again. While its unit is sharded, a
parameter is absent, see `overlaplab_engine.strategies.sharding.absent`; autograd would read NaN everywhere (0 for
integers).
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import cache, partial

import torch
from torch._C._profiler import _RecordFunctionFast as Span

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.models.deferred import hollow_like, materialise
from overlaplab_engine.models.units import Unit
from overlaplab_engine.network.communicator import Communicator, Work
from overlaplab_engine.strategies.gradients.buckets import Gradients
from overlaplab_engine.strategies.sharding.absent import mark_absent, mark_present
from overlaplab_engine.strategies.sharding.shards import Flat, Layout


class ShardState(Enum):
    """What a rank has of a unit's parameters, beside its shard."""

    SHARDED = auto()
    """Nothing: their memory is free."""
    GATHERING = auto()
    """Memory for all of them, which are on their way."""
    GATHERED = auto()
    """All of them."""


class ShardedUnit:
    """One unit's parameters: this rank's part always, all of them while the unit is gathered."""

    def __init__(
        self,
        unit: Unit,
        comm: Communicator,
        gradients: Gradients,
        on_read: "Callable[[ShardedUnit], None]",
        dtype: torch.dtype | None = None,
        offload: bool = False,
    ) -> None:
        """Take over the parameters, with rank 0's values, and free what other ranks own.

        The shard keeps their type; from now on they have `dtype`, if one is given and they are floating-point numbers.
        With `offload` the optimizer updates a copy of the shard on the host. `gradients` tells the type in which theirs
        are sent. Deferred parameters are materialised here, one by one. `on_read` is called before a parameter is read
        that is not here; it gathers the unit, or raises. EngineError if they have several dtypes.
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
        self.stays_gathered = unit.kept
        """From the forward into the backward pass."""
        self.parameters = parameters
        self.trained = any(p.requires_grad for p in parameters)
        self.layout = Layout([p.shape for p in parameters], comm.shards.rank, comm.shards.world_size)
        self.state = ShardState.GATHERED
        self._gather_work: Work | None = None
        self.active = 0
        """How many of its modules have begun their forward pass and not ended it."""
        self.uses = 0
        """Forward passes through its modules whose backward pass has not ended."""
        self.read_elsewhere = False
        """Whether other modules read its parameters after it was used, as in a functional call of a tied weight."""
        self.ran = False
        """Whether it was used since gradients were last sent."""
        self.sent = False
        """Whether the gradients of this pass are on their way."""
        self.label = cache(self._make_label)
        self._on_read = partial(on_read, self)
        self._shard(unit, comm, dtype, offload)
        self.gradient_dtype = gradients.dtype(self.full)
        """The type in which gradients are sent."""

    def _shard(self, unit: Unit, comm: Communicator, dtype: torch.dtype | None, offload: bool) -> None:
        """Move the parameters to a flat buffer, share rank 0's, keep this rank's part and free the rest."""
        first = self.parameters[0]
        whole = torch.zeros(self.layout.padded, dtype=first.dtype, device=first.device)
        for parameter, view in zip(self.parameters, self.layout.views(whole), strict=True):
            materialise(parameter)
            view.copy_(parameter.detach())
            parameter.data = hollow_like(parameter)
        comm.broadcast([whole])
        shard = self.layout.local_chunk(whole).clone()
        trained = [p.requires_grad for p in self.parameters]
        self.flat = Flat(list(unit.parameters), self.layout, shard, trained, offload=offload)
        self.full = torch.empty_like(whole, dtype=dtype if whole.is_floating_point() else None)
        self._views = self.layout.views(self.full)
        self._hollows = [hollow_like(view) for view in self._views]
        self.free()

    def gather(self, comm: Communicator) -> None:
        """Launch the all-gather of the full parameters."""
        self.full.untyped_storage().resize_(self.full.nbytes)
        self.state = ShardState.GATHERING
        shard = self.flat.resident
        if shard.dtype != self.full.dtype:
            with torch.no_grad():
                shard = self.layout.local_chunk(self.full).copy_(shard)
        self._gather_work = comm.shards.all_gather(self.full, shard)

    def wait(self) -> None:
        """Wait for the gather under way, if there is one; on CUDA, make the stream wait."""
        work, self._gather_work = self._gather_work, None
        if work is not None:
            work.wait()
            self._point_to(self._views)
            self.state = ShardState.GATHERED

    def free(self) -> None:
        """Give the full parameters' memory back."""
        self._point_to(self._hollows)
        mark_absent(self.parameters, self._on_read)
        self.full.untyped_storage().resize_(0)
        self.state = ShardState.SHARDED

    def _point_to(self, values: Sequence[torch.Tensor]) -> None:
        mark_present(self.parameters)
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.data = value

    def empty_gradients(self) -> torch.Tensor:
        """Memory for the unit's full gradients, (padded,), of which only the padding is set."""
        full = torch.empty_like(self.full, dtype=self.gradient_dtype)
        full[self.layout.numel :].zero_()
        return full

    def _make_label(self, word: Word, microbatch: int, phase: str = "") -> Span:
        values: dict[str, str | int] = {"unit": self.name, "microbatch": microbatch}
        if phase:
            values["phase"] = phase
        if word in (Word.GATHER_LAUNCH, Word.FREE):
            values["bytes"] = self.full.nbytes
        if word is Word.SCATTER_LAUNCH:
            values["bytes"] = self.layout.padded * self.gradient_dtype.itemsize
        if word is Word.REPLICA_LAUNCH:
            values["bytes"] = self.layout.chunk * self.gradient_dtype.itemsize
        return labels.span(word, **values)
