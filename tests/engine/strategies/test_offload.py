"""zero2 and zero3 with the optimizer on the host, against one process, on real gloo processes.

The ranks run this file as a script; each scenario is a test.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from overlaplab_engine.cli import _require_possible
from overlaplab_engine.config import Config
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.host_link import Copy, HostLink, Way
from overlaplab_engine.network.link import Link
from overlaplab_engine.recording.memory import held_bytes
from overlaplab_engine.strategy_names import StrategyName
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import expect_failure, transformer_trial
from ranks.warm_ranks import run_warm

import overlaplab
from overlaplab.analyses import copies, memory

scenario = Scenarios(__file__)
BOTH = (StrategyName.ZERO2, StrategyName.ZERO3)


@scenario(*BOTH)
def trains_as_without(comm: Communicator, name: StrategyName) -> None:
    transformer_trial(comm, name, offload=True, accumulate=2, clip=0.01).run()


@scenario(*BOTH)
def each_microbatchs_gradients_go_down_and_the_parameters_come_up(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, offload=True, accumulate=3)
    trial.step(0)
    copied: Counter[Way] = Counter()
    copy = HostLink.copy

    def counted(link: HostLink, way: Way, destination: torch.Tensor, source: torch.Tensor) -> Copy:
        copied[way] += source.nbytes
        return copy(link, way, destination, source)

    with patch.object(HostLink, "copy", counted):
        trial.step(1)
    own = sum(flat.shard.nbytes for flat in trial.strategy.flats)
    assert copied == {Way.DOWN: 3 * own, Way.UP: own}


@scenario(*BOTH)
def the_device_holds_parameters_alone(comm: Communicator, name: StrategyName) -> None:
    found = []
    for offload in (False, True):
        trial = transformer_trial(comm, name, offload=offload)
        trial.step(0)
        found.append(held_bytes(trial.strategy, trial.optimizer))
    plain, offloaded = found
    own = sum(flat.shard.nbytes for flat in trial.strategy.flats)
    assert (offloaded["gradients"], offloaded["optimizer"]) == (0, 0)
    assert offloaded["parameters"] == plain["parameters"]
    assert offloaded["host"] == pytest.approx(4 * own, rel=0.05)  # in float64: values, gradients and two moments


@scenario(StrategyName.ZERO2)
def what_is_loaded_into_the_model_is_trained(comm: Communicator, name: StrategyName) -> None:
    """The host's copies go on from it, also of a part of the model alone."""
    trial = transformer_trial(comm, name, offload=True)
    trial.step(0)
    for model in (trial.strategy.model, trial.alone):
        part = next(module for module in model.modules() if isinstance(module, torch.nn.LayerNorm))
        model.load_state_dict({key: value / 2 for key, value in model.state_dict().items()})
        part.load_state_dict({key: value + 0.25 for key, value in part.state_dict().items()})
    trial.run()


@scenario(*BOTH)
def mutant_copies_are_not_waited_for(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, offload=True)
    with patch.object(Copy, "wait", lambda copy: None), patch.object(Copy, "carry", lambda *copy: None):
        expect_failure(comm, trial.run) if comm.world_size > 1 else None


def test_a_copy_takes_its_time_and_both_ways_are_free_at_once() -> None:
    link = HostLink(Link(bandwidth_gbps=0.008, latency_us=0))  # a byte takes a microsecond
    source, there = torch.arange(20_000, dtype=torch.uint8), torch.zeros(20_000, dtype=torch.uint8)
    down = link.copy(Way.DOWN, there, source)
    again = link.copy(Way.DOWN, torch.empty_like(source), source)
    up = link.copy(Way.UP, torch.empty_like(source), source)
    up.wait()
    assert not again.is_completed()
    down.wait()
    assert torch.equal(there, source)
    again.wait()


def test_a_gpu_has_a_link_to_its_host_of_its_own(tmp_path: Path) -> None:
    config = Config(out=tmp_path, strategy=StrategyName.ZERO2, offload=True)
    _require_possible(config, 2, cuda=True)
    with pytest.raises(EngineError, match="--host-link is emulated where the device is a CPU"):
        _require_possible(replace(config, host_link=Link.parse("1Gbps,5us")), 2, cuda=True)


def test_a_recording_shows_the_copies(tmp_path: Path) -> None:
    options = ["--layers", "2", "--width", "64", "--seq", "16", "--vocab", "100", "--batch", "2", "--steps", "2"]
    options += ["--strategy", "zero2", "--dtype", "bfloat16", "--offload", "--host-link", "1Gbps,5us"]
    out = tmp_path / "run"
    for rank in run_warm(
        2, "-m", "overlaplab_engine", "--out", str(out), "--device", "cpu", "--accumulate", "2", *options
    ):
        assert rank.code == 0, rank.stderr
    run = overlaplab.load_run(out)
    assert run.manifest is not None
    count = sum(p.bytes for p in run.manifest.parameters) // 2
    table = copies(run)
    assert table.groupby("way")["theory_bytes"].first().to_dict() == {"down": 2 * count, "up": count}
    whole = table.groupby(["way", "rank"])["bytes"].mean()
    assert whole.astype(float).tolist() == pytest.approx([2 * count] * 2 + [count] * 2, rel=0.01)
    assert (table["copy_ns"] >= table["bytes"] * 8).all()
    assert (table["hidden_ns"] <= table["copy_ns"]).all()
    steps = overlaplab.summary(run)
    assert (steps["memory_only_ns"] > 0).all()
    held = memory(run)
    assert held.loc[held["part"] == "host", "bytes"].astype(float).tolist() == pytest.approx(
        held.loc[held["part"] == "host", "formula_bytes"].astype(float).tolist(), rel=0.02
    )


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"), [*scenario.on(1, slow=True), *scenario.on(2, arrivals="late")], indirect=["found"]
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
