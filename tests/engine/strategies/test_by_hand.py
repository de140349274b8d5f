"""Strategies whose collective is made by hand, beside one process."""

from typing import Any

import pytest
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies.averaging import ByHand
from overlaplab_engine.strategy_names import StrategyName
from ranks.arrivals import require_each_wait
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import branches_trial, expect_failure, idle_trial, transformer_trial

scenario = Scenarios(__file__)
BY_HAND = (StrategyName.RING, StrategyName.TREE)


@scenario(*BY_HAND)
def float64(comm: Communicator, name: StrategyName) -> None:
    transformer_trial(comm, name, accumulate=2, clip=0.01).run(3)


@scenario(*BY_HAND)
def unused_parameters(comm: Communicator, name: StrategyName) -> None:
    branches_trial(comm, name, lambda step, m, rank: "abc" if rank else "acd").run(3)


@scenario(*BY_HAND)
def a_pass_that_fails_leaves_nothing_in_flight(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name)
    trial.step(0)
    loss = trial.strategy(*trial.inputs(1, 0, comm.rank))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward(), trial.strategy.backward(loss)
    trial.step(1)


@scenario(*BY_HAND)
def mutant_a_bucket_is_not_averaged(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name)
    average, strategy = trial.strategy._average, trial.strategy
    assert isinstance(strategy, ByHand)

    def skipping(index: int, flat: Any) -> Any:
        return comm.aside(lambda: None) if index == 1 else average(index, flat)

    strategy._average = skipping
    expect_failure(comm, lambda: trial.step(0))


@scenario(*BY_HAND)
def mutant_each_wait_removed(comm: Communicator, name: StrategyName) -> None:
    """Every line of code that waits for a bucket, in turn; hops that are not waited for leave their values unset."""
    require_each_wait(comm, lambda late: idle_trial(late, name).run(2))


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"), [*scenario.on(3, arrivals="late"), *scenario.on(2, "float64", link=True)], indirect=["found"]
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
