"""The strategies around a user's own module and optimizer, on real gloo processes.

The ranks run this file as a script; each scenario is a test.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.strategies import Options, Strategy, make
from overlaplab_engine.strategies.sharding.sharded_unit import ShardState
from overlaplab_engine.strategy_names import StrategyName
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import (
    BATCHES,
    FSDP2_GOES_ON,
    OURS,
    PARTITIONED,
    REPLICATED,
    SHARDED,
    SMALL_CAP_MB,
    STRATEGIES,
    Branches,
    compare64,
    gradients,
    require_whole_parameters,
    transformer,
)
from torch import nn
from torch.nn import functional

scenario = Scenarios(__file__)

ALL = (*STRATEGIES, StrategyName.TORCH_FSDP2)
Loss = Callable[[Callable[..., Any], int, int], torch.Tensor]  # of the strategy or the model, step, rank


def inputs(step: int, rank: int) -> torch.Tensor:
    return torch.randn(3, 6, generator=torch.Generator().manual_seed(10 * step + rank)).double()


def seeded(make_model: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return make_model().double()


def sgd(named: Sequence[tuple[str, torch.Tensor]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([tensor for _, tensor in named], lr=0.05)


def parity(
    comm: Communicator,
    name: StrategyName,
    model: nn.Module,
    loss_of: Loss,
    optimizer: Callable[[Sequence[tuple[str, torch.Tensor]]], torch.optim.Optimizer] = sgd,
    scheduler: Callable[[torch.optim.Optimizer], Any] = lambda optimizer: None,
    steps: int = 4,
) -> Strategy:
    """Train with the strategy and in one process; gradients and states must be equal."""
    alone, n = copy.deepcopy(model), comm.world_size
    strategy = make(name, model, comm, Options(bucket_cap_mb=SMALL_CAP_MB))
    ours, theirs = optimizer(strategy.named_optimized()), optimizer(list(alone.named_parameters()))
    schedulers = [s for s in (scheduler(ours), scheduler(theirs)) if s is not None]
    for step in range(steps):
        strategy.zero_grad()
        alone.zero_grad()
        strategy.backward(loss_of(strategy, step, comm.rank))
        (sum(loss_of(alone, step, rank) for rank in range(n)) / n).backward()
        if name is not StrategyName.TORCH_FSDP2:
            compare64(gradients(strategy), alone)
        ours.step()
        strategy.updated()
        theirs.step()
        for s in schedulers:
            s.step()
    got, want = strategy.state_dict(), alone.state_dict()
    assert list(got) == list(want)
    for key, value in want.items():
        assert float((got[key] - value).abs().max()) <= 1e-10, key
    return strategy


# What goes into the forward pass and comes out


@dataclass
class Found:
    """No pytree to torch."""

    hidden: torch.Tensor
    note: str = ""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Keyed(Block):
    def forward(self, *, state: dict[str, Any], scale: float = 1.0) -> dict[str, Any]:
        (x,) = state["x"]
        y = super().forward(x) * scale
        return {"x": (y,), "norms": [y.square().mean()], "name": "keyed"}


class Classed(Block):
    def forward(self, given: Found) -> Found:
        return Found(super().forward(given.hidden), "classed")


class Model(nn.Module):
    """Blocks that are given, and return, what they like; so does the model."""

    def __init__(self) -> None:
        super().__init__()
        self.keyed = nn.ModuleList(Keyed() for _ in range(3))
        self.classed = nn.ModuleList(Classed() for _ in range(3))

    def forward(self, *, batch: dict[str, torch.Tensor], scale: float) -> dict[str, Any]:
        state: dict[str, Any] = {"x": (batch["x"],)}
        norms = []
        for block in self.keyed:
            state = block(state=state, scale=scale)
            norms += state["norms"]
        found = Found(*state["x"])
        for layer in self.classed:
            found = layer(found)
        return {"found": found, "norms": norms, "loss": found.hidden.square().mean() + sum(norms)}


@scenario(*(ALL if FSDP2_GOES_ON else STRATEGIES))
def keywords_and_containers(comm: Communicator, name: StrategyName) -> None:
    def loss(model: Callable[..., Any], step: int, rank: int) -> torch.Tensor:
        output = model(batch={"x": inputs(step, rank)}, scale=0.5)
        assert output["found"].note == "classed"
        return output["loss"] + output["norms"][0]

    parity(comm, name, seeded(Model), loss)


@scenario()
def units_between_containers_are_freed(comm: Communicator) -> None:
    """After its backward pass each unit is freed and sent; one that was given a dataclass only at the end."""
    strategy = make(StrategyName.ZERO3, seeded(Model), comm, Options(prefetch=0))
    held: list[int] = []
    for unit in strategy.sharded_units:
        send = unit.empty_gradients
        unit.empty_gradients = lambda send=send: (
            held.append(sum(u.state is not ShardState.SHARDED for u in strategy.sharded_units)),
            send(),
        )[1]
    strategy.backward(strategy(batch={"x": inputs(0, comm.rank).requires_grad_()}, scale=1.0)["loss"])
    assert held == [3, 3, 3, 0, 0, 0], "keyed.2 to keyed.0 while the three that were given `Found` are held, then those"


class InPlace(Block):
    """Changes its input in place, which its caller uses later."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(1.5)
        torch.relu_(x)
        return super().forward(x) * y


class View(Block):
    """Returns a view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).t()[1:]


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(InPlace() for _ in range(3))
        self.views = nn.ModuleList(View() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = torch.tanh(x)
        for block in self.blocks:
            x = x + block(x, y)
        for view in self.views:
            out = view(x)
            out.mul_(0.5)
            torch.relu_(out)
            x = x + functional.pad(out, (0, 0, 0, 1)).t()
        return x.square().mean()


@scenario(*STRATEGIES)  # in torch's FSDP2 they are an error
def changes_in_place(comm: Communicator, name: StrategyName) -> None:
    parity(comm, name, seeded(Changing), lambda model, step, rank: model(inputs(step, rank)))


class Scaled(nn.Module):
    """Hooks of its layers read these layers' weights, as those of `weight_norm` do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        for layer in self.layers:
            layer.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * layer.weight.mean(),))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


@scenario(*ALL)
def hooks_that_read_weights(comm: Communicator, name: StrategyName) -> None:
    parity(comm, name, seeded(Scaled), lambda model, step, rank: model(inputs(step, rank)))


@scenario(*STRATEGIES)
def several_forward_passes_before_one_backward(comm: Communicator, name: StrategyName) -> None:
    if name is StrategyName.TORCH_DDP:  # DDP's own reducer prepares for the last one only
        return

    def loss(model: Callable[..., Any], step: int, rank: int) -> torch.Tensor:
        return model(inputs(step, rank)) + model(x=inputs(step + 50, rank)) * 2

    parity(comm, name, seeded(Changing), loss)


class Tied(nn.Module):
    """A weight that is also used functionally, by the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return functional.linear(x, self.first.weight, self.first.bias).square().mean()


@scenario(*STRATEGIES)
def tied_functionally(comm: Communicator, name: StrategyName) -> None:
    parity(comm, name, seeded(Tied), lambda model, step, rank: model(inputs(step, rank)))


# Optimizers


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def grouped(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[..., torch.optim.Optimizer]:
    """Weights decay, biases do not and learn faster."""

    def make_optimizer(named: Sequence[tuple[str, torch.Tensor]]) -> torch.optim.Optimizer:
        groups = [
            {"params": [t for n, t in named if not n.endswith("bias")], "weight_decay": 0.1},
            {"params": [t for n, t in named if n.endswith("bias")], "weight_decay": 0.0, "lr": 0.02},
        ]
        return kind(groups, lr=0.01, **options)

    return make_optimizer


OPTIMIZERS = {
    "SGD": grouped(torch.optim.SGD, momentum=0.9, nesterov=True),
    "AdamW": grouped(torch.optim.AdamW, amsgrad=True),
    "RMSprop": grouped(torch.optim.RMSprop, centered=True),
    "Adagrad": grouped(torch.optim.Adagrad),
}


@scenario(*ALL)
def any_optimizer_with_groups_and_a_schedule(comm: Communicator, name: StrategyName) -> None:
    for optimizer in OPTIMIZERS.values():
        parity(
            comm,
            name,
            seeded(Pair),
            lambda model, step, rank: model(inputs(step, rank)).square().mean(),
            optimizer,
            lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3),
            steps=3,
        )


@scenario(*SHARDED, StrategyName.TORCH_FSDP2)
def optimizers_of_whole_parameters(comm: Communicator, name: StrategyName) -> None:
    strategy = make(name, transformer(), comm, Options())
    strategy.backward(strategy(*BATCHES.rank_batch(0, 0, comm.rank)))
    optimizers = [kind(strategy.optimized()) for kind in (torch.optim.LBFGS, torch.optim.Adafactor)]
    require_whole_parameters(optimizers)
    matrices = [tensor for tensor in strategy.optimized() if tensor.dim() == 2]
    assert bool(matrices) == (name is StrategyName.TORCH_FSDP2)  # the others' parts are flat: Muon takes none
    if matrices:
        require_whole_parameters([torch.optim.Muon(matrices)])


@scenario(*REPLICATED)
def optimizers_of_whole_parameters_replicated(comm: Communicator, name: StrategyName) -> None:
    adafactor = partial(torch.optim.Adafactor, lr=0.01)
    loss = lambda model, step, rank: model(inputs(step, rank))  # noqa: E731
    parity(comm, name, seeded(Changing), loss, lambda named: adafactor([t for _, t in named]))


@scenario(*OURS)
def main_grad_needs_an_optimizer_that_reads_it(comm: Communicator, name: StrategyName) -> None:
    strategy = make(name, transformer(dtype=torch.bfloat16), comm, Options(main_grad=True))
    optimizer = torch.optim.AdamW(strategy.optimized())
    strategy.backward(strategy(*BATCHES.rank_batch(0, 0, comm.rank)))
    with pytest.raises(EngineError, match=r"^AdamW reads \.grad, and main_grad leaves none; use overlaplab_engine"):
        optimizer.step()


@scenario(*REPLICATED, *PARTITIONED)
def main_grad_beside_fp32_parameters(comm: Communicator, name: StrategyName) -> None:
    """A model in bf16 whose norms are fp32: all of it is updated."""
    model = transformer(dtype=torch.bfloat16)
    model.head.norm.weight.data = model.head.norm.weight.data.float()
    model.head.norm.bias.data = model.head.norm.bias.data.float()
    model.head.norm.forward = lambda x: functional.layer_norm(  # type: ignore[method-assign]
        x.float(), (16,), model.head.norm.weight, model.head.norm.bias
    ).to(torch.bfloat16)
    strategy = make(name, model, comm, Options(main_grad=True))
    optimizer = AdamW(strategy.optimized(), lr=0.1)
    strategy.backward(strategy(*BATCHES.rank_batch(0, 0, comm.rank)))
    before = {n: p.clone() for n, p in strategy.full_parameters().items()}
    optimizer.step()
    strategy.updated()
    after = strategy.full_parameters()
    assert not torch.equal(after["head.norm.weight"], before["head.norm.weight"])
    assert all(p.grad is None for p in strategy.optimized())


# Clipping


@scenario(*OURS)
def the_norm_of_bf16_gradients_is_exact(comm: Communicator, name: StrategyName) -> None:
    strategy = make(name, transformer(dtype=torch.bfloat16), comm, Options())
    strategy.backward(strategy(*BATCHES.rank_batch(0, 0, comm.rank)))
    grads = [g.double() for g in gradients(strategy).values()]
    want = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
    norm = strategy.clip(0.5 * float(want))
    assert abs(float(norm / want) - 1) <= 1e-6
    after = torch.stack([g.double().square().sum() for g in gradients(strategy).values()]).sum().sqrt()
    assert abs(float(after / want) - 0.5) <= 1e-3


# Several strategies


@scenario(*STRATEGIES)
def two_strategies_on_one_group(comm: Communicator, name: StrategyName) -> None:
    """Each with a communicator of its own; they take turns, as in a GAN, and one trains through the other."""
    models = [seeded(Pair), Branches()]
    alone = copy.deepcopy(models)
    options = Options(bucket_cap_mb=SMALL_CAP_MB)
    first, second = (make(name, m, Communicator(comm.group, comm.device), options) for m in models)
    optimizers = [torch.optim.SGD(s.optimized(), lr=0.1) for s in (first, second)]
    theirs = [torch.optim.SGD(m.parameters(), lr=0.1) for m in alone]
    for step in range(4):
        for strategy, optimizer in zip((first, second), optimizers, strict=True):
            for s in (first, second):
                s.zero_grad()
            x = inputs(step, comm.rank)
            strategy.backward(first(x).square().mean() if strategy is first else second(x, "abcd"))
            optimizer.step()
            strategy.updated()
        for k, optimizer in enumerate(theirs):
            optimizer.zero_grad()
            for rank in range(comm.world_size):
                x = inputs(step, rank)
                ((alone[0](x).square().mean() if k == 0 else alone[1](x, "abcd")) / comm.world_size).backward()
            optimizer.step()
    for strategy, model in zip((first, second), alone, strict=True):
        got = strategy.state_dict()
        assert all(float((got[key] - value).abs().max()) <= 1e-10 for key, value in model.state_dict().items())


@scenario()
def collectives_of_one_group_are_counted_together(comm: Communicator) -> None:
    """Labels number a group's collectives, whichever communicator launches them."""
    if comm.link is not None:
        return
    others = [Communicator(comm.group, comm.device) for _ in range(2)]
    assert others[0].new_store_key() != others[1].new_store_key()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for other in others:
            other.all_reduce_sum(torch.ones(1)).wait()
    first, second = (e.name.split()[1] for e in profiler.events() if e.name.startswith("engine::collective"))
    assert int(second.removeprefix("seq=")) == int(first.removeprefix("seq=")) + 1


# States


@scenario(*ALL)
def states(comm: Communicator, name: StrategyName) -> None:
    model = transformer(tied=True)
    model.register_buffer("seen", torch.zeros(2))
    alone = copy.deepcopy(model)
    strategy = make(name, model, comm, Options(bucket_cap_mb=SMALL_CAP_MB))
    optimizer = sgd(strategy.named_optimized())
    for step in range(2):
        strategy.zero_grad()
        strategy.backward(strategy(*BATCHES.rank_batch(step, 0, comm.rank)))
        optimizer.step()
        strategy.updated()
        if name is StrategyName.ZERO3:
            for module in (model, model.layers[1]):
                with pytest.raises(EngineError, match=r"^zero3: .* call the strategy's state_dict\(\) on every rank"):
                    module.state_dict()
                with pytest.raises(EngineError, match=r"load a state before the strategy is made$"):
                    module.load_state_dict({})
        elif name is not StrategyName.TORCH_FSDP2:  # updates may have been on their way
            mine = {key: value.clone() for key, value in model.state_dict().items()}
            assert all(torch.equal(value, mine[key]) for key, value in strategy.state_dict().items())
    state = strategy.state_dict()
    assert list(state) == list(alone.state_dict())
    assert torch.equal(state["head.output.weight"], state["embedding.tokens.weight"])
    alone.load_state_dict(state)
    strategy.settle()
    want = comm.gather_objects(float(alone(*BATCHES.rank_batch(9, 0, 0)).detach()))
    with torch.no_grad():
        got = float(strategy(*BATCHES.rank_batch(9, 0, 0)))
    assert abs(got - want[0]) <= 1e-12
    assert len(set(want)) == 1
    later = strategy.state_dict()  # this pass has left parameters gathered
    assert all(torch.equal(value, later[key]) for key, value in state.items())


@scenario(*REPLICATED, *PARTITIONED)
def a_state_loaded_between_updates(comm: Communicator, name: StrategyName) -> None:
    model = transformer()
    strategy = make(name, model, comm, Options(bucket_cap_mb=SMALL_CAP_MB))
    start = {key: value.clone() for key, value in model.state_dict().items()}
    strategy.backward(strategy(*BATCHES.rank_batch(0, 0, comm.rank)))
    sgd(strategy.named_optimized()).step()
    strategy.updated()
    model.load_state_dict(start)
    strategy.settle()
    assert all(torch.equal(value, start[key]) for key, value in strategy.state_dict().items())


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *scenario.on(2),
        *scenario.on(2, "in_place", arrivals="late"),
        *scenario.on(2, slow=True, arrivals="late"),
        *scenario.on(2, slow=True, arrivals="delayed"),
        *scenario.on(3, slow=True),
    ],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
