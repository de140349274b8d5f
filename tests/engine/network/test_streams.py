"""What each strategy asks of a GPU's streams: passes on the `meta` device, where a read by the host raises.

`Device` (support/devices/streams.py) also judges happens-before, so that every test here fails on a race.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from devices.streams import META, Device, HostReadError, RaceError, Stream, on_streams
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.network import communicator as comm_module
from overlaplab_engine.network.host_link import StreamCopy
from overlaplab_engine.network.streams import StreamWork
from overlaplab_engine.strategies import Options, Strategy, make
from overlaplab_engine.strategies import base as base_module
from overlaplab_engine.strategies.sharding.sharded_unit import ShardedUnit
from overlaplab_engine.strategy_names import StrategyName
from ranks.engine_trials import OURS, SHARDED
from torch import nn

CAP_MB = 0.00025
"""Each of a tower's units is a bucket."""
WITH_COMMUNICATORS = [*((name, 1) for name in OURS), (StrategyName.ZERO3, 2)]


class Tower(nn.Module):
    """A transformer's units with fewer operators in them."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8, device=META)
        self.layers = nn.ModuleList(nn.Linear(8, 8, device=META) for _ in range(layers))
        self.head = nn.Linear(8, 10, bias=False, device=META)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sum()


class Narrow(nn.Module):
    """Two parameters, of which `second` can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(4, device=META))
        self.second = nn.Parameter(torch.zeros(4, device=META))
        self.skip = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.first).sum() if self.skip else (x * self.first + x * x * self.second).sum()


def batch(model: nn.Module) -> tuple[torch.Tensor, ...]:
    if isinstance(model, Narrow):
        return (torch.zeros(4, device=META),)
    tokens = torch.zeros(2, 4, dtype=torch.int64, device=META)
    return (tokens, tokens) if isinstance(model, Transformer) else (tokens,)


def train(strategy: Strategy, accumulate: int = 1, clip: bool = False) -> None:
    """One step, less the optimizer's, which on a GPU is one kernel per kind of tensor."""
    strategy.zero_grad()
    for m in range(accumulate):
        send = strategy.sends_every_microbatch or m == accumulate - 1
        with nullcontext() if send else strategy.no_sync():
            strategy.backward(strategy(*batch(strategy.model)), m)
    if clip:
        strategy.clip(1.0)
    strategy.updated()


def steps(
    monkeypatch: pytest.MonkeyPatch, name: StrategyName, model: nn.Module, options: Options | None = None, **more: Any
) -> list[str]:
    """What the second step and the end of the run ask for."""
    return device_of(monkeypatch, name, model, options, **more).log


def device_of(
    monkeypatch: pytest.MonkeyPatch,
    name: StrategyName,
    model: nn.Module,
    options: Options | None = None,
    communicators: int = 1,
    **more: Any,
) -> Device:
    """The device after two steps, with the log of the second one, which begins with collective number `begun`."""
    with on_streams(monkeypatch, communicators) as (comm, device):
        strategy = make(name, model, comm, options or Options(bucket_cap_mb=CAP_MB))
        train(strategy, **more)
        device.log.clear()
        device.begun = len(device.collectives)
        train(strategy, **more)
        strategy.settle()
        device.done()
        return device


def launch(stream: str, what: str) -> list[str]:
    """A collective is always launched so."""
    return [f"{stream} waits for compute", f"{stream}: {what}"]


def gather(unit: str) -> list[str]:
    return launch("gathers", f"all_gather {unit}")


def scatter(unit: str) -> list[str]:
    return launch("reductions", f"reduce_scatter {unit}")


def reduce(bucket: int | str) -> list[str]:
    return launch("reductions", f"all_reduce {bucket}")


def wait(what: str) -> list[str]:
    return [f"compute waits for {what}"]


FLAGS = launch("reductions", "all_reduce")
ZERO, ONE, TWO = (f"layers.{i}" for i in range(3))


def test_zero3_gathers_one_ahead_and_scatters_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps(monkeypatch, StrategyName.ZERO3, Tower(), Options(prefetch=1)) == [
        *gather("embedding"),
        *gather(ZERO),
        *wait("all_gather embedding"),
        "use embedding",
        "free embedding",
        *gather(ONE),
        *wait(f"all_gather {ZERO}"),
        f"use {ZERO}",
        f"free {ZERO}",
        *gather(TWO),
        *wait(f"all_gather {ONE}"),
        f"use {ONE}",
        f"free {ONE}",
        *gather("head"),
        *wait(f"all_gather {TWO}"),
        f"use {TWO}",
        *wait("all_gather head"),
        "use head",
        # The turn: the last layer and the head stay.
        "use head",
        "free head",
        *scatter("head"),
        *gather(ONE),
        f"use {TWO}",
        f"free {TWO}",
        *scatter(TWO),
        *wait("reduce_scatter head"),
        *gather(ZERO),
        *wait(f"all_gather {ONE}"),
        f"use {ONE}",
        f"free {ONE}",
        *scatter(ONE),
        *wait(f"reduce_scatter {TWO}"),
        *wait(f"all_gather {ZERO}"),
        f"use {ZERO}",
        f"free {ZERO}",
        *scatter(ZERO),
        *wait(f"reduce_scatter {ONE}"),
        *scatter("embedding"),
        *wait(f"reduce_scatter {ZERO}"),
        *FLAGS,
        *wait("reduce_scatter embedding"),
        *wait("all_reduce"),
    ]


def test_zero3_without_prefetch_waits_for_each_gather_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = steps(monkeypatch, StrategyName.ZERO3, Tower(), Options(prefetch=0))
    forward = [
        line
        for unit in ("embedding", ZERO, ONE, TWO, "head")
        for line in [*gather(unit), *wait(f"all_gather {unit}"), f"use {unit}", f"free {unit}"]
        if line not in (f"free {TWO}", "free head")
    ]
    assert log == [
        *forward,
        "use head",
        "free head",
        *scatter("head"),
        f"use {TWO}",
        f"free {TWO}",
        *scatter(TWO),
        *wait("reduce_scatter head"),
        *gather(ONE),
        *wait(f"all_gather {ONE}"),
        f"use {ONE}",
        f"free {ONE}",
        *scatter(ONE),
        *wait(f"reduce_scatter {TWO}"),
        *gather(ZERO),
        *wait(f"all_gather {ZERO}"),
        f"use {ZERO}",
        f"free {ZERO}",
        *scatter(ZERO),
        *wait(f"reduce_scatter {ONE}"),
        *scatter("embedding"),
        *wait(f"reduce_scatter {ZERO}"),
        *FLAGS,
        *wait("reduce_scatter embedding"),
        *wait("all_reduce"),
    ]


def test_zero2_scatters_during_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    gathers = [f"all_gather {i}" for i in (3, 2, 1, 0)]  # what the next forward pass needs first
    assert steps(monkeypatch, StrategyName.ZERO2, Tower(2)) == [
        *(line for what in gathers for line in wait(what)),  # of the step before
        "ready 0",
        *scatter("0"),
        "ready 1",
        *scatter("1"),
        "ready 2",
        *scatter("2"),
        *wait("reduce_scatter 0"),
        "done 0",
        "ready 3",
        *scatter("3"),
        *wait("reduce_scatter 1"),
        "done 1",
        *FLAGS,
        *wait("reduce_scatter 2"),
        "done 2",
        *wait("reduce_scatter 3"),
        "done 3",
        *wait("all_reduce"),
        *(line for what in gathers for line in launch("gathers", what)),
        *(line for what in gathers for line in wait(what)),
    ]


def test_zero1_scatters_after_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(bucket_cap_mb=CAP_MB, overlap_param_gather=False)
    gathers = [f"all_gather {i}" for i in (3, 2, 1, 0)]
    assert steps(monkeypatch, StrategyName.ZERO1, Tower(2), options) == [
        *(f"ready {i}" for i in range(4)),
        *(line for i in range(4) for line in scatter(str(i))),
        *FLAGS,
        *(line for i in range(4) for line in [*wait(f"reduce_scatter {i}"), f"done {i}"]),
        *wait("all_reduce"),
        *(line for what in gathers for line in launch("gathers", what)),
        *(line for what in gathers for line in wait(what)),
    ]


def test_bucketed_waits_once_after_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps(monkeypatch, StrategyName.BUCKETED, Tower(2), accumulate=2) == [
        *(line for i in range(4) for line in [f"ready {i}", *reduce(i)]),
        *(line for i in range(4) for line in [*wait(f"all_reduce {i}"), f"done {i}"]),
    ]


def test_per_param_sends_each_gradient_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps(monkeypatch, StrategyName.PER_PARAM, Narrow()) == [
        *["ready 0", *reduce(0), "ready 1", *reduce(1)],
        *FLAGS,
        *[*wait("all_reduce 0"), "done 0", *wait("all_reduce 1"), "done 1"],
        *wait("all_reduce"),
    ]


def test_naive_sends_one_gradient_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps(monkeypatch, StrategyName.NAIVE, Narrow()) == [
        *["ready 1", "ready 0"],
        *[*FLAGS, *wait("all_reduce")],
        *[*reduce(0), *wait("all_reduce 0"), "done 0"],
        *[*reduce(1), *wait("all_reduce 1"), "done 1"],
    ]


@pytest.mark.parametrize(("name", "communicators"), WITH_COMMUNICATORS)
@pytest.mark.parametrize("more", [{"tied": True, "checkpointing": True}, {"dtype": torch.bfloat16}])
def test_the_host_never_waits_and_nothing_races(
    name: StrategyName, communicators: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = more.get("dtype", torch.float32)
    shape = {"layers": 2, "width": 8, "heads": 2, "seq": 4, "vocab": 10}
    model = Transformer(**shape | {k: v for k, v in more.items() if k != "dtype"}).to(META, dtype)
    options = Options(bucket_cap_mb=0.002, main_grad=dtype is torch.bfloat16)
    assert steps(monkeypatch, name, model, options, communicators=communicators, accumulate=2, clip=True)


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        (
            StrategyName.ZERO3,
            [
                ("all_gather layers.1", ["reduce_scatter head"]),
                ("reduce_scatter layers.2", ["all_gather layers.1"]),
                ("all_gather layers.0", ["reduce_scatter layers.2"]),
                ("reduce_scatter layers.1", ["all_gather layers.0"]),
            ],
        ),
        (StrategyName.ZERO1, []),  # all is gathered before anything is sent
        (StrategyName.ZERO2, []),
    ],
)
def test_a_gather_may_run_beside_a_reduce_scatter_of_another_communicator(
    name: StrategyName, beside: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (device_of(monkeypatch, name, Tower(), communicators=count) for count in (1, 2))
    assert one.log == two.log, "the streams are the same"
    second = two.collectives[two.begun :]
    assert [(c.what, c.beside) for c in second if c.beside] == beside
    assert [c.what for c in one.collectives if c.beside] == [], "in one communicator NCCL runs one after the other"
    assert {c.group for c in one.collectives} == {"0"}
    for device in (one, two):
        numbers: Counter[str] = Counter()
        for c in device.collectives:
            group = "1" if device is two and c.what.startswith("all_gather") else "0"
            assert (c.group, *c.label) == (group, group, numbers[group])
            numbers[group] += 1


@pytest.mark.parametrize("name", OURS)
def test_only_a_rank_with_an_unused_parameter_asks_whether_others_used_it(
    name: StrategyName, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Narrow()
    with on_streams(monkeypatch) as (comm, _):
        strategy = make(name, model, comm, Options())
        train(strategy)
        model.skip = True
        with pytest.raises((HostReadError, RuntimeError, NotImplementedError), match="meta"):
            train(strategy)


@pytest.mark.parametrize(("name", "communicators"), WITH_COMMUNICATORS)
@pytest.mark.parametrize("where", ["backward", "forward"])
def test_a_pass_that_fails_leaves_nothing_in_flight(
    name: StrategyName, communicators: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Tower()

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with on_streams(monkeypatch, communicators) as (comm, device):
        strategy = make(name, model, comm, Options(bucket_cap_mb=CAP_MB))
        if name is StrategyName.NAIVE:  # a rank that knows of no gradient asks
            monkeypatch.setattr(strategy, "_used_somewhere", list)
        train(strategy)
        layer = model.layers[1]
        register = layer.register_forward_pre_hook if where == "forward" else layer.register_full_backward_hook
        hook = register(fail)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                train(strategy)
            strategy.settle()
            device.done()
        hook.remove()
        train(strategy)
        strategy.settle()
        device.done()


def test_ddp_gets_torchs_own_future(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_streams(monkeypatch) as (comm, device):
        assert comm.all_reduce_future(torch.zeros(4, device=META)) == "a future"
        assert device.log == ["compute: all_reduce"]


def test_messages_do_not_count_among_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may send unequally many, and yet a collective has one number on all."""
    for name in ("P2POp", "batch_isend_irecv"):
        monkeypatch.setattr(comm_module.dist, name, lambda *_, **__: [])
    with on_streams(monkeypatch) as (comm, device):
        numbers = []
        for launch in (comm._batch, comm._batch, lambda *_: comm.all_reduce_sum(torch.zeros(4, device=META)).wait()):
            launch([(torch.zeros(4, device=META), 1)], [])
            numbers.append(device.label)
    assert numbers == [("0", 0), ("0", 1), ("0", 0)]


# Mutants: what these tests must notice


def _no_wait(self: StreamWork) -> None:
    """The computation does not wait for its input."""


def _too_early(self: Stream, stream: Stream) -> None:
    """The stream does not wait for the computation."""


class _Forgetful(comm_module.Work):
    """Keeps no tensors."""

    def __init__(self, work: Any, tensors: Any, check: Callable[[], None]) -> None:
        super().__init__(work, (), check)


def _freed_unwaited(self: ShardedUnit) -> None:
    """The memory is given back as soon as its gather is launched."""
    self.full.untyped_storage().resize_(0)


def _ask(self: Strategy, unused: Any) -> Callable[[], set[int]]:
    """Always reads the answer."""
    used = torch.ones(len(self.parameters), device=self.comm.device)
    return lambda: {i for i, n in enumerate(used.tolist()) if not n}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(
    ("where", "what", "mutant"), [(StreamWork, "wait", _no_wait), (Stream, "wait_stream", _too_early)]
)
def test_a_missing_wait_is_a_race(
    name: StrategyName, where: type, what: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, mutant)
    with pytest.raises(RaceError):
        steps(monkeypatch, name, Tower())


@pytest.mark.parametrize("name", [StrategyName.ZERO2, StrategyName.ZERO3])
def test_a_work_that_forgets_its_tensors_is_a_race(name: StrategyName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm_module, "Work", _Forgetful)
    with pytest.raises(RaceError, match="freed under reduce_scatter"):
        steps(monkeypatch, name, Tower())


def test_a_unit_freed_under_its_gather_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = ShardedUnit.gather
    monkeypatch.setattr(ShardedUnit, "gather", lambda self, comm: (gather(self, comm), _freed_unwaited(self)))
    with pytest.raises(RaceError, match="freed under all_gather embedding"):
        steps(monkeypatch, StrategyName.ZERO3, Tower())


@pytest.mark.parametrize("name", [StrategyName.NAIVE, StrategyName.PER_PARAM, *SHARDED])
def test_a_read_by_the_host_is_noticed(name: StrategyName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_module.Strategy, "_ask_usage", _ask)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        steps(monkeypatch, name, Tower())


@pytest.mark.parametrize("literal", [lambda: torch.tensor([1], device=META), lambda: torch.ones(2).to(META)])
def test_memory_of_the_host_is_noticed(literal: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    with on_streams(monkeypatch), pytest.raises(HostReadError):
        literal()


def offloaded(monkeypatch: pytest.MonkeyPatch, name: StrategyName) -> Device:
    """The device after two steps whose updates are the host's, with the log of the second one."""
    with on_streams(monkeypatch) as (comm, device):
        strategy = make(name, Tower(2), comm, Options(bucket_cap_mb=CAP_MB, offload=True))
        for _ in range(2):
            device.log.clear()
            strategy.zero_grad()
            strategy.backward(strategy(*batch(strategy.model)))
            with torch.no_grad():
                for part in strategy.optimized():
                    part.mul_(0.5)
            strategy.updated()
        device.check_alive()
        return device


DOWN = ["down waits for compute"]
LANDED = ["host waits for down"]


def test_offloaded_gradients_come_down_beside_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offloaded(monkeypatch, StrategyName.ZERO2).log == [
        *(line for i in (3, 2, 1, 0) for line in wait(f"all_gather {i}")),  # of the step before
        *["ready 0", *scatter("0")],
        *["ready 1", *scatter("1")],
        *["ready 2", *scatter("2"), *wait("reduce_scatter 0"), "done 0", *DOWN],
        *["ready 3", *scatter("3"), *wait("reduce_scatter 1"), "done 1", *DOWN],
        *FLAGS,
        *[*wait("reduce_scatter 2"), "done 2", *DOWN],
        *[*wait("reduce_scatter 3"), "done 3", *DOWN],
        *(4 * LANDED),
        *wait("all_reduce"),
        *(4 * ["up waits for compute"]),
        *(line for i in (3, 2, 1, 0) for line in [*wait("up"), *launch("gathers", f"all_gather {i}")]),
    ]


@pytest.mark.parametrize("name", [StrategyName.ZERO2, StrategyName.ZERO3])
@pytest.mark.parametrize("missing", ["wait", "wait_stream", None])
def test_nothing_races_with_a_copy_from_or_to_the_host(
    name: StrategyName, missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "wait":
        monkeypatch.setattr(StreamCopy, "wait", lambda self: None)
    if missing == "wait_stream":
        ordered = Stream.wait_stream
        monkeypatch.setattr(
            Stream, "wait_stream", lambda self, other: None if self.name in ("down", "up") else ordered(self, other)
        )
    with pytest.raises(RaceError) if missing else nullcontext():
        log = offloaded(monkeypatch, name).log
        assert log.count(*DOWN) == log.count(*LANDED) == log.count("up waits for compute") == 4
