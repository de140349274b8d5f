"""Models trained by a strategy and by one process side by side, for scenarios on real ranks."""

import copy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from overlaplab_engine.errors import EngineError
from overlaplab_engine.models.batches import Batches
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.optimizer import AdamW, gradient
from overlaplab_engine.strategies import Options, Strategy, class_of, make
from overlaplab_engine.strategies.sharding.sharded import Sharded
from overlaplab_engine.strategies.torch_ddp import TorchDDP
from overlaplab_engine.strategy_names import StrategyName
from strategies import ALONE
from torch import nn
from torch.distributed.fsdp import FSDPModule

REPLICATED = (StrategyName.NAIVE, StrategyName.PER_PARAM, StrategyName.BUCKETED)
PARTITIONED = (StrategyName.ZERO1, StrategyName.ZERO2)
SHARDED = (*PARTITIONED, StrategyName.ZERO3)
OURS = (*REPLICATED, *SHARDED)
DATA_PARALLEL = tuple(
    name for name in StrategyName if not (class_of(name).traits.cuts_layers or class_of(name).traits.stages)
)
"""Those that need no other axis of the mesh."""
COLLECTIVE = tuple(name for name in ALONE if name is not StrategyName.TORCH_FSDP2)
"""Those whose ranks all do the same, by the library's collectives."""
STRATEGIES = (*COLLECTIVE, StrategyName.PARAMETER_SERVER)  # torch-fsdp2 has a file of its own
ANY_ORDER = (*REPLICATED, *PARTITIONED, StrategyName.PARAMETER_SERVER, StrategyName.TORCH_DDP)
"""Those for which the ranks may use different parts of the model, in different orders."""
FSDP2_GOES_ON = hasattr(FSDPModule, "reset_iter_state")
"""Whether FSDP2 can, after an exception, and finds tensors in dataclasses: new in torch 2.13."""
SMALL_CAP_MB = 0.004  # several buckets for these small models
SHAPE = {"layers": 2, "width": 16, "heads": 2, "seq": 8, "vocab": 32}
BATCHES = Batches(seed=7, vocab=32, seq=8, batch=2)


def global_batch(step: int, microbatch: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ranks' batches, concatenated in rank order: what one process would train on."""
    tokens, targets = zip(*(BATCHES.rank_batch(step, microbatch, rank) for rank in range(world_size)), strict=True)
    return torch.cat(tokens), torch.cat(targets)


@dataclass
class Trial:
    """A model trained by a strategy and by one process side by side."""

    comm: Communicator
    name: StrategyName
    model: nn.Module
    inputs: Callable[[int, int, int], tuple[Any, ...]]  # step, microbatch, rank
    whole: Callable[[int, int], tuple[Any, ...]] | None = None  # all ranks' inputs in one, where they can be
    accumulate: int = 1
    clip: float | None = None
    main_grad: bool = False
    find_unused: bool = False
    offload: bool = False

    def __post_init__(self) -> None:
        self.alone = copy.deepcopy(self.model)
        options = Options(bucket_cap_mb=SMALL_CAP_MB, main_grad=self.main_grad, offload=self.offload)
        if self.find_unused and self.name is StrategyName.TORCH_DDP:
            self.strategy: Strategy = TorchDDP(self.model, self.comm, options, find_unused=True)
        else:
            self.strategy = make(self.name, self.model, self.comm, options)
        self.optimizer = AdamW(self.strategy.optimized(), lr=1e-3)
        self.alone_optimizer = AdamW(self.alone.parameters(), lr=1e-3)

    def backward(self, step: int) -> None:
        for m in range(self.accumulate):
            send = self.strategy.sends_every_microbatch or m == self.accumulate - 1
            with nullcontext() if send else self.strategy.no_sync():
                loss = self.strategy(*self.inputs(step, m, self.comm.rank)) / self.accumulate
                self.strategy.backward(loss, m)
        if self.clip is not None:
            self.strategy.clip(self.clip)

    def backward_alone(self, step: int) -> None:
        n = self.comm.world_size
        for m in range(self.accumulate):
            if self.whole is not None:
                (self.alone(*self.whole(step, m)) / self.accumulate).backward()
            else:
                sum(self.alone(*self.inputs(step, m, r)) / n / self.accumulate for r in range(n)).backward()
        if self.clip is not None:
            for p in self.alone.parameters():  # what torch clips twice if two gradients share storage
                p.grad = None if p.grad is None else p.grad.clone()
            torch.nn.utils.clip_grad_norm_(self.alone.parameters(), self.clip)

    def step(self, step: int, set_to_none: bool = True) -> None:
        """Both go one step, and their gradients are compared in float64's terms before the update."""
        self.strategy.zero_grad(set_to_none)
        self.alone.zero_grad(set_to_none)
        self.backward(step)
        self.backward_alone(step)
        compare64(gradients(self.strategy), self.alone)
        self.update()
        self.alone_optimizer.step()

    def run(self, steps: int = 3) -> None:
        """So many steps, by default one before the buckets are rebuilt and two after; then the parameters must be equal
        too.
        """
        for step in range(steps):
            self.step(step)
        got = self.strategy.full_parameters()
        for name, want in self.alone.named_parameters():
            off = float((got[name] - want).detach().abs().max())
            assert off <= 1e-10, f"{name}: off by {off:.1e}"

    def update(self) -> None:
        self.optimizer.step()
        self.strategy.updated()


def gradients(strategy: Strategy) -> dict[str, torch.Tensor | None]:
    """The averaged gradients by name, whoever holds them."""
    if strategy.traits.gradients == "server":
        return strategy.comm.broadcast_object(local_gradients(strategy))
    if not isinstance(strategy, Sharded):
        return {n: gradient(p) for n, p in strategy.model.named_parameters()}
    everyones = gathered(strategy.comm.shards, gradients_here(strategy))  # a parameter's pieces lie with ranks in order
    found: dict[str, torch.Tensor | None] = dict.fromkeys(n for n, _ in strategy.model.named_parameters())
    for name, p in strategy.model.named_parameters():
        parts = [ours[name] for ours in everyones if name in ours]
        assert len({part is None for part in parts}) <= 1, f"{name}: some ranks have a gradient, some have none"
        if parts and parts[0] is not None:
            found[name] = torch.cat(parts).view(p.shape)
    return found


def gathered(comm: Communicator, tensors: dict[str, torch.Tensor | None]) -> list[dict[str, torch.Tensor | None]]:
    """Every rank's vectors. They travel as one: pickling each would take longer than a small model's step."""
    sizes = {name: None if t is None else len(t) for name, t in tensors.items()}
    everyones = comm.gather_objects(
        (sizes, torch.cat([t for t in tensors.values() if t is not None] or [torch.empty(0)]))
    )
    found = []
    for sizes, joined in everyones:
        parts = iter(joined.split([size for size in sizes.values() if size is not None]))
        found.append({name: None if size is None else next(parts) for name, size in sizes.items()})
    return found


def gradients_here(strategy: Strategy) -> dict[str, torch.Tensor | None]:
    """This rank's averaged gradients, its pieces if they are sharded; without talking to other ranks."""
    if isinstance(strategy, Sharded):
        return {name: gradient(piece) for flat in strategy.flats for name, piece in flat.pieces.items()}
    return local_gradients(strategy)


def local_gradients(strategy: Strategy) -> dict[str, torch.Tensor | None]:
    """What `no_sync` has added up on this rank."""
    return {n: gradient(p) for n, p in strategy.model.named_parameters()}


def compare64(got: dict[str, torch.Tensor | None], alone: nn.Module) -> None:
    wanted = {name: p.grad for name, p in alone.named_parameters()}
    largest = max(float(g.abs().max()) for g in wanted.values() if g is not None)
    for name, want in wanted.items():
        assert (got[name] is None) == (want is None), f"{name}: {got[name]} for {want}"
        if want is not None:
            off = float((got[name] - want).abs().max())
            assert off <= 1e-12 * largest, f"{name}: off by {off / largest:.1e} of the largest gradient"


def norm_off(strategy: Strategy, wanted: list[torch.Tensor]) -> float:
    got = torch.cat([g.double().flatten() for g in gradients(strategy).values()])
    want = torch.cat([g.double().flatten() for g in wanted])
    return float((got - want).norm() / want.norm())


def transformer(tied: bool = False, checkpointing: bool = False, dtype: torch.dtype = torch.float64) -> Transformer:
    return Transformer(**SHAPE, tied=tied, checkpointing=checkpointing, seed=3).to(dtype)


def transformer_trial(
    comm: Communicator, name: StrategyName, *, tied: bool = False, checkpointing: bool = False, **more: Any
) -> Trial:
    return Trial(
        comm,
        name,
        transformer(tied, checkpointing),
        lambda step, m, rank: BATCHES.rank_batch(step, m, rank),
        lambda step, m: global_batch(step, m, comm.world_size),
        **more,
    )


class Branches(nn.Module):
    """Linear maps, of which each call names those to use, in order; some twice, one frozen."""

    def __init__(self, frozen: str = "") -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.maps = nn.ModuleDict({name: nn.Linear(6, 6) for name in "abcd"})
        self.double()
        for name, p in self.maps.named_parameters():
            p.requires_grad_(not (frozen and name.startswith(frozen)))

    def forward(self, x: torch.Tensor, uses: str) -> torch.Tensor:
        return sum(torch.tanh(self.maps[name](x)) * (i + 1) for i, name in enumerate(uses)).square().mean()


def branches_trial(comm: Communicator, name: StrategyName, uses: Callable[[int, int, int], str], **more: Any) -> Trial:
    def inputs(step: int, m: int, rank: int) -> tuple[torch.Tensor, str]:
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(100 * step + 10 * m + rank)).double()
        return x, uses(step, m, rank)

    model = more.pop("model", None) or Branches(more.pop("frozen", ""))
    return Trial(comm, name, model, inputs, find_unused=True, **more)


def idle_trial(comm: Communicator, name: StrategyName) -> Trial:
    """A model with a parameter that nobody uses, and clipping: all that a step can wait for."""
    model = Branches()
    model.idle = nn.Parameter(torch.ones(3, dtype=torch.float64))
    return branches_trial(comm, name, lambda step, m, rank: "abd", model=model, clip=0.01)


class Sum(nn.Module):
    """Autograd gives both parameters the same storage for their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(4, 6, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(4, 6, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((self.a.flatten() + self.b.flatten()) * x).sum()


def sum_trial(comm: Communicator, name: StrategyName, **more: Any) -> Trial:
    return Trial(comm, name, Sum(), lambda step, m, rank: (torch.arange(24.0).double() + step + rank,), **more)


class Trap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("the trap")


class Trapped(Branches):
    """Raises in the backward pass of "!", when some gradients have arrived."""

    def forward(self, x: torch.Tensor, uses: str) -> torch.Tensor:
        if uses.startswith("!"):
            return super().forward(Trap.apply(self.maps["a"](x)), uses[1:])
        return super().forward(x, uses)


class Done:
    def wait(self) -> None: ...

    def is_completed(self) -> bool:
        return True


def require_whole_parameters(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Each says that it cannot update the parts that it was given."""
    for optimizer in optimizers:
        name = type(optimizer).__name__
        with pytest.raises(EngineError, match=rf"^{name} needs whole parameters, and this rank updates parts"):
            optimizer.step(lambda: 0.0)


def expect_failure(comm: Communicator, run: Callable[[], None]) -> None:
    """With one rank these mutants change nothing."""
    if comm.world_size == 1:
        run()
        return
    with pytest.raises(AssertionError, match="off by"):
        run()
