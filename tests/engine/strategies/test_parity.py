"""Every strategy against one process, on real gloo processes: once per world size, all scenarios inside.

The ranks run this file as a script; each scenario is a test.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network import communicator
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind
from overlaplab_engine.strategies import Options, make
from overlaplab_engine.strategies.sharding.sharded import Sharded
from overlaplab_engine.strategy_names import StrategyName
from ranks.arrivals import require_each_wait
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import (
    ANY_ORDER,
    BATCHES,
    OURS,
    PARTITIONED,
    REPLICATED,
    SHARDED,
    STRATEGIES,
    Branches,
    Done,
    Sum,
    Trapped,
    Trial,
    branches_trial,
    compare64,
    expect_failure,
    global_batch,
    gradients,
    gradients_here,
    idle_trial,
    local_gradients,
    norm_off,
    sum_trial,
    transformer,
    transformer_trial,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

scenario = Scenarios(__file__)

MOMENTS_MATTER = (
    r"float64|"
    r"(accumulat|checkpointing|unused|early_microbatch|orders_differ|in_backward|failure|buffers_are).*\[zero"
)
"""Each strategy once, and scenarios in which it matters that a collective may be over before it is waited for: only
sharded strategies ask.
"""
ALONE = r"float64|accumulat|clipped|unused_on_all|frozen|buffers_are_rank|main_grad\["
"""Scenarios in which a group of one rank can fail where one of two does not."""


# Parity


@scenario(*STRATEGIES)
def float64(comm: Communicator, name: StrategyName) -> None:
    transformer_trial(comm, name).run(5)


@scenario(*STRATEGIES)
def accumulation(comm: Communicator, name: StrategyName) -> None:
    transformer_trial(comm, name, accumulate=3).run()


@scenario(*STRATEGIES)
def passes_that_all_send(comm: Communicator, name: StrategyName) -> None:
    """A loop without `no_sync`; the gradients add up to what it would have sent at the end."""
    trial = transformer_trial(comm, name, accumulate=3)
    trial.strategy.sends_every_microbatch = True
    trial.run()


@scenario(*SHARDED)
def checkpointing(comm: Communicator, name: StrategyName) -> None:
    transformer_trial(comm, name, checkpointing=True, accumulate=2, clip=0.01).run()


@scenario(*SHARDED)
def accumulated_without_sending(comm: Communicator, name: StrategyName) -> None:
    """`no_sync` with the strategies that do not need it."""
    trial = transformer_trial(comm, name, accumulate=3)
    trial.strategy.sends_every_microbatch = False
    trial.run()


@scenario(*STRATEGIES)
def tied_weights_clipped(comm: Communicator, name: StrategyName) -> None:
    transformer_trial(comm, name, tied=True, clip=0.01).run()


@scenario(*STRATEGIES)
def float32(comm: Communicator, name: StrategyName) -> None:
    model = transformer(dtype=torch.float32)
    trial = Trial(comm, name, model, BATCHES.rank_batch, lambda s, m: global_batch(s, m, comm.world_size))
    for step in range(3):
        trial.strategy.zero_grad()
        trial.alone.zero_grad()
        trial.alone.load_state_dict(trial.strategy.full_parameters(), strict=False)  # less the tied weight's other name
        trial.backward(step)
        trial.backward_alone(step)
        off = norm_off(trial.strategy, [p.grad for p in trial.alone.parameters()])
        assert off <= 1e-5, f"step {step}: {off}"
        trial.update()


@scenario(*OURS)
def bfloat16_main_grad(comm: Communicator, name: StrategyName) -> None:
    """Against one process that runs each rank's microbatches in turn and averages in fp32."""
    model = transformer(dtype=torch.bfloat16)
    trial = Trial(comm, name, model, BATCHES.rank_batch, accumulate=2, main_grad=True)
    for step in range(3):
        trial.strategy.zero_grad()
        trial.alone.load_state_dict(trial.strategy.full_parameters())
        trial.backward(step)
        sums = [torch.zeros(p.shape) for p in trial.alone.parameters()]
        for rank in range(comm.world_size):
            for m in range(2):
                trial.alone.zero_grad()
                (trial.alone(*BATCHES.rank_batch(step, m, rank)) / 2).backward()
                for total, p in zip(sums, trial.alone.parameters(), strict=True):
                    total += p.grad.float()
        off = norm_off(trial.strategy, [total / comm.world_size for total in sums])
        assert off <= 1e-6, f"step {step}: {off}"
        assert all(t.grad is None and t.main_grad.dtype == torch.float32 for t in trial.strategy.optimized())
        before = [p.clone() for p in trial.strategy.full_parameters().values()]
        trial.update()
        after = trial.strategy.full_parameters().values()
        assert any(not torch.equal(b, p) for b, p in zip(before, after, strict=True))


@scenario(*ANY_ORDER)
def unused_on_one_rank(comm: Communicator, name: StrategyName) -> None:
    last = comm.world_size - 1
    branches_trial(comm, name, lambda step, m, rank: "ab" if rank == last else "abcd"[step % 3 :]).run()


@scenario(*STRATEGIES)
def unused_on_all(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "ad" if step < 3 else "ba")
    for step in range(5):
        trial.step(step)
        assert gradients(trial.strategy)["maps.c.weight"] is None


@scenario(*REPLICATED, *PARTITIONED)
def used_in_an_early_microbatch_only(comm: Communicator, name: StrategyName) -> None:
    branches_trial(comm, name, lambda step, m, rank: "abcd" if m == 0 and rank == 0 else "ab", accumulate=2).run()


@scenario(*STRATEGIES)
def frozen_parameters(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "abcd", frozen="b")
    for step in range(3):
        trial.step(step)
        assert trial.model.maps["b"].weight.grad is None


@scenario(*STRATEGIES)
def module_used_twice(comm: Communicator, name: StrategyName) -> None:
    branches_trial(comm, name, lambda step, m, rank: "abacdb").run()


@scenario(*STRATEGIES)
def gradients_share_storage(comm: Communicator, name: StrategyName) -> None:
    trial = sum_trial(comm, name)
    trial.run()
    plain = Sum()
    plain(trial.inputs(0, 0, 0)[0]).backward()
    assert plain.a.grad.data_ptr() == plain.b.grad.data_ptr(), "autograd no longer does what this scenario is about"


@scenario(*STRATEGIES)
def gradients_share_storage_clipped(comm: Communicator, name: StrategyName) -> None:
    sum_trial(comm, name, clip=0.01).run()


@scenario(*STRATEGIES)
def zero_grad_both_ways(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, accumulate=2)
    for step, set_to_none in enumerate([True, False, True, False, False]):
        trial.step(step, set_to_none)


@scenario(*ANY_ORDER)
def orders_differ_between_ranks(comm: Communicator, name: StrategyName) -> None:
    branches_trial(comm, name, lambda step, m, rank: ("abcd", "dcba", "bdac")[(rank + step) % 3]).run()


@scenario(*STRATEGIES)
def uneven_inputs(comm: Communicator, name: StrategyName) -> None:
    """Ranks with batches of different sizes: the mean over the ranks, whatever they hold."""
    trial = branches_trial(comm, name, lambda step, m, rank: "abcd")
    even = trial.inputs
    trial.inputs = lambda step, m, rank: (even(step, m, rank)[0].repeat(rank + 1, 1) * (rank + 1), "abcd")
    trial.run(3)


@scenario(*STRATEGIES)
def a_scaled_loss(comm: Communicator, name: StrategyName) -> None:
    """What a gradient scaler does: a loss times a power of two, and gradients divided by it."""
    trial = transformer_trial(comm, name)
    trial.strategy.backward(trial.strategy(*BATCHES.rank_batch(0, 0, comm.rank)) * 1024)
    trial.backward_alone(0)
    got = {n: None if g is None else g / 1024 for n, g in gradients(trial.strategy).items()}
    compare64(got, trial.alone)


@scenario(*STRATEGIES)
def nan_reaches_all(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "abcd")
    trial.step(0)
    x, uses = trial.inputs(1, 0, comm.rank)
    if comm.rank == comm.world_size - 1:
        x[0, 0] = torch.nan
    trial.strategy.backward(trial.strategy(x, uses))
    for n, grad in gradients(trial.strategy).items():
        assert grad.isnan().any(), n


# Order, buffers, exceptions


@scenario(StrategyName.PER_PARAM, StrategyName.BUCKETED)
def order_is_rank_0s_arrival(comm: Communicator, name: StrategyName) -> None:
    model = Branches()
    strategy = make(name, model, comm, Options(bucket_cap_mb=0.0004))  # a weight and a bias: 336 bytes

    def launched() -> list[str]:
        return [n for _, names in strategy.buckets for n in names]

    arrived: list[str] = []
    for n, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, n=n: arrived.append(n))
    assert launched() == [n for n, _ in reversed(list(model.named_parameters()))]
    x = torch.ones(2, 6, dtype=torch.float64)
    with strategy.no_sync():  # not synchronised: teaches nothing
        strategy.backward(strategy(x, "abcd"))
    arrived.clear()
    strategy.backward(strategy(x, "ca" if comm.rank == 0 else "bac"))
    wanted = comm.broadcast_object(arrived)
    assert set(wanted) == {f"maps.{m}.{kind}" for m in "ac" for kind in ("weight", "bias")}
    assert launched()[:4] == wanted
    assert launched()[4:] == [f"maps.{m}.{kind}" for m in "db" for kind in ("bias", "weight")]
    after = launched()
    strategy.backward(strategy(x, "dcba"))
    assert launched() == after, "rebuilt twice"


@scenario(*STRATEGIES)
def buffers_are_rank_0s(comm: Communicator, name: StrategyName) -> None:
    model = Branches()
    model.register_buffer("note", torch.full((2,), float(comm.rank)))
    strategy = make(name, model, comm, Options())
    x = torch.ones(2, 6, dtype=torch.float64)
    assert model.note.tolist() == [0, 0]
    strategy.backward(strategy(x, "abcd"))
    model.note.fill_(comm.rank)
    strategy.backward(strategy(x, "abcd"))
    assert model.note.tolist() == [0, 0]


@scenario(*OURS)
def buffers_stay_in_no_sync(comm: Communicator, name: StrategyName) -> None:
    model = Branches()
    model.register_buffer("note", torch.zeros(2))
    strategy = make(name, model, comm, Options())
    with strategy.no_sync():
        model.note.fill_(comm.rank)
        strategy(torch.ones(2, 6, dtype=torch.float64), "abcd")
    assert model.note.tolist() == [comm.rank] * 2


@scenario()
def tensors_are_broadcast_in_pieces(comm: Communicator) -> None:
    """Those of one type together, up to so many bytes; whatever their shapes and strides."""

    def tensors(rank: int) -> list[torch.Tensor]:
        whole = torch.arange(12.0) + rank
        same = [torch.tensor(rank), whole.view(3, 4).t(), torch.empty(0), torch.full((4,), rank), whole[::2].clone()]
        return [*same, nn.Parameter(torch.full((40,), float(rank))), torch.full((2, 2), rank == 0)]

    mine, before = tensors(comm.rank), comm.counts[Kind.BROADCAST]
    with patch.object(communicator, "BROADCAST_BYTES", 100):
        comm.broadcast(mine)
    assert all(torch.equal(got, want) for got, want in zip(mine, tensors(0), strict=True))
    assert (
        comm.counts[Kind.BROADCAST] - before == 4
    )  # of int64, bool; of float32, what fits into 100 bytes and what not


@scenario(*STRATEGIES)
def exception_in_backward(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "abcd")
    trial.find_unused, trial.model = False, Trapped()
    trial.__post_init__()
    for step in range(6):
        if step in (0, 3):  # before the buckets are rebuilt, and after
            x, _ = trial.inputs(step, 0, comm.rank)
            loss = trial.strategy(x, "!dcb")
            with pytest.raises(ZeroDivisionError, match="the trap"):
                trial.strategy.backward(loss)
            assert all(p.grad is None for p in [*trial.model.parameters(), *trial.strategy.optimized()])
        trial.step(step)


class Reentrant(Branches):
    """Each use of a map is a backward pass of its own, so that a map used twice gets two gradients."""

    def forward(self, x: torch.Tensor, uses: str) -> torch.Tensor:
        for name in uses:
            x = checkpoint(self.maps[name], x.requires_grad_(), use_reentrant=True)
        return x.square().mean()


@scenario(*REPLICATED, *PARTITIONED, StrategyName.PARAMETER_SERVER)
def a_second_gradient_in_a_pass(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "ab" if step else "aab", model=Reentrant())
    if name in (StrategyName.NAIVE, StrategyName.PARAMETER_SERVER):  # which send nothing before the pass is over
        trial.step(0)
    else:
        loss = trial.strategy(*trial.inputs(0, 0, comm.rank))
        with pytest.raises(EngineError, match=r"maps\.a\.\w+ got a gradient twice in a backward pass"):
            trial.strategy.backward(loss)
    trial.step(1)


@scenario(*STRATEGIES)
def exception_in_no_sync(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, accumulate=2)
    for step in range(4):
        if step == 2:
            loss = trial.strategy(*BATCHES.rank_batch(step, 0, comm.rank))
            with pytest.raises(RuntimeError, match="second time"), trial.strategy.no_sync():
                trial.strategy.backward(loss), loss.backward()
        trial.step(step)


@scenario(*STRATEGIES)
def exception_caught_inside_no_sync(comm: Communicator, name: StrategyName) -> None:
    """What follows inside is not synchronised either, and what follows outside is."""
    trial = transformer_trial(comm, name, accumulate=2)
    trial.step(0)
    trial.step(1)
    trial.strategy.zero_grad()
    trial.alone.zero_grad()
    with trial.strategy.no_sync():
        loss = trial.strategy(*BATCHES.rank_batch(2, 0, comm.rank))
        trial.strategy.backward(loss)
        with pytest.raises(RuntimeError, match="second time"):
            trial.strategy.backward(loss)
        trial.strategy.backward(trial.strategy(*BATCHES.rank_batch(2, 0, comm.rank)) / 2)
        (trial.alone(*BATCHES.rank_batch(2, 0, comm.rank)) / 2).backward()
        compare64(local_gradients(trial.strategy), trial.alone)
    trial.strategy.backward(trial.strategy(*BATCHES.rank_batch(2, 1, comm.rank)) / 2, 1)
    trial.alone.zero_grad()
    trial.backward_alone(2)
    compare64(gradients(trial.strategy), trial.alone)


@scenario(*REPLICATED, *PARTITIONED)
def failure_on_one_rank_shows_on_the_others(comm: Communicator, name: StrategyName) -> None:
    """An error on one rank only: the others must neither count its missing gradients as zeros nor hang."""
    strategy = make(name, Trapped(), comm, Options(bucket_cap_mb=0.0004))
    x = torch.ones(2, 6, dtype=torch.float64)
    for _ in range(2):  # before the buckets are rebuilt, and after
        loss = strategy(x, "!dcb" if comm.rank == 0 else "dcba")
        if comm.rank == 0:
            with pytest.raises(ZeroDivisionError):
                strategy.backward(loss)
        else:
            strategy.backward(loss)
            got = {n: g for n, g in gradients_here(strategy).items() if n == "maps.a.weight"}
            assert all(g.isnan().all() for g in got.values())
            assert got or isinstance(strategy, Sharded)


DIFFERENCES: dict[str, Callable[[nn.Module], Any]] = {
    "maps.a.weight [6, 6] float64|maps.a.weight [6, 6] float32": lambda m: m.float(),
    "maps.b.bias [6] float64|maps.b.bias [6] float64 frozen": lambda m: m.maps["b"].bias.requires_grad_(False),
    "maps.c.weight [6, 6] float64|maps.c.weight [2, 6] float64": lambda m: m.maps.add_module(
        "c", nn.Linear(6, 2).double()
    ),
    "nothing more|maps.e.weight [6, 6] float64": lambda m: m.maps.add_module("e", nn.Linear(6, 6).double()),
    "maps.d.weight [6, 6] float64|nothing more": lambda m: m.maps.pop("d"),
    "nothing more|buffer note [1] float32": lambda m: m.register_buffer("note", torch.zeros(1)),
}


@scenario(*DIFFERENCES)
def models_that_differ(comm: Communicator, difference: str) -> None:
    model, last = Branches(), comm.world_size - 1
    if comm.rank == last > 0:
        DIFFERENCES[difference](model)
    if last == 0:
        make(StrategyName.BUCKETED, model, comm, Options())
        return
    with pytest.raises(EngineError) as raised:
        make(StrategyName.BUCKETED, model, comm, Options())
    there, here = difference.split("|")
    assert str(raised.value) == f"the models differ: rank 0 has {there}, rank {last} has {here}"


@scenario()
def a_server_divides_where_collectives_average(comm: Communicator) -> None:
    """On CUDA NCCL divides, and gradients are not scaled beforehand; a server adds them up by hand."""
    averaging = copy.copy(comm)
    averaging.prescale = 1.0
    transformer_trial(averaging, StrategyName.PARAMETER_SERVER).step(0)


# Mutants: what parity must notice


@scenario(*OURS)
def mutant_sum_for_mean(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name)
    trial.strategy.comm = copy.copy(comm)
    trial.strategy.comm.prescale = 1.0
    expect_failure(comm, lambda: trial.step(0))


@scenario(*OURS)
def mutant_one_bucket_skipped(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name)
    trial.strategy.comm = copy.copy(comm)
    calls = []

    def skipping_the_second(sent: Any, *tensors: torch.Tensor) -> Any:
        calls.append(tensors)
        if len(calls) != 2:
            return sent(*tensors)
        if len(tensors) == 2:  # a reduce-scatter, of which the rank's own gradients come back
            shard, full = tensors
            shard.copy_(full[comm.rank * len(shard) :][: len(shard)].clone())
        return Done()

    which = "reduce_scatter_mean" if name in SHARDED else "all_reduce_mean"
    setattr(trial.strategy.comm, which, partial(skipping_the_second, getattr(comm, which)))
    expect_failure(comm, lambda: trial.step(0))


@scenario(*OURS)
def mutant_clip_by_local_norm(comm: Communicator, name: StrategyName) -> None:
    trial = transformer_trial(comm, name, clip=0.01)
    if name in SHARDED:  # by the norm of the rank's own pieces
        trial.strategy.comm = copy.copy(comm)
        trial.strategy.comm.all_reduce_sum = lambda _: Done()
        expect_failure(comm, lambda: trial.step(0))
        return

    def by_local_norm(max_norm: float) -> None:
        local = copy.deepcopy(trial.alone)
        local.zero_grad()
        local(*trial.inputs(0, 0, comm.rank)).backward()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in local.parameters()]))
        for p in trial.model.parameters():
            p.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))

    trial.strategy.clip = by_local_norm
    expect_failure(comm, lambda: trial.step(0))


@scenario(*OURS)
def mutant_each_wait_removed(comm: Communicator, name: StrategyName) -> None:
    """Every line of code that waits, in turn."""
    require_each_wait(comm, lambda late: idle_trial(late, name).run(2))


found = scenario.found


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *scenario.on(1, ALONE),
        *scenario.on(2, arrivals="late"),
        *scenario.on(2, MOMENTS_MATTER, arrivals="delayed"),
        *scenario.on(2, "float64.zero", link=True),
        *scenario.on(3, "float64.zero"),
        *scenario.on(1, slow=True),
        *scenario.on(2, slow=True, arrivals="delayed"),
        *scenario.on(2, link=True, slow=True),
        *scenario.on(3, slow=True),
        *scenario.on(4, slow=True),
    ],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
