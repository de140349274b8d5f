"""Every strategy against one process on the layouts of other people's models, where nothing arrives unless waited for.

The ranks run this file as a script; each scenario is a test.
"""

from functools import cache

import pytest
import torch
from layouts import ZOO, build, inputs
from overlaplab_engine.models.units import policy
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.strategies import Options, Strategy, make
from overlaplab_engine.strategies.torch_ddp import TorchDDP
from overlaplab_engine.strategy_names import StrategyName
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import SHARDED, STRATEGIES

scenario = Scenarios(__file__)

STEPS = 3
FEW = r"\[(moe|resnet|tied-in-a-call|nanogpt|parameter-lists) "
"""Layouts that differ most: experts that only some ranks use, buffers, a weight that is read elsewhere, containers that
are not called.
"""
BY_UNIT = r"\[[^ ]+ (bucketed|zero3|torch-fsdp2)"
"""Strategies for which a layout matters, since they put parameters together, less zero1 and zero2, which do as
`bucketed` does and divide what is in a bucket; they train the few.
"""
GATHERING = (*SHARDED, StrategyName.TORCH_FSDP2)
CAP_MB = 0.001
PAIRS = [f"{layout} {strategy}" for layout in ZOO for strategy in (*STRATEGIES, StrategyName.TORCH_FSDP2)]
PAIRS += [f"nanogpt {strategy} by_size:100" for strategy in SHARDED]
PAIRS += [f"nanogpt-untied {s} {units}" for s in GATHERING for units in ("by_size:100", "layouts:in_two_units")]
PAIRS.remove("moe torch-fsdp2")  # FSDP2 reduces what has a gradient: ranks that use other experts send other sizes


@cache
def alone(layout: str, world_size: int) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """One process that trains with all ranks' inputs: each rank's loss in every step, and the parameters at the end."""
    model = build(layout)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(STEPS):
        model.zero_grad()
        losses = [model(*inputs(layout, step, rank)) for rank in range(world_size)]
        (torch.stack(losses).sum() / world_size).backward()
        optimizer.step()
        found.append([float(loss.detach()) for loss in losses])
    return found, {name: p.detach() for name, p in model.named_parameters()}


@scenario(*PAIRS)
def trains_as_one_process(comm: Communicator, pair: str) -> None:
    layout, name, *units = pair.split()
    options = Options(bucket_cap_mb=CAP_MB, units=policy(*units or ["by_block"]))
    losses, parameters = alone(layout, comm.world_size)
    strategy = strategy_of(name, build(layout), comm, options)
    optimizer = AdamW(strategy.optimized(), lr=1e-2)
    for step in range(STEPS):
        strategy.zero_grad()
        loss = strategy(*inputs(layout, step, comm.rank))
        strategy.backward(loss)
        optimizer.step()
        strategy.updated()
        off = abs(float(loss.detach()) - losses[step][comm.rank])
        assert off <= 1e-10, f"step {step}: the loss is off by {off:.1e}"
    got = strategy.full_parameters()
    for parameter, want in parameters.items():
        off = float((got[parameter] - want).detach().abs().max())
        assert off <= 1e-10, f"{parameter}: off by {off:.1e}"
    comm.barrier()


def strategy_of(name: str, model: torch.nn.Module, comm: Communicator, options: Options) -> Strategy:
    if name == StrategyName.TORCH_DDP:
        return TorchDDP(model, comm, options, find_unused=True)
    return make(name, model, comm, options)


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *scenario.on(2, f"{FEW}|{BY_UNIT}", arrivals="late"),
        *scenario.on(3, f"{FEW}zero", arrivals="delayed"),
        *scenario.on(1, r"\[(nanogpt|parameter-lists) zero", arrivals="late"),
        *scenario.on(1, slow=True, arrivals="late"),
        *scenario.on(2, slow=True, arrivals="late"),
        *scenario.on(2, slow=True, arrivals="delayed"),
        *scenario.on(3, slow=True, arrivals="late"),
        *scenario.on(3, slow=True, arrivals="delayed"),
    ],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
