"""Local SGD against one process that trains each rank's model in turn, on real gloo processes.

The ranks run this file as a script; each scenario is a test.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from overlaplab_engine.config import Config
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.strategies import Options, Strategy, make
from overlaplab_engine.strategy_names import StrategyName
from ranks.arrivals import require_each_wait
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import BATCHES, Branches, Trapped, global_batch, transformer
from torch import nn

scenario = Scenarios(__file__)

STEPS = 10
Optimizers = Callable[[Iterable[torch.Tensor]], Any]


def adamw(parameters: Iterable[torch.Tensor]) -> AdamW:
    return AdamW(parameters, lr=1e-2)


def sgd(parameters: Iterable[torch.Tensor]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1)


def trained(comm: Communicator, options: Options, optimizers: Optimizers = adamw, accumulate: int = 1) -> Strategy:
    strategy = make(StrategyName.LOCAL_SGD, transformer(), comm, options)
    optimizer = optimizers(strategy.optimized())
    for step in range(STEPS):
        strategy.zero_grad()
        strategy.passes(BATCHES, step, accumulate)
        optimizer.step()
        strategy.updated()
    strategy.settle()
    return strategy


def trained_in_turn(ranks: int, options: Options, accumulate: int = 1) -> list[nn.Module]:
    """Every rank's model, in plain torch; a mean is taken over either before, or after the next step's gradients."""
    models = [transformer() for _ in range(ranks)]
    optimizers = [adamw(model.parameters()) for model in models]
    late: list[torch.Tensor] | None = None
    for step in range(STEPS):
        for rank, model in enumerate(models):
            model.zero_grad()
            for microbatch in range(accumulate):
                (model(*BATCHES.rank_batch(step, microbatch, rank)) / accumulate).backward()
        if late is not None:
            take_over(models, late)
            late = None
        for optimizer in optimizers:
            optimizer.step()
        if (step + 1) % options.every == 0:
            late = means(models)
            if not options.background:
                take_over(models, late)
                late = None
    if late is not None:
        take_over(models, late)
    return models


def means(models: list[nn.Module]) -> list[torch.Tensor]:
    every = zip(*(model.parameters() for model in models), strict=True)
    return [torch.stack([p.detach() for p in same]).mean(0) for same in every]


@torch.no_grad()
def take_over(models: list[nn.Module], values: list[torch.Tensor]) -> None:
    for model in models:
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)


def require_equal(got: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor]) -> None:
    for ours, theirs in zip(got, wanted, strict=True):
        off = float((ours - theirs).detach().abs().max())
        assert off <= 1e-10, f"off by {off:.1e}"


@scenario("1", "4", "1 background", "4 background", "5 background", "4 accumulating")
def trains_as_one_process_does(comm: Communicator, which: str) -> None:
    """Of 10 steps with a period of 5, the last mean is on its way at the end."""
    every, *how = which.split()
    options, accumulate = Options(every=int(every), background=how == ["background"]), 1 + (how == ["accumulating"])
    strategy = trained(comm, options, accumulate=accumulate)
    models = trained_in_turn(comm.world_size, options, accumulate)
    require_equal(strategy.model.parameters(), models[comm.rank].parameters())
    require_equal(strategy.full_parameters().values(), means(models))
    require_equal(strategy.model.parameters(), models[comm.rank].parameters())


@scenario()
def in_every_step_it_is_sgd_with_mean_gradients(comm: Communicator) -> None:
    alone = transformer()
    optimizer = sgd(alone.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        alone(*global_batch(step, 0, comm.world_size)).backward()
        optimizer.step()
    require_equal(trained(comm, Options(), sgd).model.parameters(), alone.parameters())


@scenario()
def parameters_are_sent_in_every_fourth_step_and_nothing_else(comm: Communicator) -> None:
    before = comm.counts.copy()
    trained(comm, Options(every=4))
    assert (comm.counts - before)[Kind.ALL_REDUCE] == STEPS // 4


@scenario()
def a_mutant_that_does_not_average(comm: Communicator) -> None:
    strategy = trained(comm, Options(every=STEPS + 1))
    models = trained_in_turn(comm.world_size, Options(every=4))
    if comm.world_size > 1:
        with pytest.raises(AssertionError, match="off by"):
            require_equal(strategy.model.parameters(), models[comm.rank].parameters())


@scenario("blocking", "background")
def mutant_each_wait_removed(comm: Communicator, how: str) -> None:
    options = Options(every=4, background=how == "background")
    models = trained_in_turn(comm.world_size, options)

    def train(late: Communicator) -> None:
        strategy = trained(late, options)
        require_equal(strategy.model.parameters(), models[comm.rank].parameters())
        require_equal(strategy.full_parameters().values(), means(models))

    require_each_wait(comm, train)


@scenario()
def buffers_and_norms_are_each_ranks_own(comm: Communicator) -> None:
    model = Branches()
    model.register_buffer("note", torch.zeros(2))
    strategy = make(StrategyName.LOCAL_SGD, model, comm, Options())
    model.note.fill_(comm.rank)
    strategy.backward(strategy(torch.full((2, 6), 1.0 + comm.rank).double(), "abcd"))
    assert model.note.tolist() == [comm.rank] * 2
    alone = Branches()
    for p, ours in zip(alone.parameters(), model.parameters(), strict=True):
        p.grad = None if ours.grad is None else ours.grad.clone()
    norm = nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
    assert float(strategy.clip(0.01)) == pytest.approx(float(norm))
    require_equal([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


@scenario()
def after_an_exception_the_mean_has_arrived(comm: Communicator) -> None:
    strategy = make(StrategyName.LOCAL_SGD, Trapped(), comm, Options(background=True))
    with torch.no_grad():
        for p in strategy.parameters:
            p.fill_(comm.rank)
    strategy.updated()
    loss = strategy(torch.ones(2, 6, dtype=torch.float64), "!dcb")
    with pytest.raises(ZeroDivisionError):
        strategy.backward(loss)
    assert {float(p.mean()) for p in strategy.parameters} == {(comm.world_size - 1) / 2}
    assert all(p.grad is None for p in strategy.parameters)


@scenario()
def parameters_of_16_bits_are_refused(comm: Communicator) -> None:
    with pytest.raises(EngineError, match="add --dtype float32"):
        make(StrategyName.LOCAL_SGD, transformer(dtype=torch.bfloat16), comm, Options())


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *scenario.on(2, arrivals="late"),
        *scenario.on(3, "trains_as|every_step", arrivals="delayed"),
        *scenario.on(1, "trains_as|16_bits", slow=True),
    ],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"strategy": "bucketed", "every": 4}, "--every and --background are for local-sgd"),
        ({"strategy": "zero3", "background": True}, "--every and --background are for local-sgd"),
        ({"every": 0}, "--every must be 1 or more"),
        ({"save": Path("checkpoint")}, "leave --save and --resume out"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=line):
        Config(**{"out": tmp_path, "strategy": "local-sgd", **options})


if __name__ == "__main__":
    scenario.main()
