"""The asynchronous parameter server against one process that applies the same gradients in the same order.

The ranks run this file as a script; each scenario is a test. What the synchronous one does, test_parity.py tries.
"""

import copy
import time
from typing import Any
from unittest.mock import patch

import pytest
import torch
from overlaplab_engine import labels
from overlaplab_engine.config import Config
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.strategies import Options, make
from overlaplab_engine.strategy_names import StrategyName
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import BATCHES, transformer, transformer_trial

scenario = Scenarios(__file__)

STEPS = 6


def trained(
    comm: Communicator, most: int | None = None, slow: int | None = None
) -> tuple[list[tuple[int, int]], dict[str, torch.Tensor]]:
    """The workers and staleness of the server's updates, in order, and the parameters at the end."""
    options = Options(asynchronous=True, max_staleness=most)
    strategy = make(StrategyName.PARAMETER_SERVER, transformer(), comm, options)
    optimizer = AdamW(strategy.optimized(), lr=1e-3)
    applied: list[tuple[int, int]] = []
    span = labels.span

    def noted(word: Word, **values: Any) -> Any:
        if word is Word.SERVE:
            applied.append((values["worker"], values["staleness"]))
        return span(word, **values)

    with patch.object(labels, "span", noted):
        for step in range(STEPS):
            strategy.zero_grad()
            strategy.backward(strategy(*BATCHES.rank_batch(step, 0, comm.rank)))
            strategy.update(optimizer.step)
            strategy.updated()
            if comm.rank == slow:
                time.sleep(0.05)
        parameters = strategy.full_parameters()
    return comm.broadcast_object(applied), parameters


def require_as_one_process(comm: Communicator, applied: list[tuple[int, int]], got: dict[str, torch.Tensor]) -> None:
    server, worker_ = transformer(), transformer()
    optimizer = AdamW(server.parameters(), lr=1e-3)
    versions = [copy.deepcopy(server.state_dict())]
    given, done = [0] * comm.world_size, [0] * comm.world_size
    for worker, staleness in applied:
        assert staleness == len(versions) - 1 - given[worker]
        worker_.load_state_dict(versions[given[worker]])
        worker_.zero_grad()
        worker_(*BATCHES.rank_batch(done[worker], 0, worker)).backward()
        for p, computed in zip(server.parameters(), worker_.parameters(), strict=True):
            p.grad = computed.grad
        optimizer.step()
        versions.append(copy.deepcopy(server.state_dict()))
        given[worker], done[worker] = len(versions) - 1, done[worker] + 1
    assert done == [STEPS] * comm.world_size
    for name, want in server.named_parameters():
        off = float((got[name] - want).detach().abs().max())
        assert off <= 1e-10, f"{name}: off by {off:.1e}"


@scenario()
def applies_what_comes_as_it_comes(comm: Communicator) -> None:
    applied, got = trained(comm)
    require_as_one_process(comm, applied, got)
    assert sum(staleness for _, staleness in applied) <= (comm.world_size - 1) * len(applied)


@scenario()
def staleness_is_bounded(comm: Communicator) -> None:
    most = comm.world_size - 1
    applied, got = trained(comm, most, slow=most)
    require_as_one_process(comm, applied, got)
    assert max(staleness for _, staleness in applied) <= most


@scenario()
def a_slow_worker_is_stale(comm: Communicator) -> None:
    last = comm.world_size - 1
    applied, got = trained(comm, slow=last)
    require_as_one_process(comm, applied, got)
    assert last == 0 or max(staleness for worker, staleness in applied if worker == last) > last


@scenario()
def goes_on_after_all_have_met(comm: Communicator) -> None:
    """Reading the parameters ends what runs beside the training; the next pass begins it again."""
    strategy = make(StrategyName.PARAMETER_SERVER, transformer(), comm, Options(asynchronous=True))
    optimizer = AdamW(strategy.optimized(), lr=1e-3)
    seen = []
    for step in range(2):
        strategy.backward(strategy(*BATCHES.rank_batch(step, 0, comm.rank)))
        strategy.update(optimizer.step)
        strategy.updated()
        seen.append([p.clone() for p in strategy.full_parameters().values()])
        same = comm.broadcast_object(seen[-1])
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(seen[-1], same, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(*seen, strict=True))


@scenario()
def one_worker_is_as_synchronous(comm: Communicator) -> None:
    if comm.world_size > 1:
        return
    _, got = trained(comm)
    trial = transformer_trial(comm, StrategyName.PARAMETER_SERVER)
    trial.run(STEPS)
    for name, want in trial.strategy.full_parameters().items():
        assert torch.equal(got[name], want), name


@scenario()
def loading_into_the_model_is_refused(comm: Communicator) -> None:
    """The server would overwrite it."""
    strategy = make(StrategyName.PARAMETER_SERVER, transformer(), comm, Options(asynchronous=True))
    with pytest.raises(EngineError, match="load a state before the strategy is made"):
        strategy.model.load_state_dict(transformer().state_dict())


@scenario()
def a_bound_below_what_is_possible(comm: Communicator) -> None:
    if comm.world_size > 1:
        with pytest.raises(EngineError, match=f"--max-staleness 0: with {comm.world_size - 1} other ranks"):
            make(StrategyName.PARAMETER_SERVER, transformer(), comm, Options(asynchronous=True, max_staleness=0))


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *scenario.on(1, slow=True),
        *scenario.on(3, arrivals="late"),
        *scenario.on(3, slow=True),
        *scenario.on(2, "bounded", link=True, slow=True),
    ],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"strategy": "bucketed", "asynchronous": True}, "are for parameter-server"),
        ({"strategy": "zero3", "asynchronous": True}, "are for parameter-server"),
        ({"max_staleness": 3}, "--max-staleness is for --asynchronous"),
        ({"asynchronous": True, "clip_norm": 1.0}, "leave --clip-norm out"),
        ({"asynchronous": True, "save": "checkpoint"}, "leave --save and --resume out"),
    ],
)
def test_what_cannot_run_is_refused(options: dict[str, Any], line: str, tmp_path: Any) -> None:
    with pytest.raises(EngineError, match=line):
        Config(**({"strategy": "parameter-server", "out": tmp_path / "run"} | options))


if __name__ == "__main__":
    scenario.main()
