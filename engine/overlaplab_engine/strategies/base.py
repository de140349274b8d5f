"""What strategies share: one model on all ranks, `no_sync`, and a backward pass that ends well or leaves no trace."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from overlaplab_engine import labels
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.models.batches import Batches, place
from overlaplab_engine.models.deferred import materialise
from overlaplab_engine.models.units import Unit, UnitPolicy, by_block, form_units
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.host_link import host_allocation
from overlaplab_engine.options import Need, Option, StrategyOptions, declarations
from overlaplab_engine.options import Traits as Traits
from overlaplab_engine.strategies.gradients.buckets import Bucket, Gradients, assign

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Options(StrategyOptions):
    """The options of all strategies; each uses those that concern it."""

    # torch's own in place of what the command line spells
    param_dtype: torch.dtype | None = None  # type: ignore[assignment]
    reduce_dtype: torch.dtype | None = None  # type: ignore[assignment]
    units: UnitPolicy = by_block  # type: ignore[assignment]
    """The policy that forms the units, which are gathered together; all ranks must have the same one."""
    activation_shape: tuple[int, int, int] | None = None
    """tensor: what layers would pass on, (batch, seq, width), where they sleep and pass a single number."""

    @property
    def caps(self) -> list[int]:
        """The caps in bytes: the first bucket's, then the others'."""
        first = self.bucket_cap_mb if self.first_bucket_mb is None else self.first_bucket_mb
        return [int(first * MIB), int(self.bucket_cap_mb * MIB)]


assert Options.__doc__ is not None
Options.__doc__ += "\n\n" + "\n".join(f"- {name}: {o.help}" for name, o in declarations(Options, Option).items())


class Strategy(ABC):
    """Data parallelism over a replicated model: gradients are the mean over the ranks after `backward`."""

    name: ClassVar[str]
    """Its spelling in `--strategy` and run.json."""
    traits: ClassVar[Traits] = Traits()
    """What it does; it goes into run.json."""
    takes: ClassVar[Collection[str]] = ()
    """Options that it takes though its traits do not meet their `Need`, by `Config`'s names."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Other options that must keep their default, by `Config`'s names, each with the error for whoever sets it."""
    labels_units: ClassVar[bool] = False
    """Whether it writes labels where it uses the units that it gathers."""
    waits_within_torch: ClassVar[bool] = False
    """Whether torch's own code waits for collectives, and not `Work.wait`."""
    _buckets: Sequence[Bucket] = ()
    _local: Sequence[torch.Tensor] = ()
    """What the optimizer updates of each of the `parameters`, where that is a tensor of its own."""
    keeps_last: bool | None = None
    """Whether the last layer stays gathered from its forward into its backward; None if units are not gathered."""

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        """Take over `model`, which must be the same on all ranks; rank 0's values go to all.

        Raises EngineError for an option that it refuses, and on all ranks if the ranks' models differ.
        """
        self.require(options)
        require_same_model(model, comm)
        self.model = model
        self.comm = comm
        self.options = options
        self.gradients = Gradients(torch.float32 if options.main_grad else None)
        self.dtypes = {name: p.dtype for name, p in model.named_parameters()}
        """The types in which parameters are kept and updated, by name."""
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.parameters = [p for _, p in trained]
        self.on_error: Callable[[BaseException], None] = lambda error: None
        """Called with an exception in a pass before the draining, which a stuck rank may hold up for long."""
        self.sends_every_microbatch = self.traits.sends_every_microbatch
        """Whether gradients are sent with each microbatch; else all but the last run in `no_sync`."""
        self.microbatch = 0
        """Number of the microbatch, for labels."""
        self._sync = True
        self._wait_label = labels.span(Word.WAIT)
        self._assembling = False  # whether `state_dict` reads the model
        for module in model.modules():
            module.register_state_dict_pre_hook(self._before_state_dict)  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(self._before_state_dict)  # type: ignore[no-untyped-call]
        comm.broadcast(list(model.buffers()))
        if "parameters" not in self.traits.sharded:  # else each unit is shared before it is sharded
            self._share(list(model.parameters()))

    @classmethod
    def require(cls, config: Any) -> None:
        """EngineError if `config`, a `Config` or `Options`, sets an option that this strategy cannot take."""
        needs = declarations(type(config), Need)
        for name in (field.name for field in fields(config) if getattr(config, field.name) != field.default):
            if name in cls.refuses:
                raise EngineError(cls.refuses[name])
            if name in needs and name not in cls.takes and not needs[name].suits(cls.traits):
                raise EngineError(needs[name].refusal)

    @classmethod
    def variant(cls, options: Options) -> "type[Strategy]":
        """The class that `options` ask for, this one or a subclass."""
        return cls

    @classmethod  # noqa: B027  # most cut nothing
    def cut(cls, model: nn.Module, comm: Communicator, options: Options) -> None:
        """Keep of the model what this rank computes with, before anything is hooked to its parameters."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward pass, with rank 0's buffers if gradients will be synchronised; what the model returns."""
        if self._sync:
            self.comm.broadcast(list(self.model.buffers()))
        return self.model(*args, **kwargs)

    def passes(self, batches: Batches, step: int, microbatches: int) -> torch.Tensor | None:
        """Forward and backward of a step's microbatches, after which gradients are the mean over the ranks.

        Returns this rank's loss, a scalar; None where a rank computes none.
        """
        losses = []
        for microbatch in range(microbatches):
            self.microbatch = microbatch
            send = self.sends_every_microbatch or microbatch == microbatches - 1
            tokens, targets = place(batches.rank_batch(step, microbatch, self.comm.rank), self.comm.device)
            with nullcontext() if send else self.no_sync():
                with labels.span(Word.FORWARD, microbatch=microbatch):
                    loss = self(tokens, targets) / microbatches
                self.backward(loss, microbatch)
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it gradients only accumulate; the next `backward` outside it sends them all."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def backward(self, loss: torch.Tensor, microbatch: int = 0) -> None:
        """Run the backward pass and, unless in `no_sync`, leave every gradient as the mean over the ranks.

        After an exception in it nothing is in flight, all gradients are None, and the next step is right. Ranks on
        which the same pass came through get NaN where this one had sent nothing.
        """
        self.microbatch = microbatch
        try:
            with labels.span(Word.BACKWARD, microbatch=microbatch, sync=int(self._sync)):
                loss.backward()  # type: ignore[no-untyped-call]
        except BaseException as error:
            self.on_error(error)
            if self._sync:
                with suppress(Exception), torch.no_grad():  # a lost peer: the exception on its way says more
                    self._match_others()
            self._abandon()
            self.zero_grad()
            raise
        if self._sync:
            self._finish()

    @torch.no_grad()
    def clip(self, max_norm: float) -> torch.Tensor:
        """Scale the averaged gradients so that their global norm is at most `max_norm`; returns the norm before.

        The norm is added up in at least float32, whatever the gradients' type. Where each rank holds a part of them, it
        is that of all ranks' parts together.
        """
        grads = [(name, g) for name, t in self.named_optimized() if (g := self.gradients.get(t)) is not None]
        parts = [grad for name, grad in grads if self._holds_part(name)]
        square = self._square(parts)
        if (holders := self._part_holders()) is not None:
            with self._wait_label:
                holders.all_reduce_sum(square).wait()
        square += self._square([grad for name, grad in grads if not self._holds_part(name)])
        norm = square.sqrt().squeeze()
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for _, grad in grads:
            scale = scale.to(grad.device)  # offloaded gradients are the host's
            grad.mul_(scale)
        return norm

    def _square(self, grads: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sum of the squares of all elements, (1,)."""
        dtype = torch.float64 if any(p.dtype == torch.float64 for p in self.parameters) else torch.float32
        square = torch.zeros(1, dtype=dtype, device=self.comm.device)
        for grad in grads:
            square += torch.linalg.vector_norm(grad, dtype=dtype).square()
        return square

    def _part_holders(self) -> Communicator | None:
        """The ranks that hold parts of one gradient when the optimizer runs; None if each rank holds all of it."""
        return self.comm.shards if "optimizer" in self.traits.sharded else None

    def _holds_part(self, name: str) -> bool:
        """Whether each of the `_part_holders` holds a part of this parameter's gradient, and not all of it."""
        return "optimizer" in self.traits.sharded

    def optimized(self) -> list[torch.Tensor]:
        """What the optimizer updates, each with its averaged gradient after `backward`."""
        return [tensor for _, tensor in self.named_optimized()]

    def named_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The parameters that this rank computes with, gathered or not, in their unsharded shapes; cut ones as cut."""
        return self.model.named_parameters()

    def named_optimized(self) -> list[tuple[str, torch.Tensor]]:
        """What the optimizer updates, by the parameters' names, for parameter groups: here all parameters."""
        return list(zip(self.names, self._local or self.parameters, strict=True))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or fill them with zeros; call it before the passes of each update."""
        for tensor in {id(t): t for t in self._gradient_holders()}.values():
            for name in ("grad", "main_grad"):
                if (old := getattr(tensor, name, None)) is not None:
                    setattr(tensor, name, None if set_to_none else old.zero_())

    def _gradient_holders(self) -> list[torch.Tensor]:
        """What may have gradients between two updates."""
        return [*self.parameters, *self.optimized()]

    def update(self, step: Callable[[], None]) -> None:
        """Make the optimizer's update, `step`; with `offload` on the host."""
        with host_allocation() if self.options.offload else nullcontext():
            step()

    def updated(self) -> None:  # noqa: B027  # most have nothing to do
        """After the optimizer's update: bring the parameters to where the next forward pass needs them."""

    def settle(self) -> None:  # noqa: B027
        """Wait for what `updated` left in flight, so that the parameters may be read."""

    def close(self) -> None:  # noqa: B027
        """End what runs beside the training; every rank must call it after its last step."""

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """All parameters by name, up to date; every rank must call it."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        """What `model.state_dict()` is in one process, up to date, tied names and buffers included.

        Every rank must call it, and gets all of it; tensors may share the model's memory.
        """
        full = self.full_parameters()
        self._assembling = True
        try:
            state = self.model.state_dict(keep_vars=True)
        finally:
            self._assembling = False
        # Only now: FSDP2 has just freed what a forward pass without a backward pass had left gathered.
        names = {id(p): name for name, p in self.model.named_parameters()}
        return {
            key: full[names[id(value)]] if id(value) in names else value.detach() if torch.is_tensor(value) else value
            for key, value in state.items()
        }

    def _before_state_dict(self, module: nn.Module, *_: Any) -> None:
        """Somebody reads or loads the `state_dict` of the model, or of a module in it: no update may be on its way."""
        self.settle()

    def units(self) -> list[Unit]:
        """The model's units by `options.units`; zero3 gathers and frees them one by one."""
        return form_units(self.model, self.options.units)

    def _form_buckets(self, order: Iterable[int], keys: Sequence[object], caps: Sequence[int]) -> list[Bucket]:
        """Buckets of the trained parameters in this order, see `assign`."""
        assigned = assign(order, [self.gradients.nbytes(p) for p in self.parameters], keys, caps)
        return [
            Bucket.make(index, members, self.parameters, self.names, self.gradients.dtype(self.parameters[members[0]]))
            for index, members in enumerate(assigned)
        ]

    def _share(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every rank rank 0's values of these parameters, which may be deferred."""
        for parameter in parameters:
            materialise(parameter)
        self.comm.broadcast(parameters)

    def _agree_on_order(self, arrivals: list[int]) -> list[int]:
        """Return rank 0's order of arrival, then what did not arrive, in reverse order; every rank must call it."""
        arrived = set(arrivals)
        missing = [i for i in reversed(range(len(self.parameters))) if i not in arrived]
        return self.comm.broadcast_ints(arrivals + missing)

    def _ask_usage(self, unused: Collection[int]) -> Callable[[], set[int]]:
        """Tell the ranks which parameters this one has no gradient for; returns what waits for those that no rank has.

        Only a rank with some `unused` waits for its device to answer, as in torch's DDP (finalize_bucket_dense,
        torch/csrc/distributed/c10d/reducer.cpp).
        """
        used = torch.ones(len(self.parameters), dtype=torch.int32, device=self.comm.device)
        for i in unused:
            used[i] = 0
        work = self.comm.all_reduce_max(used)

        def answer() -> set[int]:
            work.wait()
            return {i for i, somewhere in enumerate(used.tolist()) if not somewhere} if unused else set()

        return answer

    def _second_gradient_error(self, i: int) -> EngineError:
        """The error for another gradient of parameter `i` in one pass, when the first may have been sent."""
        return EngineError(
            f"{self.name}: {self.names[i]} got a gradient twice in a backward pass; checkpoint with use_reentrant=False"
        )

    @property
    def order(self) -> list[str] | None:
        """The parameters' names in the order in which gradients are added up, if it was learnt and another run, going
        on from a checkpoint, must keep it to the last bit."""
        return None

    def rebuild_as(self, order: list[str]) -> None:  # noqa: B027
        """Take over another run's `order`, before there are any gradients."""

    @property
    def buckets(self) -> list[tuple[int, list[str]]]:
        """Bytes and parameter names of each bucket as it is launched now; none for strategies without buckets."""
        return [(bucket.nbytes, [self.names[m] for m in bucket.members]) for bucket in self._buckets]

    @property
    def stages(self) -> list[dict[str, Any]] | None:
        """The stages of a pipeline in order: the `rank` along the `pp` axis that holds it, and the names of its
        `units`; None without a pipeline."""
        return None

    @abstractmethod
    def _finish(self) -> None:
        """After a synchronised backward pass: wait until every gradient is the mean."""

    def _match_others(self) -> None:  # noqa: B027
        """Launch as NaN what the other ranks' collectives wait for: after an exception, on a rank that was to send."""

    @abstractmethod
    def _abandon(self) -> None:
        """After an exception: drain what is in flight and expect a new backward pass."""


S = TypeVar("S", bound=Strategy)

REGISTERED: dict[str, type[Strategy]] = {}


def register(strategy: type[S]) -> type[S]:
    """A class decorator: from now on `Config(strategy=NAME)`, and `--strategy NAME` in this process, mean this class.

    Its `name`, `traits`, `takes` and `refuses` are all that the engine, run.json and the analyser ask of it.
    """
    REGISTERED[strategy.name] = strategy
    return strategy


def require_same_model(model: nn.Module, comm: Communicator) -> None:
    """EngineError on all ranks if the ranks' parameters or buffers differ in anything but their values."""
    mine = [_describe(name, p) + ("" if p.requires_grad else " frozen") for name, p in model.named_parameters()]
    mine += [_describe(f"buffer {name}", buffer) for name, buffer in model.named_buffers()]
    pairs = zip_longest(comm.broadcast_object(mine), mine, fillvalue="nothing more")
    first_difference = next(((theirs, ours) for theirs, ours in pairs if theirs != ours), None)
    for rank, difference in enumerate(comm.gather_objects(first_difference)):
        if difference is not None:
            raise EngineError(f"the models differ: rank 0 has {difference[0]}, rank {rank} has {difference[1]}")


def _describe(name: str, tensor: torch.Tensor) -> str:
    return f"{name} {list(tensor.shape)} {labels.dtype_name(tensor.dtype)}"
