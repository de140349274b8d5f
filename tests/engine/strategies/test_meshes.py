"""Tensor parallelism, DP × TP and HSDP against one process, on real gloo processes.

The ranks run this file as a script; each scenario is a test.
"""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
from overlaplab_engine.config import Config
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind
from overlaplab_engine.network.mesh import Mesh
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.strategies import Options, Strategy, class_of
from overlaplab_engine.strategy_names import StrategyName
from ranks.arrivals import require_each_wait
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import (
    BATCHES,
    SHAPE,
    SMALL_CAP_MB,
    compare64,
    expect_failure,
    global_batch,
    idle_trial,
    require_whole_parameters,
    transformer,
    transformer_trial,
)
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode

scenario = Scenarios(__file__)

LAYERS = SHAPE["layers"]
TENSOR = (StrategyName.TENSOR, StrategyName.TORCH_TENSOR)
BOTH = [f"{name} {sequence}" for name in TENSOR for sequence in ("whole", "cut")]
"""Either strategy, with and without sequence parallelism."""


def made(comm: Communicator, words: str, tp: int = 2, **more: Any) -> tuple[Strategy, nn.Module]:
    """A strategy on all ranks, `tp` of which cut the layers, and the model in one process."""
    name, sequence = words.split()
    model = transformer(**more)
    alone = copy.deepcopy(model)
    data = comm.along(Mesh.of(comm.world_size, tp=tp), timeout_s=120)
    options = Options(bucket_cap_mb=SMALL_CAP_MB, sequence_parallel=sequence == "cut")
    class_of(name).cut(model, data, options)
    return class_of(name)(model, data, options), alone


def gradients(strategy: Strategy) -> dict[str, torch.Tensor | None]:
    """Put together where they are cut."""
    return {name: strategy.gather_whole(name, p.grad) for name, p in strategy.model.named_parameters()}


def train(strategy: Strategy, alone: nn.Module, *, steps: int = 4, accumulate: int = 1, clip: float | None) -> None:
    """Compare gradients in each step, and parameters after the last."""
    optimizer, alone_optimizer = AdamW(strategy.optimized(), lr=1e-3), AdamW(alone.parameters(), lr=1e-3)
    data = strategy.comm
    for step in range(steps):
        strategy.zero_grad()
        alone.zero_grad()
        for m in range(accumulate):
            send = strategy.sends_every_microbatch or m == accumulate - 1
            with nullcontext() if send else strategy.no_sync():
                strategy.backward(strategy(*BATCHES.rank_batch(step, m, data.rank)) / accumulate, m)
            (alone(*global_batch(step, m, data.world_size)) / accumulate).backward()
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(alone.parameters(), clip)
            torch.testing.assert_close(strategy.clip(clip), norm, rtol=1e-12, atol=0)
        compare64(gradients(strategy), alone)
        optimizer.step()
        strategy.updated()
        alone_optimizer.step()
    got = strategy.full_parameters()
    for name, want in alone.named_parameters():
        assert float((got[name] - want).detach().abs().max()) <= 1e-10, name


@scenario(*BOTH)
def parity(comm: Communicator, words: str) -> None:
    train(*made(comm, words), accumulate=2, clip=0.01)


@scenario(*BOTH)
def checkpointing(comm: Communicator, words: str) -> None:
    train(*made(comm, words, checkpointing=True), steps=1, clip=None)


@scenario(*BOTH)
def parity_of_passes_that_all_send(comm: Communicator, words: str) -> None:
    strategy, alone = made(comm, words)
    strategy.sends_every_microbatch = True
    train(strategy, alone, accumulate=3, clip=0.01)


@scenario(*TENSOR)
def two_all_reduces_per_layer_and_pass(comm: Communicator, name: StrategyName) -> None:
    strategy, _ = made(comm, f"{name} whole")
    with CommDebugMode() as forward:
        loss = strategy(*BATCHES.rank_batch(0, 0, strategy.comm.rank))
    assert counted(forward) == {"all_reduce": 2 * LAYERS}
    with strategy.no_sync(), CommDebugMode() as backward:
        strategy.backward(loss)
    assert counted(backward) == {"all_reduce": 2 * LAYERS}


@scenario(*TENSOR)
def a_gather_and_a_scatter_in_the_place_of_each(comm: Communicator, name: StrategyName) -> None:
    """And one gather more in each pass: before the head, and after the embedding."""
    strategy, _ = made(comm, f"{name} cut")
    with CommDebugMode() as forward:
        loss = strategy(*BATCHES.rank_batch(0, 0, strategy.comm.rank))
    assert counted(forward) == {"all_gather": 2 * LAYERS + 1, "reduce_scatter": 2 * LAYERS}
    with strategy.no_sync(), CommDebugMode() as backward:
        strategy.backward(loss)
    assert counted(backward) == {"all_gather": 2 * LAYERS + 1, "reduce_scatter": 2 * LAYERS}


def counted(mode: CommDebugMode) -> dict[str, int]:
    found: Counter[str] = Counter()
    for operator, count in mode.get_comm_counts().items():
        text = str(operator)
        kind = next(k for k in ("reduce_scatter", "all_gather", "allgather", "all_reduce", "allreduce") if k in text)
        found[{"allgather": "all_gather", "allreduce": "all_reduce"}.get(kind, kind)] += count
    return dict(found)


@scenario()
def one_rank_differs(comm: Communicator) -> None:
    """Per axis: the ranks that cut the layers must have the same model, and take the values of their first."""
    model = transformer()
    if comm.rank == 1:
        model.layers[0].up.bias.requires_grad_(False)
    data = comm.along(Mesh.of(comm.world_size, tp=2))
    with pytest.raises(EngineError, match=r"rank 0 has .*up\.bias \[64\] float64, rank 1 has .*up\.bias .* frozen"):
        class_of("tensor").cut(model, data, Options())


@scenario()
def mutant_no_sum_in_the_backward_pass(comm: Communicator) -> None:
    strategy, alone = made(comm, "tensor whole")
    strategy._tensor.all_reduce_sum = nothing(strategy._tensor.all_reduce_sum, after=2 * LAYERS)
    expect_failure(comm, lambda: train(strategy, alone, steps=1, clip=None))


@scenario("tensor whole", "tensor cut", "hsdp")
def mutant_each_wait_removed(comm: Communicator, words: str) -> None:
    """Every line of code that waits, in turn."""

    def train_by(late: Communicator) -> None:
        if words == "hsdp":
            data = late.along(Mesh.of(4, hsdp=(2, 2)), timeout_s=120)
            idle_trial(data, StrategyName.ZERO3).run(2)
        else:
            train(*made(late, words), steps=2, clip=0.01)

    require_each_wait(comm, train_by)


def nothing(call: Any, after: int) -> Any:
    """`call` so many times, then something that does nothing."""
    count = iter(range(10**9))

    class Done:
        def wait(self) -> None: ...

    return lambda *tensors: call(*tensors) if next(count) < after else Done()


@scenario(*TENSOR)
def optimizers_of_whole_parameters(comm: Communicator, name: StrategyName) -> None:
    strategy, _ = made(comm, f"{name} whole")
    strategy.backward(strategy(*BATCHES.rank_batch(0, 0, strategy.comm.rank)))
    cut = [tensor for named, tensor in strategy.named_optimized() if named.endswith("qkv.weight")]
    require_whole_parameters(kind(cut) for kind in (torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.Muon))


@scenario()
def groups_are_made_once_whoever_rehearses(comm: Communicator) -> None:
    first, count = comm.along(Mesh.of(2, tp=2)), len(comm.groups)
    assert comm.along(Mesh.of(2, tp=2)) is first
    assert len(comm.groups) == count


# HSDP


@scenario("zero3")
def hsdp(comm: Communicator, name: str) -> None:
    data = comm.along(Mesh.of(4, hsdp=(2, 2)), timeout_s=120)
    assert data is comm
    replicas = data.axis("replicate")
    assert replicas is not None
    trial = transformer_trial(data, StrategyName(name), accumulate=2, clip=0.01)
    held = sum(len(flat.shard) for flat in trial.strategy.flats)
    assert held == pytest.approx(sum(p.numel() for p in trial.alone.parameters()) / 2, abs=len(trial.strategy.flats))
    trial.run()
    assert data.shards.counts[Kind.REDUCE_SCATTER] == replicas.counts[Kind.ALL_REDUCE] > 0
    assert data.counts[Kind.REDUCE_SCATTER] == data.counts[Kind.ALL_GATHER] == 0


@scenario()
def hsdp_of_torch(comm: Communicator) -> None:
    """FSDP2 on the same mesh of two dimensions has the same gradients, parameters and clipped norm."""
    data = comm.along(Mesh.of(4, hsdp=(2, 2)), timeout_s=120)
    ours, theirs = (class_of(name)(transformer(), data, Options()) for name in ("zero3", "torch-fsdp2"))
    optimizers = [AdamW(strategy.optimized(), lr=1e-3) for strategy in (ours, theirs)]
    for step in range(3):
        for strategy, optimizer in zip((ours, theirs), optimizers, strict=True):
            strategy.zero_grad()
            strategy.backward(strategy(*BATCHES.rank_batch(step, 0, data.rank)))
            optimizer.step()
            strategy.updated()
    wanted = theirs.full_parameters()
    for name, value in ours.full_parameters().items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-10)


@scenario()
def mutant_replicas_do_not_average(comm: Communicator) -> None:
    data = comm.along(Mesh.of(4, hsdp=(2, 2)), timeout_s=120)
    trial = transformer_trial(data, StrategyName.ZERO3)
    replicas = data.axis("replicate")
    assert replicas is not None
    with patch.object(replicas, "all_reduce_mean", lambda tensor: data.shards.all_reduce_max(torch.zeros(1))):
        expect_failure(comm, lambda: trial.step(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "tensor"}, "--strategy tensor cuts layers among --tp ranks: 2 or more"),
        ({"strategy": "tensor", "tp": 4, "heads": 2}, "--tp 4 must divide --heads 2"),
        (
            {"strategy": "torch-tensor", "tp": 2, "seq": 7, "sequence_parallel": True},
            "--sequence-parallel: --tp 2 must divide --seq 7",
        ),
        ({"strategy": "bucketed", "tp": 2}, "--tp is for tensor and torch-tensor: no other strategy cuts layers"),
        ({"strategy": "zero1", "hsdp": (2, 2)}, "--hsdp is for zero3 and torch-fsdp2: no other strategy shards"),
        ({"strategy": "zero3", "sequence_parallel": True}, "--sequence-parallel is for tensor and torch-tensor"),
    ],
)
def test_what_is_refused(tmp_path: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message.replace("+", r"\+")):
        Config(out=tmp_path / "run", **options)


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *scenario.on(2, "made_once|per_layer|place_of_each|differs|mutant_no_sum|whole_parameters"),
        *scenario.on(2, "parity", slow=True),
        *scenario.on(4, "parity|check|hsdp|replicas|each_wait", arrivals="late"),
        *scenario.on(4, "parity|^hsdp", arrivals="delayed"),
        *scenario.on(4, "parity|check|^hsdp", slow=True),
    ],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
