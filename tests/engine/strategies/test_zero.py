"""ZeRO's own promises, on real gloo processes: what is gathered, held and sent, and how faults show.

Each script run of this file is one rank; each scenario is a test.
"""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine.errors import EngineError
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.models.units import Unit
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.recording.memory import held_bytes
from overlaplab_engine.strategies import Options, make
from overlaplab_engine.strategies.sharding.sharded_unit import ShardedUnit, ShardState
from overlaplab_engine.strategies.zero3 import Zero3
from overlaplab_engine.strategy_names import StrategyName
from ranks.arrivals import Delayed, Late
from ranks.engine_ranks import Scenarios
from ranks.engine_trials import (
    BATCHES,
    FSDP2_GOES_ON,
    PARTITIONED,
    SHARDED,
    Branches,
    Done,
    branches_trial,
    gradients,
    transformer,
    transformer_trial,
)
from torch import nn

scenario = Scenarios(__file__)


class Watched(Zero3):
    """Notes the order of gathers and frees, and what is held after each, read from the storages."""

    def __init__(self, model: nn.Module, comm: Communicator, options: Options) -> None:
        self.log: list[tuple[str, str]] = []
        self.held: list[tuple[int, int, bool]] = []  # bytes of full parameters, of shards too; layers; at the turn
        super().__init__(model, comm, options)
        for unit in self.sharded_units:
            unit.gather = self.noted("gather", unit, unit.gather)  # type: ignore[method-assign]
            unit.free = self.noted("free", unit, unit.free)  # type: ignore[method-assign]

    def noted(self, what: str, unit: ShardedUnit, call: Any) -> Any:
        def do(*arguments: Any) -> None:
            call(*arguments)
            self.log.append((what, unit.name))
            storages = {u.name: u.full.untyped_storage().nbytes() for u in self.sharded_units}
            shards = sum(u.flat.shard.untyped_storage().nbytes() for u in self.sharded_units)
            layers = [n for n, nbytes in storages.items() if n.startswith("layers.") and nbytes]
            last = [n for n in storages if n.startswith("layers.")][-1:]
            self.held.append((sum(storages.values()) + shards, len(layers), bool(last) and last[0] in layers))

        return do

    def gathered(self) -> list[str]:
        """Names gathered, in order."""
        return [name for what, name in self.log if what == "gather"]


def deep(layers: int, tied: bool = False, checkpointing: bool = False) -> Transformer:
    shape = {"width": 16, "heads": 2, "seq": 8, "vocab": 32}
    return Transformer(layers=layers, **shape, tied=tied, checkpointing=checkpointing, seed=3)


def pass_through(strategy: Zero3, microbatch: int = 0, microbatches: int = 1) -> None:
    batch = BATCHES.rank_batch(0, microbatch, strategy.comm.rank)
    strategy.backward(strategy(*batch) / microbatches, microbatch)


# The schedule


@scenario(0, 1, 5)
def gathers_and_frees(comm: Communicator, prefetch: int) -> None:
    from torch.distributed.tensor.debug import CommDebugMode  # slow to import

    for layers, tied, checkpointing, microbatches in [
        (32 if prefetch == 1 else 5, False, False, 1),
        (6, True, False, 1),
        (6, False, True, 1),
        (6, False, False, 2),
        (1, False, False, 1),
    ]:
        strategy = Watched(deep(layers, tied, checkpointing), comm, Options(prefetch=prefetch))
        for _ in range(2):  # the second pass knows the order
            strategy.log.clear()
            strategy.zero_grad()
            before = comm.counts.copy()
            seen: Counter[str] = Counter()
            for m in range(microbatches):
                # CommDebugMode's own hooks cannot stand a forward pass that checkpointing breaks off, nor a second one.
                with nullcontext() if checkpointing else CommDebugMode() as mode:
                    pass_through(strategy, m, microbatches)
                if mode is not None:
                    seen.update({str(op): n for op, n in mode.get_comm_counts().items()})
            launched = comm.counts - before
            names = strategy.gathered()
            of_layers = [n for n in names if n.startswith("layers.")]
            assert len(of_layers) == (2 * layers - 1) * microbatches
            assert len(names) == (2 * layers if tied else 2 * layers + 1) * microbatches
            assert names.count("embedding") == microbatches
            assert names.count("head") == (0 if tied else microbatches)
            assert names.count(f"layers.{layers - 1}") == microbatches, "the last layer is kept"
            frees = [name for what, name in strategy.log if what == "free"]
            assert sorted(frees) == sorted(names)
            assert launched[Kind.ALL_GATHER] == len(names)
            assert launched[Kind.REDUCE_SCATTER] == len(strategy.sharded_units) * microbatches
            if seen and comm.link is None:
                assert seen["c10d._allgather_base_"] == len(names)
                assert seen["c10d._reduce_scatter_base_"] == launched[Kind.REDUCE_SCATTER]


@scenario(1, 2)
def the_order_of_a_pass(comm: Communicator, prefetch: int) -> None:
    strategy = Watched(deep(3), comm, Options(prefetch=prefetch))
    pass_through(strategy)
    strategy.log.clear()
    pass_through(strategy)
    e, h = "embedding", "head"
    zero, one, two = "layers.0", "layers.1", "layers.2"
    if prefetch == 2:
        assert strategy.log == [
            ("gather", e),
            ("gather", zero),
            ("gather", one),
            ("free", e),
            ("gather", two),
            ("free", zero),
            ("gather", h),
            ("free", one),
            # The turn: the last layer and the head stay.
            ("gather", one),
            ("free", h),
            ("gather", zero),
            ("free", two),
            ("free", one),
            ("free", zero),
        ]
        return
    assert strategy.log == [
        ("gather", e),
        ("gather", zero),
        ("free", e),
        ("gather", one),
        ("free", zero),
        ("gather", two),
        ("free", one),
        ("gather", h),
        # The turn: the last layer and the head stay.
        ("free", h),
        ("gather", one),
        ("free", two),
        ("gather", zero),
        ("free", one),
        ("free", zero),
    ]


def one_unit(model: nn.Module) -> list[Unit]:
    """A policy of one's own: the whole model is one unit."""
    return [Unit("everything", [model], dict(model.named_parameters()), kept=True)]


@scenario()
def a_policy_of_ones_own(comm: Communicator) -> None:
    found = []
    for options in (Options(), Options(units=one_unit)):
        strategy = Watched(deep(2), comm, options)
        pass_through(strategy)
        found.append(gradients(strategy))
    assert strategy.log == [("gather", "everything"), ("free", "everything")]
    by_layer, in_one = found
    assert all(torch.equal(in_one[name], gradient) for name, gradient in by_layer.items())


@scenario(0, 1, 2)
def memory_held(comm: Communicator, prefetch: int) -> None:
    """At most Ψ/N + (P + 1) layers (P + 2 at the turn) + embedding + head, at every gather and free."""
    strategy = Watched(
        Transformer(layers=32, width=32, heads=2, seq=8, vocab=32, seed=1), comm, Options(prefetch=prefetch)
    )
    nbytes = {u.name: u.full.nbytes for u in strategy.sharded_units}
    everything = sum(nbytes.values())
    ends = nbytes["embedding"] + nbytes["head"]
    assert ends < 0.05 * everything
    layer = max(n for name, n in nbytes.items() if name.startswith("layers."))
    for _ in range(2):
        strategy.held.clear()
        pass_through(strategy)
        for held, layers, turn in strategy.held:
            allowed = prefetch + (2 if turn else 1)
            assert layers <= allowed
            assert held <= -(-everything // comm.world_size) + allowed * layer + ends
        assert max(layers for _, layers, _ in strategy.held) == prefetch + 1, "the window is used"
        assert strategy.held[-1][0] == sum(u.flat.shard.nbytes for u in strategy.sharded_units), "nothing is left"


@scenario()
def a_module_used_twice_is_gathered_per_use(comm: Communicator) -> None:
    strategy = Watched(Branches(), comm, Options(prefetch=1))
    x = torch.ones(2, 6, dtype=torch.float64, requires_grad=True)  # else nothing tells that a backward is over
    for _ in range(2):
        strategy.log.clear()
        strategy.backward(strategy(x, "abacd"))
        assert strategy.gathered().count("maps.a") == 4
        assert strategy.gathered().count("maps.d") == 1, "the last of a list is kept"


@scenario()
def without_gradients_nothing_is_kept(comm: Communicator) -> None:
    strategy = Watched(deep(4), comm, Options(prefetch=2))
    with torch.no_grad():
        strategy(*BATCHES.rank_batch(0, 0, comm.rank))
    assert strategy.held[-1][1] == 0
    strategy(*BATCHES.rank_batch(0, 0, comm.rank))  # and no backward pass
    assert strategy.held[-1][1] == 1
    strategy.updated()
    assert strategy.held[-1][1] == 0, "what it held would be stale"


@scenario()
def gathers_may_have_a_group_of_their_own(comm: Communicator) -> None:
    two = Communicator(dist.new_group(), comm.device, gathers=dist.new_group())
    transformer_trial(two, StrategyName.ZERO3).run(3)


# What ranks may not do, and faults


@scenario()
def different_orders_are_an_error(comm: Communicator) -> None:
    x = torch.ones(2, 6, dtype=torch.float64)
    for uses, other, where in [("abcd", "acbd", "the gather of maps.b"), ("abcd", "ab", "the gather of maps.c")]:
        strategy = make(StrategyName.ZERO3, Branches(), comm, Options(prefetch=0))
        if comm.world_size == 1:
            return
        with pytest.raises(EngineError, match=f"same order: rank 0 has come to {where}, rank 1 to "):
            strategy.backward(strategy(x, uses if comm.rank == 0 else other))


@scenario()
def orders_that_differ_later_are_an_error(comm: Communicator) -> None:
    strategy = make(StrategyName.ZERO3, Branches(), comm, Options(prefetch=1))
    x = torch.ones(2, 6, dtype=torch.float64)
    strategy.backward(strategy(x, "abcd"))
    strategy.backward(strategy(x, "acbd"))  # another one, the same on all ranks
    strategy.backward(strategy(x, "ac"))
    strategy.backward(strategy(x, "acb"))
    if comm.world_size > 1:
        with pytest.raises(EngineError, match=r"rank 0 has come to using maps\.d, rank 1 to "):
            strategy.backward(strategy(x, "dcba" if comm.rank == 0 else "cdba"))


class Abreast(nn.Module):
    """Parallel linear maps; the loss may depend on only some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(6, 6).double() for _ in range(4))

    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        return sum(y.sum() for y in [layer(x) for layer in self.maps][:count])


@scenario()
def backward_orders_that_differ_are_an_error(comm: Communicator) -> None:
    """The forward passes are the same."""
    strategy = make(StrategyName.ZERO3, Abreast(), comm, Options(prefetch=0))
    x = torch.ones(2, 6, dtype=torch.float64, requires_grad=True)
    for count in (4, 4, 2):
        strategy.backward(strategy(x, count))
    if comm.world_size > 1:
        with pytest.raises(EngineError, match=r"has come to the gather of maps\.0, rank 1 to the gather of maps\.2"):
            strategy.backward(strategy(x, 1 if comm.rank == 0 else 3))


@scenario()
def several_dtypes_in_a_unit(comm: Communicator) -> None:
    model = Branches()
    model.maps["b"].bias.data = model.maps["b"].bias.data.float()
    with pytest.raises(EngineError, match=r"unit maps.b has parameters of several dtypes \(torch.float32, torch.float"):
        make(StrategyName.ZERO3, model, comm, Options())


@scenario(*PARTITIONED)
def several_dtypes_in_buckets(comm: Communicator, name: StrategyName) -> None:
    model = Branches()
    model.maps["b"].float()
    strategy = make(name, model, comm, Options())
    assert len(strategy.buckets) == 2


@scenario()
def a_parameter_that_is_not_held_cannot_be_read(comm: Communicator) -> None:
    strategy = make(StrategyName.ZERO3, Branches(), comm, Options())
    for _ in range(2):
        for n, p in strategy.model.named_parameters():
            with pytest.raises(EngineError, match=rf"^zero3: parameters of unit {n[:6]} are read, and only parts"):
                p.isnan()
            with torch._C.DisableTorchFunctionSubclass():
                assert p.isnan().all(), n
            assert p.shape == strategy.full_parameters()[n].shape
        strategy.backward(strategy(torch.ones(2, 6, dtype=torch.float64), "abcd"))


@scenario()
def an_exception_in_forward_leaves_nothing_held(comm: Communicator) -> None:
    strategy = Watched(deep(4), comm, Options(prefetch=2))
    hook = strategy.model.layers[2].register_forward_pre_hook(lambda *_: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            strategy(*BATCHES.rank_batch(0, 0, comm.rank))
        assert strategy.held[-1][1] == 0
    hook.remove()
    pass_through(strategy)
    trial = transformer_trial(comm, StrategyName.ZERO3)
    trial.run(2)


@scenario()
def frozen_units_send_nothing(comm: Communicator) -> None:
    trial = branches_trial(comm, StrategyName.ZERO3, lambda step, m, rank: "abcd", frozen="b")
    before = comm.counts[Kind.REDUCE_SCATTER]
    trial.backward(0)
    assert comm.counts[Kind.REDUCE_SCATTER] - before == 3


@scenario(*SHARDED)
def half_frozen_units(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(comm, name, lambda step, m, rank: "abcdb", frozen="b.weight")
    assert not trial.alone.maps["b"].weight.requires_grad
    trial.run(3)
    assert gradients(trial.strategy)["maps.b.weight"] is None


# Reads


class Reads(nn.Module):
    """Layers that are called, or whose weights are read by the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6).double() for _ in range(3))

    def forward(self, x: torch.Tensor, called: tuple[bool, ...]) -> torch.Tensor:
        for layer, call in zip(self.layers, called, strict=True):
            x = layer(x) if call else nn.functional.linear(x, layer.weight)
        return x.square().mean()


@scenario(*SHARDED, StrategyName.TORCH_FSDP2)
def a_unit_that_is_read_and_not_called_is_an_error(comm: Communicator, name: StrategyName) -> None:
    """In the first pass, where nothing is known, and in a later one, where all is expected or on its way."""
    x = torch.ones(2, 6, dtype=torch.float64)
    for passes, arrivals in [(0, Late), (2, Late), (2, Delayed)]:
        strategy = make(name, Reads(), arrivals(comm), Options())  # one bucket: another unit has waited for it
        for _ in range(passes):
            strategy.zero_grad()
            strategy.backward(strategy(x, (True, True, True)))
            strategy.updated()
        named = "layers.1 or layers.2" if name is StrategyName.TORCH_FSDP2 else "layers.1"
        goes_on = name is not StrategyName.TORCH_FSDP2 or FSDP2_GOES_ON
        for backward in (True, False) if goes_on else (True,):
            with (
                pytest.raises(EngineError, match=rf"^{name}: parameters of unit {named} are read before a module of"),
                torch.set_grad_enabled(backward),
            ):
                strategy(x, (True, False, True))
        if goes_on:
            strategy.zero_grad()
            strategy.backward(strategy(x, (True, True, True)))
        comm.barrier()


@scenario(*PARTITIONED)
def parameters_that_are_read_between_passes_are_waited_for(comm: Communicator, name: StrategyName) -> None:
    trial = branches_trial(Late(comm), name, lambda step, m, rank: "abcd")
    for step in range(3):
        trial.step(step)
        for parameter, values in trial.model.state_dict().items():
            assert torch.allclose(values, trial.alone.state_dict()[parameter], rtol=0, atol=1e-12), parameter


@scenario()
def in_the_first_pass_nothing_is_gathered_ahead(comm: Communicator) -> None:
    """The model defines a, b, c, d; it may not use them in this order, nor all of them."""
    strategy = Watched(Branches(), comm, Options(prefetch=2))
    x = torch.ones(2, 6, dtype=torch.float64)
    loss = strategy(x, "acb")
    assert strategy.log[:6:2] == [("gather", "maps.a"), ("gather", "maps.c"), ("gather", "maps.b")]
    strategy.backward(loss)
    strategy.log.clear()
    strategy(x, "acb")
    assert strategy.log[:3] == [("gather", "maps.a"), ("gather", "maps.c"), ("gather", "maps.b")]


class Tied(nn.Module):
    """The model reads the embedding's weight once more, as its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 6).double()
        self.layers = nn.ModuleList(nn.Linear(6, 6).double() for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x).tanh()
        return nn.functional.linear(x, self.embedding.weight).square().mean()


@scenario()
def a_weight_read_elsewhere_is_gathered_once(comm: Communicator) -> None:
    """The first time it is noticed and gathered again; then it stays from its use to the end of the backward pass."""
    strategy = Watched(Tied(), comm, Options())
    for gathers in (2, 1, 1):
        strategy.log.clear()
        strategy.backward(strategy(torch.arange(6)))
        assert strategy.gathered().count("embedding") == gathers

    assert strategy.held[-1][0] == sum(u.flat.shard.nbytes for u in strategy.sharded_units), "nothing is left"


# What is held and sent


@scenario(*SHARDED)
def bytes_held(comm: Communicator, name: StrategyName) -> None:
    """bf16 parameters: 2 for the parameter, 2 or 4 for the gradient, 12 for fp32 master and moments (ZeRO, §3.1)."""
    n = comm.world_size
    for main_grad in (False, True):
        model = transformer(dtype=torch.bfloat16)
        psi = sum(p.numel() for p in model.parameters())
        strategy = make(name, model, comm, Options(main_grad=main_grad, bucket_cap_mb=0.004))
        optimizer = AdamW(strategy.optimized(), lr=1e-3)
        for step in range(2):
            strategy.zero_grad()
            strategy.backward(strategy(*BATCHES.rank_batch(step, 0, comm.rank)))
            optimizer.step()
            strategy.updated()
        strategy.settle()
        held = held_bytes(strategy, optimizer)
        own = psi / n
        wanted = {
            "parameters": 2 * (own if name is StrategyName.ZERO3 else psi),
            "gradients": (4 if main_grad else 2) * (psi if name is StrategyName.ZERO1 else own),
            "optimizer": 12 * own,
        }
        for part, nbytes in wanted.items():
            everyones = comm.gather_objects(held[part])
            assert max(everyones) >= nbytes
            assert max(everyones) <= 1.02 * nbytes, f"{part}: {held[part]} for {nbytes}"


@scenario(*PARTITIONED)
def param_gather_in_the_next_forward(comm: Communicator, name: StrategyName) -> None:
    """Behind the switch: in flight after the update, and waited for layer by layer; else done at once."""
    for overlap in (True, False):
        trial = transformer_trial(comm, name)
        options = Options(bucket_cap_mb=0.004, overlap_param_gather=overlap)
        strategy = make(name, transformer(), comm, options)
        optimizer = AdamW(strategy.optimized(), lr=1e-3)
        strategy.backward(strategy(*BATCHES.rank_batch(0, 0, comm.rank)))
        optimizer.step()
        strategy.updated()
        left: list[int] = []
        for layer in strategy.model.layers:
            layer.register_forward_pre_hook(lambda *_, s=strategy, left=left: left.append(len(s._gathers)))
        strategy(*BATCHES.rank_batch(1, 0, comm.rank))
        if overlap:
            assert left == sorted(left, reverse=True)
            assert left[0] > left[-1] > 0
        else:
            assert left == [0] * len(left)
        assert trial.strategy.buckets == strategy.buckets


@scenario(*PARTITIONED)
def gradients_not_zeroed_add_up(comm: Communicator, name: StrategyName) -> None:
    strategy = make(name, transformer(), comm, Options(bucket_cap_mb=0.004))
    batch = BATCHES.rank_batch(0, 0, comm.rank)
    strategy.backward(strategy(*batch))
    once = {n: g.clone() for n, g in gradients(strategy).items()}
    strategy.backward(strategy(*batch))
    for n, twice in gradients(strategy).items():
        assert torch.allclose(twice, 2 * once[n], rtol=1e-12, atol=1e-15), n


@scenario()
def mutant_one_gather_skipped(comm: Communicator) -> None:
    """The parity test must notice a unit that computes with uninitialised memory."""
    trial = transformer_trial(comm, StrategyName.ZERO3)
    trial.step(0)
    unit = trial.strategy.sharded_units[1]

    def skip(to: Communicator) -> None:
        unit.full.untyped_storage().resize_(unit.full.nbytes)
        unit.full.zero_()
        unit.state, unit._gather_work = ShardState.GATHERING, Done()

    unit.gather = skip
    with pytest.raises(AssertionError, match="off by"):
        trial.step(1)


@scenario()
def mutant_stale_parameters(comm: Communicator) -> None:
    """The parity test must notice an update that is not gathered."""
    if comm.world_size == 1:
        return
    for name in PARTITIONED:
        trial = transformer_trial(comm, name)
        trial.strategy.updated = lambda: None
        trial.step(0)
        with pytest.raises(AssertionError, match="off by"):
            trial.step(1)


found = scenario.found
ALONE = r"\[1\]|bytes_held|frozen|cannot_be_read|read_elsewhere"
"""What a rank that owns everything may do otherwise."""


@pytest.mark.parametrize(
    ("found", "name"),
    [
        *scenario.on(1, ALONE),
        *scenario.on(2),
        *scenario.on(1, slow=True),
        *scenario.on(2, link=True, slow=True),
        *scenario.on(4, "memory_held", slow=True),
    ],
    indirect=["found"],
)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
