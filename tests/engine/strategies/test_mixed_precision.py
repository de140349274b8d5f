"""zero3 with fp32 shards that gathers and computes in bf16, beside torch's FSDP2 with the same `MixedPrecisionPolicy`.

The ranks run this file as a script; each scenario is a test.
"""

import copy
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from overlaplab_engine.checkpoint import load_sharded, save_sharded
from overlaplab_engine.errors import EngineError
from overlaplab_engine.labels import Word
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.recording.memory import held_bytes
from overlaplab_engine.strategies import Options, Strategy, make
from overlaplab_engine.strategies.torch_fsdp2 import TorchFSDP2
from overlaplab_engine.strategy_names import StrategyName
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import BATCHES, DATA_PARALLEL, gradients, transformer
from ranks.full_states import full_state
from ranks.label_texts import parse
from torch import nn

scenario = Scenarios(__file__)

FP32, BF16 = torch.float32, torch.bfloat16
POLICIES: dict[str, dict[str, Any]] = {
    "computed in bf16, reduced in fp32": {"param_dtype": BF16, "reduce_dtype": FP32},
    "computed and reduced in bf16": {"param_dtype": BF16},
    "computed in fp32, reduced in bf16": {"reduce_dtype": BF16},
}


def whole_gradients(strategy: Strategy) -> torch.Tensor:
    """(elements,), in the model's order of names."""
    if isinstance(strategy, TorchFSDP2):
        found = {name: p.grad.full_tensor() for name, p in strategy.model.named_parameters()}
    else:
        found = gradients(strategy)
    assert {g.dtype for g in found.values()} == {FP32}
    return torch.cat([found[name].double().flatten() for name in sorted(found)])


def backward(strategy: Strategy, step: int, microbatches: int, send_all: bool) -> torch.Tensor:
    losses = []
    for m in range(microbatches):
        with nullcontext() if send_all or m == microbatches - 1 else strategy.no_sync():
            loss = strategy(*BATCHES.rank_batch(step, m, strategy.comm.rank)) / microbatches
            strategy.backward(loss, m)
        losses.append(loss.detach())
    return torch.stack(losses)


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


@scenario(*POLICIES)
def as_fsdp2(comm: Communicator, policy: str) -> None:
    """Losses, gradients and updated parameters. Sums of three depend on their order, which differs: in bf16 that is too
    much, and in fp32 enough to round some parameters to other numbers in the next step."""
    if comm.world_size > 2 and POLICIES[policy].get("reduce_dtype", BF16) is BF16:
        return
    for more, microbatches, send_all in (({}, 1, True), ({"tied": True}, 2, True), ({"checkpointing": True}, 3, False)):
        model = transformer(dtype=FP32, **more)
        ours, theirs = (
            make(name, copy.deepcopy(model), comm, Options(**POLICIES[policy]))
            for name in (StrategyName.ZERO3, StrategyName.TORCH_FSDP2)
        )
        optimizers = [torch.optim.SGD(s.optimized(), lr=0.1, momentum=0.9) for s in (ours, theirs)]
        for step in range(3 if comm.world_size == 2 else 1):
            losses = []
            for strategy in (ours, theirs):
                strategy.zero_grad()
                losses.append(backward(strategy, step, microbatches, send_all))
            assert off(losses[0], losses[1]) <= 1e-6, f"{more}, step {step}: {off(losses[0], losses[1])}"
            away = off(whole_gradients(ours), whole_gradients(theirs))
            assert away <= 1e-6, f"{more}, step {step}: {away}"
            for strategy, optimizer in zip((ours, theirs), optimizers, strict=True):
                optimizer.step()
                strategy.updated()
            got, want = (
                torch.cat([p.double().flatten() for _, p in sorted(s.full_parameters().items())])
                for s in (ours, theirs)
            )
            assert off(got, want) <= 1e-6, f"{more}, step {step}: {off(got, want)}"
        norms = [float(s.clip(0.1)) for s in (ours, theirs)]
        assert abs(norms[0] / norms[1] - 1) <= 1e-6, norms


@scenario()
def as_one_process(comm: Communicator) -> None:
    """One that runs each rank's microbatches in turn with parameters cast to bf16, and averages in fp32."""
    model = transformer(dtype=FP32)
    alone = copy.deepcopy(model).to(BF16)
    strategy = make(StrategyName.ZERO3, model, comm, Options(param_dtype=BF16, reduce_dtype=FP32))
    optimizer = AdamW(strategy.optimized(), lr=1e-2)
    for step in range(4):
        strategy.zero_grad()
        alone.load_state_dict(strategy.state_dict())  # which casts
        backward(strategy, step, 2, True)
        sums = {name: torch.zeros(p.shape) for name, p in alone.named_parameters()}
        for rank in range(comm.world_size):
            for m in range(2):
                alone.zero_grad()
                (alone(*BATCHES.rank_batch(step, m, rank)) / 2).backward()
                for name, p in alone.named_parameters():
                    sums[name] += p.grad.float()
        want = torch.cat([sums[name].double().flatten() / comm.world_size for name in sorted(sums)])
        assert off(whole_gradients(strategy), want) <= 1e-6
        optimizer.step()
        strategy.updated()


@scenario(*POLICIES)
def collectives_have_their_own_types(comm: Communicator, policy: str) -> None:
    options = POLICIES[policy]
    computed = options.get("param_dtype", FP32)
    reduced = options.get("reduce_dtype", computed)
    strategy = make(StrategyName.ZERO3, transformer(dtype=FP32), comm, Options(**options))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        backward(strategy, 0, 1, True)
    units = {unit.name: unit.layout.padded for unit in strategy.sharded_units}
    launched: Counter[tuple[str, str, int]] = Counter()
    for word, values in (parse(e.name) for e in profiler.events() if e.name.startswith("engine::")):
        if word is Word.COLLECTIVE and values["kind"] != "all_reduce":
            launched[(str(values["kind"]), str(values["dtype"]), int(str(values["bytes"])))] += 1
        elif word is Word.GATHER_LAUNCH:
            assert int(str(values["bytes"])) == units[str(values["unit"])] * computed.itemsize
        elif word is Word.SCATTER_LAUNCH:
            assert int(str(values["bytes"])) == units[str(values["unit"])] * reduced.itemsize
    if comm.link is not None:
        return
    wanted: Counter[tuple[str, str, int]] = Counter()
    for name, elements in units.items():
        gathers = 2 if name == "layers.0" else 1
        wanted[("all_gather", str(computed)[6:], elements * computed.itemsize)] += gathers
        wanted[("reduce_scatter", str(reduced)[6:], elements * reduced.itemsize)] += 1
    assert launched == wanted


@scenario()
def what_is_held(comm: Communicator) -> None:
    """4 bytes for the fp32 shard, 4 for its gradient, 8 for moments, and no master copy."""
    model = transformer(dtype=FP32)
    psi = sum(p.numel() for p in model.parameters())
    strategy = make(StrategyName.ZERO3, model, comm, Options(param_dtype=BF16, reduce_dtype=FP32))
    optimizer = AdamW(strategy.optimized(), lr=1e-3)
    backward(strategy, 0, 1, True)
    optimizer.step()
    strategy.updated()
    assert {t.dtype for t in strategy.optimized()} == {t.grad.dtype for t in strategy.optimized()} == {FP32}
    assert {p.dtype for p in strategy.state_dict().values()} == {FP32}
    for part, nbytes in held_bytes(strategy, optimizer).items():
        wanted = {"parameters": 4, "gradients": 4, "optimizer": 8}[part] * psi / comm.world_size
        assert abs(nbytes / wanted - 1) <= 0.02, part


class Float(nn.Module):
    """Takes floats, which are cast, and integers, which are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor, *, index: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.first(x)
        self.seen += [x.dtype, h.dtype, index.dtype]
        return {"logits": self.second(h.float())[index]}


@scenario()
def inputs_are_cast(comm: Communicator) -> None:
    strategy = make(StrategyName.ZERO3, Float(), comm, Options(param_dtype=BF16))
    output = strategy(torch.ones(3, 4), index=torch.tensor([0, 2]))["logits"]
    assert strategy.model.seen == [BF16, BF16, torch.int64]
    assert output.dtype == BF16
    strategy.backward(output.float().square().mean())
    assert all(t.grad.dtype == FP32 for t in strategy.optimized())


@scenario()
def checkpoints_keep_fp32(comm: Communicator) -> None:
    """And a run goes on from one bit for bit."""

    def begin() -> tuple[Strategy, AdamW]:
        options = Options(param_dtype=BF16, reduce_dtype=FP32)
        strategy = make(StrategyName.ZERO3, transformer(dtype=FP32), comm, options)
        return strategy, AdamW(strategy.optimized(), lr=1e-2)

    def step(strategy: Strategy, optimizer: AdamW, number: int) -> list[float]:
        strategy.zero_grad()
        losses = backward(strategy, number, 1, True)
        optimizer.step()
        strategy.updated()
        return losses.tolist()

    first = begin()
    step(*first, 0)
    state, path = comm.broadcast_object(full_state(*first, 1)), Path(sys.argv[1]).parent / "fp32"
    assert {t.dtype for t in state["parameters"].values()} == {FP32}
    assert state["masters"] == {}
    save_sharded(path, *first, 1)
    second = begin()
    assert load_sharded(path, *second) == 1
    for number in (1, 2):
        assert step(*first, number) == step(*second, number)


@scenario()
def who_refuses_it(comm: Communicator) -> None:
    for name in DATA_PARALLEL:
        for options in ({"param_dtype": BF16}, {"reduce_dtype": BF16}):
            if name not in (StrategyName.ZERO3, StrategyName.TORCH_FSDP2):
                with pytest.raises(
                    EngineError, match=r"^--param-dtype and --reduce-dtype are for zero3 and torch-fsdp2"
                ):
                    make(name, transformer(), comm, Options(**options))
    with pytest.raises(EngineError, match=r"^--main-grad goes without --param-dtype and --reduce-dtype"):
        make(StrategyName.ZERO3, transformer(), comm, Options(main_grad=True, param_dtype=BF16))


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *scenario.on(2, "^(?!as_)"),
        *scenario.on(2, "as_", arrivals="late"),
        *scenario.on(3, slow=True),
        *scenario.on(2, "as_", slow=True, arrivals="delayed"),
        *scenario.on(2, link=True, slow=True),
    ],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
