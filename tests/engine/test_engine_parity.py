"""Every strategy against one process, on real gloo processes: once per world size, all scenarios inside.

The ranks run this file as a script; each scenario is a test.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from engine_ranks import Scenarios, run_ranks
from torch import nn

from engine.comm import Communicator
from engine.config import StrategyName
from engine.data import Batches
from engine.errors import EngineError
from engine.model import Transformer
from engine.optimizer import AdamW, gradient
from engine.strategies import Options, Strategy, make
from engine.strategies.torch_ddp import TorchDDP

WORLD_SIZES = (1, 2, 3)
STRATEGIES = tuple(StrategyName)
OURS = (StrategyName.NAIVE, StrategyName.PER_PARAM, StrategyName.BUCKETED)
SMALL_CAP_MB = 0.004  # several buckets for these small models
SHAPE = {"layers": 2, "width": 16, "heads": 2, "seq": 8, "vocab": 32}
BATCHES = Batches(seed=7, vocab=32, seq=8, batch=2)

scenario = Scenarios()


# What one process would do


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

    def __post_init__(self) -> None:
        self.alone = copy.deepcopy(self.model)
        options = Options(bucket_cap_mb=SMALL_CAP_MB, main_grad=self.main_grad)
        if self.find_unused and self.name is StrategyName.TORCH_DDP:
            self.strategy: Strategy = TorchDDP(self.model, self.comm, options, find_unused=True)
        else:
            self.strategy = make(self.name, self.model, self.comm, options)
        self.optimizer = AdamW(self.model.parameters(), lr=1e-3)
        self.alone_optimizer = AdamW(self.alone.parameters(), lr=1e-3)

    def backward(self, step: int) -> None:
        for m in range(self.accumulate):
            with nullcontext() if m == self.accumulate - 1 else self.strategy.no_sync():
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
                p.grad = p.grad.clone()
            torch.nn.utils.clip_grad_norm_(self.alone.parameters(), self.clip)

    def step(self, step: int, set_to_none: bool = True) -> None:
        """Both go one step, and their gradients are compared in float64's terms before the update."""
        self.optimizer.zero_grad(set_to_none)
        self.alone_optimizer.zero_grad(set_to_none)
        self.backward(step)
        self.backward_alone(step)
        compare64(self.model, self.alone)
        self.optimizer.step()
        self.alone_optimizer.step()


def compare64(model: nn.Module, alone: nn.Module) -> None:
    wanted = {name: p.grad for name, p in alone.named_parameters()}
    largest = max(float(g.abs().max()) for g in wanted.values() if g is not None)
    for name, p in model.named_parameters():
        want = wanted[name]
        assert (p.grad is None) == (want is None), f"{name}: {p.grad} for {want}"
        if want is not None:
            off = float((p.grad - want).abs().max())
            assert off <= 1e-12 * largest, f"{name}: off by {off / largest:.1e} of the largest gradient"


def norm_off(model: nn.Module, wanted: list[torch.Tensor]) -> float:
    got = torch.cat([gradient(p).double().flatten() for p in model.parameters()])
    want = torch.cat([g.double().flatten() for g in wanted])
    return float((got - want).norm() / want.norm())


def transformer(tied: bool = False, dtype: torch.dtype = torch.float64) -> Transformer:
    return Transformer(**SHAPE, tied=tied, seed=3).to(dtype)


def transformer_trial(comm: Communicator, name: StrategyName, *, tied: bool = False, **more: Any) -> Trial:
    return Trial(
        comm,
        name,
        transformer(tied),
        lambda step, m, rank: BATCHES.of_rank(step, m, rank),
        lambda step, m: BATCHES.of_all(step, m, comm.world_size),
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
        for p in self.maps[frozen].parameters() if frozen else ():
            p.requires_grad_(False)

    def forward(self, x: torch.Tensor, uses: str) -> torch.Tensor:
        return sum(torch.tanh(self.maps[name](x)) * (i + 1) for i, name in enumerate(uses)).square().mean()


def branches_trial(comm: Communicator, name: StrategyName, uses: Callable[[int, int, int], str], **more: Any) -> Trial:
    def inputs(step: int, m: int, rank: int) -> tuple[torch.Tensor, str]:
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(100 * step + 10 * m + rank)).double()
        return x, uses(step, m, rank)

    return Trial(comm, name, Branches(more.pop("frozen", "")), inputs, find_unused=True, **more)


# Parity


@scenario(*STRATEGIES)
def float64(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name)
    for step in range(10):
        trial.step(step)
    for (n, p), q in zip(trial.model.named_parameters(), trial.alone.parameters(), strict=True):
        assert float((p - q).detach().abs().max()) <= 1e-10, n


@scenario(*STRATEGIES)
def accumulation(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, accumulate=3)
    for step in range(5):
        trial.step(step)


@scenario(*STRATEGIES)
def tied_weights_clipped(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, tied=True, clip=0.01)
    for step in range(5):
        trial.step(step)


@scenario(*STRATEGIES)
def float32(comm: Communicator, name: StrategyName) -> None:
    model = transformer(dtype=torch.float32)
    trial = Trial(comm, name, model, BATCHES.of_rank, lambda s, m: BATCHES.of_all(s, m, comm.world_size))
    for step in range(5):
        trial.optimizer.zero_grad()
        trial.alone.zero_grad()
        trial.alone.load_state_dict(model.state_dict())
        trial.backward(step)
        trial.backward_alone(step)
        off = norm_off(model, [p.grad for p in trial.alone.parameters()])
        assert off <= 1e-5, f"step {step}: {off}"
        trial.optimizer.step()


@scenario(*OURS)
def bfloat16_main_grad(comm: Communicator, name: StrategyName) -> None:
    """Against one process that runs each rank's microbatches in turn and averages in fp32."""
    model = transformer(dtype=torch.bfloat16)
    trial = Trial(comm, name, model, BATCHES.of_rank, accumulate=2, main_grad=True)
    for step in range(5):
        trial.optimizer.zero_grad()
        trial.alone.load_state_dict(model.state_dict())
        trial.backward(step)
        sums = [torch.zeros(p.shape) for p in trial.alone.parameters()]
        for rank in range(comm.world_size):
            for m in range(2):
                trial.alone.zero_grad()
                (trial.alone(*BATCHES.of_rank(step, m, rank)) / 2).backward()
                for total, p in zip(sums, trial.alone.parameters(), strict=True):
                    total += p.grad.float()
        off = norm_off(model, [total / comm.world_size for total in sums])
        assert off <= 1e-6, f"step {step}: {off}"
        assert all(p.grad is None and p.main_grad.dtype == torch.float32 for p in model.parameters())
        before = [p.detach().clone() for p in model.parameters()]
        trial.optimizer.step()
        assert any(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))


@scenario(*STRATEGIES)
def unused_on_one_rank(comm: Communicator, name: StrategyName) -> None:
    last = comm.world_size - 1
    trial = branches_trial(comm, name, lambda step, m, rank: "ab" if rank == last else "abcd"[step % 3 :])
    for step in range(5):
        trial.step(step)


@scenario(*STRATEGIES)
def unused_on_all(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "ad" if step < 3 else "ba")
    for step in range(5):
        trial.step(step)
        assert trial.model.maps["c"].weight.grad is None


@scenario(*OURS)
def used_in_an_early_microbatch_only(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "abcd" if m == 0 and rank == 0 else "ab", accumulate=2)
    for step in range(5):
        trial.step(step)


@scenario(*STRATEGIES)
def frozen_parameters(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "abcd", frozen="b")
    for step in range(5):
        trial.step(step)
        assert trial.model.maps["b"].weight.grad is None


@scenario(*STRATEGIES)
def module_used_twice(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "abacdb")
    for step in range(5):
        trial.step(step)


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


@scenario(*STRATEGIES)
def gradients_share_storage(comm: Communicator, name: StrategyName) -> None:
    trial = sum_trial(comm, name)
    for step in range(5):
        trial.step(step)
    plain = Sum()
    plain(trial.inputs(0, 0, 0)[0]).backward()
    assert plain.a.grad.data_ptr() == plain.b.grad.data_ptr(), "autograd no longer does what this scenario is about"


@scenario(*STRATEGIES)
def gradients_share_storage_clipped(comm: Communicator, name: StrategyName) -> None:
    trial = sum_trial(comm, name, clip=0.01)
    for step in range(3):
        trial.step(step)


@scenario(*STRATEGIES)
def zero_grad_both_ways(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, accumulate=2)
    for step, set_to_none in enumerate([True, False, True, False, False]):
        trial.step(step, set_to_none)


@scenario(*STRATEGIES)
def orders_differ_between_ranks(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: ("abcd", "dcba", "bdac")[(rank + step) % 3])
    for step in range(5):
        trial.step(step)


@scenario(*STRATEGIES)
def nan_reaches_all(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "abcd")
    trial.step(0)
    x, uses = trial.inputs(1, 0, comm.rank)
    if comm.rank == comm.world_size - 1:
        x[0, 0] = torch.nan
    trial.strategy.backward(trial.strategy(x, uses))
    for n, p in trial.model.named_parameters():
        assert p.grad.isnan().any(), n


# Order, buffers, exceptions


@scenario(StrategyName.PER_PARAM, StrategyName.BUCKETED)
def order_is_rank_0s_arrival(comm: Communicator, name: StrategyName) -> None:
    model = Branches()
    strategy = make(name, model, comm, Options(bucket_cap_mb=0.0004))  # a weight and a bias: 336 bytes

    def launched() -> list[str]:
        return [n for _, names in strategy.buckets for n in names]

    arrived: list[str] = []
    for n, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, n=n: arrived.append(n))
    assert launched() == [n for n, _ in reversed(list(model.named_parameters()))]
    x = torch.ones(2, 6, dtype=torch.float64)
    with strategy.no_sync():  # not synchronised: teaches nothing
        strategy.backward(strategy(x, "abcd"))
    arrived.clear()
    strategy.backward(strategy(x, "ca" if comm.rank == 0 else "bac"))
    wanted = comm.broadcast_object(arrived)
    assert set(wanted) == {f"maps.{m}.{kind}" for m in "ac" for kind in ("weight", "bias")}
    assert launched()[:4] == wanted
    assert launched()[4:] == [f"maps.{m}.{kind}" for m in "db" for kind in ("bias", "weight")]
    after = launched()
    strategy.backward(strategy(x, "dcba"))
    assert launched() == after, "rebuilt twice"


@scenario(*STRATEGIES)
def buffers_are_rank_0s(comm: Communicator, name: StrategyName) -> None:
    model = Branches()
    model.register_buffer("note", torch.full((2,), float(comm.rank)))
    strategy = make(name, model, comm, Options())
    x = torch.ones(2, 6, dtype=torch.float64)
    assert model.note.tolist() == [0, 0]
    strategy.backward(strategy(x, "abcd"))
    model.note.fill_(comm.rank)
    strategy.backward(strategy(x, "abcd"))
    assert model.note.tolist() == [0, 0]


@scenario(*OURS)
def buffers_stay_in_no_sync(comm: Communicator, name: StrategyName) -> None:
    model = Branches()
    model.register_buffer("note", torch.zeros(2))
    strategy = make(name, model, comm, Options())
    with strategy.no_sync():
        model.note.fill_(comm.rank)
        strategy(torch.ones(2, 6, dtype=torch.float64), "abcd")
    assert model.note.tolist() == [comm.rank] * 2


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


@scenario(*STRATEGIES)
def exception_in_backward(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "abcd")
    trial.find_unused, trial.model = False, Trapped()
    trial.__post_init__()
    for step in range(6):
        if step in (0, 3):  # before the buckets are rebuilt, and after
            x, _ = trial.inputs(step, 0, comm.rank)
            loss = trial.strategy(x, "!dcb")
            with pytest.raises(ZeroDivisionError, match="the trap"):
                trial.strategy.backward(loss)
            assert all(p.grad is None for p in trial.model.parameters())
        trial.step(step)


@scenario(*STRATEGIES)
def exception_in_no_sync(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, accumulate=2)
    for step in range(4):
        if step == 2:
            loss = trial.strategy(*BATCHES.of_rank(step, 0, comm.rank))
            with pytest.raises(RuntimeError, match="second time"), trial.strategy.no_sync():
                trial.strategy.backward(loss), loss.backward()
        trial.step(step)


@scenario(*STRATEGIES)
def exception_caught_inside_no_sync(comm: Communicator, name: StrategyName) -> None:
    """What follows inside is not synchronised either, and what follows outside is."""
    trial = transformer_trial(comm, name, accumulate=2)
    trial.step(0)
    trial.step(1)
    trial.optimizer.zero_grad()
    trial.alone_optimizer.zero_grad()
    with trial.strategy.no_sync():
        loss = trial.strategy(*BATCHES.of_rank(2, 0, comm.rank))
        trial.strategy.backward(loss)
        with pytest.raises(RuntimeError, match="second time"):
            trial.strategy.backward(loss)
        trial.strategy.backward(trial.strategy(*BATCHES.of_rank(2, 0, comm.rank)) / 2)
        (trial.alone(*BATCHES.of_rank(2, 0, comm.rank)) / 2).backward()
        compare64(trial.model, trial.alone)
    trial.strategy.backward(trial.strategy(*BATCHES.of_rank(2, 1, comm.rank)) / 2, 1)
    trial.alone_optimizer.zero_grad()
    trial.backward_alone(2)
    compare64(trial.model, trial.alone)


@scenario(*OURS)
def failure_on_one_rank_shows_on_the_others(comm: Communicator, name: StrategyName) -> None:
    """Raised on one rank only: the others must not take its missing gradients for zeros, nor hang."""
    strategy = make(name, Trapped(), comm, Options(bucket_cap_mb=0.0004))
    x = torch.ones(2, 6, dtype=torch.float64)
    for _ in range(2):  # before the buckets are rebuilt, and after
        loss = strategy(x, "!dcb" if comm.rank == 0 else "dcba")
        if comm.rank == 0:
            with pytest.raises(ZeroDivisionError):
                strategy.backward(loss)
        else:
            strategy.backward(loss)
            assert strategy.model.maps["a"].weight.grad.isnan().all()


DIFFERENCES: dict[str, Callable[[nn.Module], Any]] = {
    "maps.a.weight [6, 6] float64|maps.a.weight [6, 6] float32": lambda m: m.float(),
    "maps.b.bias [6] float64|maps.b.bias [6] float64 frozen": lambda m: m.maps["b"].bias.requires_grad_(False),
    "maps.c.weight [6, 6] float64|maps.c.weight [2, 6] float64": lambda m: m.maps.add_module(
        "c", nn.Linear(6, 2).double()
    ),
    "nothing more|maps.e.weight [6, 6] float64": lambda m: m.maps.add_module("e", nn.Linear(6, 6).double()),
    "maps.d.weight [6, 6] float64|nothing more": lambda m: m.maps.pop("d"),
    "nothing more|buffer note [1] float32": lambda m: m.register_buffer("note", torch.zeros(1)),
}


@scenario(*DIFFERENCES)
def models_that_differ(comm: Communicator, difference: str) -> None:
    model, last = Branches(), comm.world_size - 1
    if comm.rank == last > 0:
        DIFFERENCES[difference](model)
    if last == 0:
        make(StrategyName.BUCKETED, model, comm, Options())
        return
    with pytest.raises(EngineError) as raised:
        make(StrategyName.BUCKETED, model, comm, Options())
    there, here = difference.split("|")
    assert str(raised.value) == f"the models differ: rank 0 has {there}, rank {last} has {here}"


# Mutants: what parity must notice


@scenario(*OURS)
def mutant_sum_for_mean(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name)
    trial.strategy.comm = copy.copy(comm)
    trial.strategy.comm.prescale = 1.0
    expect_failure(comm, lambda: trial.step(0))


@scenario(*OURS)
def mutant_one_bucket_skipped(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name)
    trial.strategy.comm = copy.copy(comm)
    calls = []

    class Done:
        def wait(self) -> None: ...

    def all_reduce_mean(tensor: torch.Tensor) -> Any:
        calls.append(tensor)
        return Done() if len(calls) == 2 else comm.all_reduce_mean(tensor)

    trial.strategy.comm.all_reduce_mean = all_reduce_mean
    expect_failure(comm, lambda: trial.step(0))


@scenario(*OURS)
def mutant_clip_by_local_norm(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, clip=0.01)

    def by_local_norm(max_norm: float) -> None:
        local = copy.deepcopy(trial.alone)
        local.zero_grad()
        local(*trial.inputs(0, 0, comm.rank)).backward()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in local.parameters()]))
        for p in trial.model.parameters():
            p.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))

    trial.strategy.clip = by_local_norm
    expect_failure(comm, lambda: trial.step(0))


def expect_failure(comm: Communicator, run: Callable[[], None]) -> None:
    """With one rank these mutants change nothing."""
    if comm.world_size == 1:
        run()
        return
    with pytest.raises(AssertionError, match="off by"):
        run()


@pytest.fixture(scope="module", params=[*WORLD_SIZES, "2 behind a link"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    out = tmp_path_factory.mktemp("parity") / "found.json"
    if request.param == "2 behind a link":
        return run_ranks(__file__, 2, out, LINK="100Gbps,1us")
    return run_ranks(__file__, request.param, out)


@pytest.mark.parametrize("name", scenario)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
