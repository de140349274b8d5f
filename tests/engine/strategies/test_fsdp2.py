"""torch-fsdp2 against one process, and its gathers counted, on real gloo processes.

The ranks run this file as a script; each scenario is a test.
"""

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine.alarm import Alarm
from overlaplab_engine.errors import EngineError
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.models.units import by_size
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.host_link import Copy, HostLink, Way
from overlaplab_engine.network.link import Kind, Link
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.recording.memory import held_bytes
from overlaplab_engine.strategies import Options, make
from overlaplab_engine.strategies.gradients.hooks import after_accumulation
from overlaplab_engine.strategy_names import StrategyName
from ranks.engine_ranks import Scenarios, run_ranks
from ranks.engine_trials import BATCHES, FSDP2_GOES_ON, SHAPE, Branches, Trapped, compare64, expect_failure
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

scenario = Scenarios()


def transformer(layers: int = 2, dtype: torch.dtype = torch.float64, **more: Any) -> Transformer:
    return Transformer(**SHAPE | {"layers": layers}, seed=3, **more).to(dtype)


@dataclass
class Trial:
    """A model in torch-fsdp2 and in one process, side by side."""

    comm: Communicator
    model: nn.Module
    inputs: Callable[[int, int, int], tuple[Any, ...]] = BATCHES.rank_batch  # step, microbatch, rank
    accumulate: int = 1
    clip: float | None = None
    send_all: bool = True
    prefetch: int = 1
    keep_last: bool = False
    reshard_after_forward: bool = True
    offload: bool = False

    def __post_init__(self) -> None:
        self.alone = copy.deepcopy(self.model)
        options = Options(
            prefetch=self.prefetch,
            keep_last=self.keep_last,
            reshard_after_forward=self.reshard_after_forward,
            offload=self.offload,
        )
        self.strategy = make(StrategyName.TORCH_FSDP2, self.model, self.comm, options)
        self.optimizer = AdamW(self.strategy.optimized(), lr=1e-3)
        self.alone_optimizer = AdamW(self.alone.parameters(), lr=1e-3)

    def microbatch(self, step: int, m: int) -> None:
        with nullcontext() if self.send_all or m == self.accumulate - 1 else self.strategy.no_sync():
            self.strategy.backward(self.strategy(*self.inputs(step, m, self.comm.rank)) / self.accumulate, m)

    def backward(self, step: int) -> None:
        for m in range(self.accumulate):
            self.microbatch(step, m)
        if self.clip is not None:
            self.strategy.clip(self.clip)

    def backward_alone(self, step: int) -> None:
        for m in range(self.accumulate):
            for rank in range(self.comm.world_size):
                loss = self.alone(*self.inputs(step, m, rank)) / self.comm.world_size / self.accumulate
                loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.alone.parameters(), self.clip)

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """The mean gradients, of which the optimizer must have this rank's parts."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        for parameter, tensor in zip(trained, self.strategy.optimized(), strict=True):
            assert (parameter.grad is None) == (tensor.grad is None)
            assert tensor.grad is None or torch.equal(parameter.grad.to_local(), tensor.grad)
        return {n: None if p.grad is None else p.grad.full_tensor() for n, p in self.model.named_parameters()}

    def off(self) -> float:
        """The distance of all gradients from one process's, as a fraction of their norm."""
        got, want = self.gradients(), dict(self.alone.named_parameters())
        whole = [torch.cat([g.double().flatten() for g in gs]) for gs in (got.values(), (want[n].grad for n in got))]
        return float((whole[0] - whole[1]).norm() / whole[1].norm())

    def step(self, step: int, set_to_none: bool = True) -> None:
        """Both go one step, and their gradients are compared before the update."""
        self.strategy.zero_grad(set_to_none)
        self.alone.zero_grad(set_to_none)
        self.backward(step)
        self.backward_alone(step)
        compare64(self.gradients(), self.alone)
        self.optimizer.step()
        self.strategy.updated()
        self.alone_optimizer.step()

    def compare_parameters(self) -> None:
        got = self.strategy.full_parameters()
        for name, want in self.alone.named_parameters():
            assert got[name].shape == want.shape
            assert float((got[name] - want).detach().abs().max()) <= 1e-10, name


def branches_trial(comm: Communicator, uses: str, model: nn.Module | None = None, **more: Any) -> Trial:
    def inputs(step: int, m: int, rank: int) -> tuple[torch.Tensor, str]:
        generator = torch.Generator().manual_seed(100 * step + 10 * m + rank)
        return torch.randn(3, 6, generator=generator).double().requires_grad_(), uses

    return Trial(comm, model or Branches(), inputs, **more)


# Parity


OPTIONS: dict[str, dict[str, Any]] = {
    "one ahead": {},
    "serial": {"prefetch": 0},
    "two ahead, last layer kept": {"prefetch": 2, "keep_last": True},
    "two microbatches sent once": {"accumulate": 2, "send_all": False},
    "clipped": {"clip": 0.01, "accumulate": 2},
    "offloaded": {"offload": True},
    "offloaded, SHARD_GRAD_OP, two ahead": {"offload": True, "reshard_after_forward": False, "prefetch": 2},
    "offloaded, clipped": {"offload": True, "clip": 0.01, "accumulate": 2},
}


@scenario(*OPTIONS)
def float64(comm: Communicator, name: str) -> None:
    trial = Trial(comm, transformer(3), **OPTIONS[name])
    for step in range(3):
        trial.step(step)
    trial.compare_parameters()


@scenario()
def checkpointing(comm: Communicator) -> None:
    trial = Trial(comm, transformer(3, checkpointing=True))
    for step in range(3):
        trial.step(step)
    trial.compare_parameters()


@scenario()
def tied_weights(comm: Communicator) -> None:
    """Embedding and head are in one unit."""
    trial = Trial(comm, transformer(tied=True))
    for step in range(3):
        trial.step(step)
    trial.compare_parameters()


@scenario(torch.float32, torch.bfloat16)
def other_types(comm: Communicator, dtype: torch.dtype) -> None:
    """bf16 gradients are averaged in bf16; what is updated are fp32 masters."""
    trial = Trial(comm, transformer(dtype=dtype))
    for step in range(3):
        trial.strategy.zero_grad()
        trial.alone.zero_grad()
        trial.alone.load_state_dict(trial.strategy.full_parameters())
        trial.backward(step)
        trial.backward_alone(step)
        assert trial.off() <= {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
        before = {name: p.clone() for name, p in trial.strategy.full_parameters().items()}
        trial.optimizer.step()
        trial.strategy.updated()
        after = trial.strategy.full_parameters()
        assert {p.dtype for p in after.values()} == {dtype}
        assert any(not torch.equal(p, before[name]) for name, p in after.items())
    assert {state.dtype for state in trial.optimizer.states()} == {torch.float32}


@scenario()
def frozen_parameters(comm: Communicator) -> None:
    trial = branches_trial(comm, "abcd", Branches(frozen="b"))
    for step in range(3):
        trial.step(step)
        assert trial.gradients()["maps.b.weight"] is None
    trial.compare_parameters()


@scenario()
def module_used_twice(comm: Communicator) -> None:
    trial = branches_trial(comm, "abacdb")
    for step in range(3):
        trial.step(step)


@scenario()
def zero_grad_both_ways(comm: Communicator) -> None:
    trial = Trial(comm, transformer(), accumulate=2)
    for step, set_to_none in enumerate([True, False, True, False, False]):
        trial.step(step, set_to_none)


@scenario()
def mutant_sum_for_mean(comm: Communicator) -> None:
    trial = Trial(comm, transformer())
    trial.model.set_gradient_divide_factor(1.0)
    expect_failure(comm, lambda: trial.step(0))


@scenario()
def mutant_gradients_of_one_unit_stay(comm: Communicator) -> None:
    trial = Trial(comm, transformer())
    trial.step(0)
    trial.model.layers[1].set_requires_gradient_sync(False)
    trial.strategy._root.set_requires_gradient_sync = lambda sync: None
    with pytest.raises(AssertionError, match=r"layers\.1"):
        trial.step(1)


# Exceptions


@scenario(True, False)
def exception_in_backward(comm: Communicator, send: bool) -> None:
    if not FSDP2_GOES_ON:
        return
    trial = branches_trial(comm, "abcd", Trapped(), accumulate=2, send_all=send)
    for step in range(4):
        if step in (0, 2):
            trial.strategy.zero_grad()
            for uses in ("abcd", "!dcb"):
                x, _ = trial.inputs(step, 0, comm.rank)
                with nullcontext() if send else trial.strategy.no_sync():
                    loss = trial.strategy(x, uses)
                    with nullcontext() if uses == "abcd" else pytest.raises(ZeroDivisionError, match="the trap"):
                        trial.strategy.backward(loss)
            assert all(t.grad is None for t in (*trial.model.parameters(), *trial.strategy.optimized()))
        trial.step(step)


@scenario()
def exception_in_forward(comm: Communicator) -> None:
    if not FSDP2_GOES_ON:
        return
    trial = Trial(comm, transformer(3))

    def fail(module: nn.Module, inputs: Any) -> None:
        raise ZeroDivisionError("the trap")

    for step in range(3):
        if step:
            hook = trial.model.layers[1].register_forward_pre_hook(fail)  # FSDP2 has gathered it by then
            with pytest.raises(ZeroDivisionError, match="the trap"):
                trial.strategy(*trial.inputs(step, 0, comm.rank))
            hook.remove()
            assert all(isinstance(p, DTensor) for p in trial.model.parameters()), "something is still gathered"
        trial.step(step)
    trial.compare_parameters()


@scenario()
def exception_where_torch_cannot_go_on(comm: Communicator) -> None:
    trial = branches_trial(comm, "abcd")

    class Old:
        def __getattr__(self, name: str) -> Any:
            return getattr(trial.model, name.replace("reset_iter_state", "absent"))

    trial.strategy._root = Old()
    with pytest.raises(KeyError):
        trial.strategy(trial.inputs(0, 0, comm.rank)[0], "ab?")
    with pytest.raises(EngineError, match="cannot go on after an exception"):
        trial.step(0)


# What is gathered, and when


@contextmanager
def counted(comm: Communicator, found: Counter[str]) -> Iterator[None]:
    """Add the collectives within: by CommDebugMode on plain gloo, by the link's log behind one."""
    from torch.distributed.tensor.debug import CommDebugMode  # slow to import

    before = comm.mark_log()
    with CommDebugMode() as mode:
        yield
    if comm.link is not None:
        found.update(c.kind for c in comm.carried_between(before, comm.mark_log()))
        return
    kinds = {"_allgather_base_": Kind.ALL_GATHER, "_reduce_scatter_base_": Kind.REDUCE_SCATTER}
    found.update({kinds[op.__name__]: count for op, count in mode.get_comm_counts().items()})


COUNTED: dict[str, tuple[dict[str, Any], dict[str, Any], int, int]] = {  # gathers (16 and the root's), reduce-scatters
    "prefetched": ({}, {}, 17, 9),
    "serial": ({"prefetch": 0}, {}, 17, 9),
    "last layer kept": ({"keep_last": True}, {}, 16, 9),
    "layers kept": ({"reshard_after_forward": False}, {}, 9, 9),
    "checkpointing": ({}, {"checkpointing": True}, 17, 9),
    "two microbatches": ({"accumulate": 2}, {}, 34, 18),
    "two microbatches sent once": ({"accumulate": 2, "send_all": False}, {}, 34, 9),
}


@scenario(*COUNTED)
def counts(comm: Communicator, name: str) -> None:
    options, model, gathers, scatters = COUNTED[name]
    trial = Trial(comm, transformer(8, **model), **options)
    trial.backward(0)
    found: Counter[str] = Counter()
    for m in range(trial.accumulate):  # CommDebugMode bears one forward pass
        with counted(comm, found):
            trial.microbatch(1, m)
    assert found == ({} if comm.world_size == 1 else {"all_gather": gathers, "reduce_scatter": scatters})


SCHEDULES = {
    0: [
        *("forward root", "gather root", "forward 0", "gather 0", "forward 1", "gather 1", "forward 2", "gather 2"),
        *("backward root", "backward 2", "gather 2", "backward 1", "gather 1", "backward 0", "gather 0"),
    ],
    1: [
        *("forward root", "gather root", "gather 0", "forward 0", "gather 1", "forward 1", "gather 2", "forward 2"),
        *("backward root", "gather 2", "backward 2", "gather 1", "backward 1", "gather 0", "backward 0"),
    ],
    2: [
        *("forward root", "gather root", "gather 0", "gather 1", "forward 0", "gather 2", "forward 1", "forward 2"),
        *("backward root", "gather 2", "gather 1", "backward 2", "gather 0", "backward 1", "backward 0"),
    ],
}


@scenario(*SCHEDULES)
def schedule(comm: Communicator, prefetch: int) -> None:
    """When gathers are launched, by FSDP2's own ranges."""
    trial = Trial(comm, transformer(3), prefetch=prefetch)
    trial.backward(0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        trial.backward(1)
    words = {"FSDP::pre_forward": "forward", "FSDP::pre_backward": "backward", "FSDP::all_gather": "gather"}
    found = []
    for event in sorted(profiler.events(), key=lambda e: e.time_range.start):
        what, _, unit = event.name.partition(" ")
        if what in words:
            found.append(f"{words[what]} {unit.strip('()').removeprefix('layers.') or 'root'}")
    assert found == [e for e in SCHEDULES[prefetch] if comm.world_size > 1 or not e.startswith("gather")]


@scenario()
def computing_does_not_wait_for_a_prefetched_gather(comm: Communicator) -> None:
    """The last rank joins the gather of layer 1 only when the others compute layer 0 already."""
    trial = Trial(comm, transformer(), prefetch=1)
    store = dist.distributed_c10d._get_default_store()
    for turn in range(2):

        def wait(module: nn.Module, inputs: Any, turn: int = turn) -> None:
            if comm.rank == comm.world_size - 1:
                store.wait([f"{rank} computes {turn}" for rank in range(comm.rank)], timedelta(seconds=300))

        def tell(module: nn.Module, inputs: Any, turn: int = turn) -> None:
            store.set(f"{comm.rank} computes {turn}", "")

        layer = trial.model.layers[0]
        hooks = [layer.register_forward_pre_hook(wait, prepend=True), layer.register_forward_pre_hook(tell)]
        trial.step(turn)
        for hook in hooks:
            hook.remove()


# What is held


@scenario()
def shards_are_all_that_is_held(comm: Communicator) -> None:
    model = transformer()
    whole = [weakref.ref(p) for p in model.parameters()]
    psi = sum(p.nbytes for p in model.parameters())
    strategy = make(StrategyName.TORCH_FSDP2, model, comm, Options())
    assert [ref() for ref in whole] == [None] * len(whole)
    optimizer = AdamW(strategy.optimized(), lr=1e-3)
    for step in range(2):
        strategy.backward(strategy(*BATCHES.rank_batch(step, 0, comm.rank)))
        optimizer.step()
        strategy.updated()
    if comm.world_size != 3:  # where there is padding
        n = comm.world_size
        assert held_bytes(strategy, optimizer) == {
            "parameters": psi // n,
            "gradients": psi // n,
            "optimizer": 2 * psi // n,
        }


@scenario(True, False)
def offloaded_everything_is_on_the_host(comm: Communicator, reshard: bool) -> None:
    """Each gather brings a shard up, each microbatch's gradients go down, and nothing stays on the device."""
    trial = Trial(comm, transformer(3), offload=True, accumulate=2, reshard_after_forward=reshard)
    trial.step(0)
    copied: Counter[Way] = Counter()
    copy = HostLink.copy

    def counted(link: HostLink, way: Way, destination: torch.Tensor, source: torch.Tensor) -> Copy:
        copied[way] += source.nbytes
        return copy(link, way, destination, source)

    with patch.object(HostLink, "copy", counted):
        trial.step(1)
    if comm.world_size == 2:  # no padding
        own = {unit.name: sum(p.nbytes for p in unit.parameters.values()) // 2 for unit in trial.strategy.units()}
        up = sum(size * (2 if reshard and name != "root" else 1) for name, size in own.items())
        assert copied == {Way.UP: 2 * up, Way.DOWN: 2 * sum(own.values())}
        assert held_bytes(trial.strategy, trial.optimizer) == {
            "parameters": 0,
            "gradients": 0,
            "optimizer": 0,
            "host": 4 * sum(own.values()),
        }


@scenario()
def mutant_gradients_do_not_reach_the_host(comm: Communicator) -> None:
    carry = Copy.carry

    def lost(copy: Copy, link: Link, way: Way, alarm: Alarm) -> None:
        if way is Way.DOWN:
            copy._destination.zero_()
            copy._source = copy._destination
        carry(copy, link, way, alarm)

    with patch.object(Copy, "carry", lost):
        expect_failure(comm, lambda: Trial(comm, transformer(), offload=True).step(0))


@scenario()
def mutant_parameters_do_not_come_up(comm: Communicator) -> None:
    carry = Copy.carry

    def lost(copy: Copy, link: Link, way: Way, alarm: Alarm) -> None:
        if way is Way.UP:
            copy._source = torch.zeros_like(copy._source)
        carry(copy, link, way, alarm)

    with patch.object(Copy, "carry", lost):
        expect_failure(comm, lambda: Trial(comm, transformer(), offload=True).step(0))


@scenario("param_dtype", "reduce_dtype")
def offloading_takes_one_type(comm: Communicator, name: str) -> None:
    options = Options(offload=True, **{name: torch.bfloat16})
    with pytest.raises(EngineError, match=r"torch-fsdp2 --offload cannot be combined with --hsdp"):
        make(StrategyName.TORCH_FSDP2, transformer(), comm, options)


@scenario(1, 2000)
def units_by_size(comm: Communicator, least: int) -> None:
    """The size of units can be chosen, as by FSDP's min_num_params."""
    model = transformer(3)
    strategy = make(StrategyName.TORCH_FSDP2, copy.deepcopy(model), comm, Options(units=by_size(least)))
    wrapped = {name for name, module in strategy.model.named_modules() if isinstance(module, FSDPModule)}
    assert wrapped == {unit.name if unit.name != "root" else "" for unit in by_size(least)(model)} | {""}
    loss = strategy(*BATCHES.rank_batch(0, 0, comm.rank))
    assert torch.equal(loss, model(*BATCHES.rank_batch(0, 0, comm.rank)))


@scenario()
def hooks_on_parameters_see_every_gradient(comm: Communicator) -> None:
    model = transformer()
    seen: list[str] = []
    for name, parameter in model.named_parameters():
        after_accumulation(parameter, lambda p, name=name: seen.append(f"{name} {tuple(p.grad.shape)}"))
    wanted = {f"{name} {tuple(p.shape)}": 1 for name, p in model.named_parameters()}
    trial = Trial(comm, model)
    for step in range(2):
        seen.clear()
        trial.backward(step)
        assert Counter(seen) == wanted


@scenario()
def a_forward_pass_alone_leaves_nothing_stale(comm: Communicator) -> None:
    trial = Trial(comm, transformer())
    for step in range(3):
        trial.strategy.zero_grad()
        trial.alone.zero_grad()
        trial.backward(step)
        trial.backward_alone(step)
        trial.strategy(*trial.inputs(step, 1, comm.rank))
        trial.optimizer.step()
        trial.strategy.updated()
        trial.alone_optimizer.step()
        trial.compare_parameters()
        inputs = trial.inputs(step, 2, comm.rank)
        assert float((trial.strategy(*inputs) - trial.alone(*inputs)).abs().detach()) <= 1e-10


@scenario()
def units_are_the_layers_and_the_root(comm: Communicator) -> None:
    strategy = make(StrategyName.TORCH_FSDP2, transformer(3), comm, Options(keep_last=True))
    found = strategy.units()
    assert [(u.name, u.kept) for u in found] == [
        ("layers.0", False),
        ("layers.1", False),
        ("layers.2", True),
        ("root", True),
    ]
    assert list(found[3].parameters) == [
        "embedding.tokens.weight",
        "embedding.positions.weight",
        "head.norm.weight",
        "head.norm.bias",
        "head.output.weight",
    ]
    assert sorted(n for u in found for n in u.parameters) == sorted(n for n, _ in strategy.model.named_parameters())


@scenario()
def what_it_cannot_do(comm: Communicator) -> None:
    with pytest.raises(EngineError, match="torch-fsdp2 has no fp32 main_grad"):
        make(StrategyName.TORCH_FSDP2, transformer(), comm, Options(main_grad=True))
    shared = Branches()
    shared.maps["c"].weight = shared.maps["b"].weight
    with pytest.raises(EngineError, match=r"maps\.b shares a parameter with another unit"):
        make(StrategyName.TORCH_FSDP2, shared, comm, Options())


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(1, marks=pytest.mark.slow),
        2,
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param("2 behind a link", marks=pytest.mark.slow),
    ],
)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    out = tmp_path_factory.mktemp("fsdp2") / "found.json"
    if request.param == "2 behind a link":
        return run_ranks(__file__, 2, out, LINK="100Gbps,1us")
    return run_ranks(__file__, request.param, out)


@pytest.mark.parametrize("name", scenario)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
