"""A new model is built on the device that computes, and strategies that shard it never hold it there in full.

Each script run of this file is one rank; each scenario is a test.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from devices.live_bytes import LiveBytes
from overlaplab_engine.config import Config, Dtype
from overlaplab_engine.models.deferred import defer, hollow_like, materialise
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.models.units import by_block
from overlaplab_engine.network import communicator
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies import class_of
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.train import build, make_model
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import DATA_PARALLEL
from ranks.phantom_trials import group_of
from torch import nn

scenario = Scenarios(__file__)
LAYERS = 8


def config_of(name: StrategyName, **more: Any) -> Config:
    shape = {"layers": LAYERS, "width": 64, "heads": 2, "seq": 8, "vocab": 32}
    return Config(strategy=name, out=Path("unused"), **shape | more)


def test_a_deferred_parameter_takes_memory_when_it_is_materialised() -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"a": nn.Linear(1000, 1000), "b": nn.Linear(1000, 1000)}).to(torch.bfloat16)
    model["b"].weight = model["a"].weight
    model["b"].bias.requires_grad_(False)
    asked: list[tuple[str, torch.Size]] = []

    def values(name: str, shape: torch.Size, device: torch.device) -> torch.Tensor:
        asked.append((name, shape))
        return torch.full(shape, len(asked), device=device)

    defer(model, torch.device("cpu"), values)
    found = dict(model.named_parameters())
    assert list(found) == ["a.weight", "a.bias", "b.bias"]
    assert model["b"].weight is model["a"].weight
    assert [p.requires_grad for p in found.values()] == [True, True, False]
    for name, shape in [("b.bias", (1000,)), ("a.weight", (1000, 1000)), ("a.bias", (1000,))]:
        parameter = found[name]
        assert (parameter.shape, parameter.dtype, parameter.device.type) == (shape, torch.bfloat16, "cpu")
        assert parameter.isnan().all()
        assert parameter.untyped_storage().nbytes() == 2
        for _ in range(2):  # the second time is for nothing
            materialise(parameter)
        assert (parameter == len(asked)).all()
        assert parameter.is_contiguous()
    assert asked == [("b.bias", (1000,)), ("a.weight", (1000, 1000)), ("a.bias", (1000,))]
    assert hollow_like(torch.ones(3, dtype=torch.int64)).tolist() == [0, 0, 0]


def test_what_a_parameter_begins_with_depends_on_its_name_and_the_seed_alone() -> None:
    shape = {"width": 64, "heads": 2, "seq": 8, "vocab": 32}
    before = torch.random.get_rng_state()
    small, large, other = (Transformer(layers=n, **shape, seed=seed) for n, seed in [(1, 5), (2, 5), (1, 6)])
    assert torch.equal(torch.random.get_rng_state(), before)
    found, same, differ = (dict(m.named_parameters()) for m in (small, large, other))
    for name, p in found.items():
        assert torch.equal(p, same[name])
        drawn = name.endswith("weight") and "norm" not in name
        assert torch.equal(p, differ[name]) is not drawn
        if drawn:
            assert 0.018 < float(p.detach().std()) < 0.022
        else:
            assert (p == (0 if name.endswith("bias") else 1)).all()
    up = [same[f"layers.{i}.up.weight"] for i in (0, 1)]
    assert not torch.equal(*up)


@pytest.mark.parametrize("name", [StrategyName.ZERO3, StrategyName.TORCH_FSDP2])
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_no_more_than_two_units_are_there_in_full_while_a_model_is_sharded(name: StrategyName, dtype: Dtype) -> None:
    config = config_of(name, dtype=dtype)
    found = by_block(make_model(config))
    unit = max(sum(p.nbytes for p in u.parameters.values()) for u in found)
    shards = sum(p.nbytes for u in found for p in u.parameters.values()) / 8
    if dtype is Dtype.BFLOAT16:
        shards *= 3  # with the optimizer's fp32 masters
    with group_of(8) as comm, LiveBytes() as live:
        kept = build(config, comm)
    assert unit < live.peak <= 1.01 * shards + 2 * unit
    assert shards <= live.now() <= 1.01 * shards
    del kept


def test_a_strategy_that_keeps_all_parameters_has_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(StrategyName.NAIVE)
    found = [p.nbytes for p in make_model(config).parameters()]
    monkeypatch.setattr(communicator, "BROADCAST_BYTES", max(found))  # which is beside the parameters for a moment
    with group_of(8) as comm, LiveBytes() as live:
        kept = build(config, comm)
    assert sum(found) <= live.now() <= 1.01 * sum(found)
    assert live.peak <= 1.01 * sum(found) + 2 * max(found)
    del kept


@scenario(*DATA_PARALLEL)
def every_strategy_begins_with_rank_0s_weights_of_the_seed(comm: Communicator, name: StrategyName) -> None:
    takes_16_bits = not class_of(name).traits.averages_parameters
    for more in ({}, {"tied": True}, *([{"dtype": Dtype.BFLOAT16}] * takes_16_bits)):
        wanted = dict(make_model(config_of(name, **more, seed=4)).named_parameters())
        strategy, *_ = build(config_of(name, **more, seed=4 + comm.rank), comm)
        got = strategy.full_parameters()
        assert got.keys() == wanted.keys()
        for parameter, value in wanted.items():
            assert got[parameter].dtype is value.dtype
            assert torch.equal(got[parameter], value), parameter


found = scenario.found


@pytest.mark.parametrize(("found", "name"), scenario.on(2), indirect=["found"])
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
