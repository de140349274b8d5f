"""`overlaplab.watch` on real gloo processes: whose waits are seen, and who is late.

The ranks run this file as a script; each scenario is a test.
"""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine import Recorder
from overlaplab_engine.alarm import waited_ns
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.strategies import Options, Strategy, class_of
from overlaplab_engine.watching.bursts import Bursts
from ranks.engine_ranks import Scenarios
from ranks.recorded_ranks import folder, wrapped
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import overlaplab
from overlaplab.analyses.watched.steps import watched_bursts, watched_steps
from overlaplab.load.watched import CellKind, load_watched

scenario = Scenarios(__file__)

GRADIENTS, GATHERS, OTHERS = "exposed_gradients_ns", "exposed_gathers_ns", "exposed_others_ns"
LATE_S = 0.1
"""How much longer the last rank takes: many times what an all-reduce of these models takes. On a busy machine the other
one may be late, too, but hardly in each step of a burst."""


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 32), nn.Linear(32, 16))


def watched_training(
    comm: Communicator, model: nn.Module, step: Callable[[int], None], *, steps: int = 7
) -> tuple[Any, Path]:
    """The steps' table of this rank after a training with one burst, of the steps 3, 4 and 5."""
    out = folder(comm)
    with overlaplab.watch(model, out, every=6) as watch:
        for number in range(steps):
            step(number)
            watch.step()
    dist.barrier()
    watched = load_watched(out)
    table = watched_steps(watched)
    bursts = watched_bursts(watched, table).drop(columns=["span_ns", "profiled"])
    table = table.merge(bursts, how="left", on=["rank", "step"])
    return table[table["rank"] == comm.rank].set_index("step"), out


def expect_known(table: Any, *columns: str) -> None:
    """In the burst these kinds are known and no others, and outside it none is."""
    for column in (GRADIENTS, GATHERS, OTHERS):
        assert table.index[table[column].notna()].tolist() == ([3, 4, 5] if column in columns else []), column


def backward(model: nn.Module, rank: int, late_rank: int | None = None) -> None:
    loss = model(torch.randn(4, 8)).square().sum()
    if rank == late_rank:
        time.sleep(LATE_S)
    loss.backward()


@scenario("plain", "unused", "static", "views")
def ddp_tells_its_waits(comm: Communicator, name: str) -> None:
    options: dict[str, Any] = {
        "unused": {"find_unused_parameters": True},
        "static": {"static_graph": True},
        "views": {"gradient_as_bucket_view": True},
    }.get(name, {})
    model = wrapped(**options)
    table, out = watched_training(comm, model, lambda _: backward(model, comm.rank, late_rank=1))
    expect_known(table, GRADIENTS)
    exposed = table.loc[[3, 4, 5], GRADIENTS]
    assert (exposed < table.loc[[3, 4, 5], "span_ns"]).all(), exposed
    if comm.rank == 0:
        assert exposed.max() > LATE_S * 0.5e9, exposed
    ranks = load_watched(out).ranks
    cells = [rank.cells_of_kind(CellKind.DDP_COMMUNICATION) for rank in ranks]
    assert cells[0]["number"].tolist() == cells[1]["number"].tolist() == [3, 4, 5]
    assert cells[1]["value"].sum() < cells[0]["value"].sum()  # the last one's are shortest


@scenario()
def a_watch_may_begin_late(comm: Communicator) -> None:
    """What DDP has measured before it is none of its steps'."""
    model = wrapped()
    for _ in range(4):
        backward(model, comm.rank)
    out = folder(comm)
    with overlaplab.watch(model, out, every=3, burst=3) as watch:
        for _ in range(4):
            backward(model, comm.rank)
            watch.step()
    dist.barrier()
    watched = load_watched(out)
    assert watched.ranks[comm.rank].header.notes == ()
    assert watched.ranks[comm.rank].cells_of_kind(CellKind.EXPOSED_DDP)["number"].tolist() == [0, 1, 2]


@scenario()
def an_accumulating_ddp_tells_the_last_microbatch(comm: Communicator) -> None:
    model = wrapped()

    def step(_: int) -> None:
        with model.no_sync():
            backward(model, comm.rank)
        backward(model, comm.rank)
        with torch.no_grad():
            model(torch.randn(4, 8))

    table, out = watched_training(comm, model, step)
    expect_known(table, GRADIENTS)
    assert load_watched(out).ranks[comm.rank].cells_of_kind(CellKind.EXPOSED_DDP)["number"].tolist() == [3, 4, 5]


@scenario("wait", "future")
def blocking_hooks_are_timed_themselves(comm: Communicator, name: str) -> None:
    model = wrapped()

    def hook(state: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        if comm.rank == 1:
            time.sleep(LATE_S)
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        if name == "wait":
            work.wait()
        else:
            work.get_future().wait()
        done: Future[torch.Tensor] = Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, hook)
    table, _ = watched_training(comm, model, lambda _: backward(model, comm.rank))
    expect_known(table, GRADIENTS)
    if comm.rank == 0:
        assert table.loc[[3, 4, 5], GRADIENTS].max() > LATE_S * 0.5e9, table[GRADIENTS]


@scenario()
def a_ddp_that_tells_nothing_is_unknown(comm: Communicator) -> None:
    """Its gradients are, also where other all-reduces are waited for."""
    model = wrapped()

    def step(_: int) -> None:
        with model.no_sync():
            backward(model, comm.rank)
        dist.all_reduce(torch.ones(3))

    table, _ = watched_training(comm, model, step)
    expect_known(table)
    assert table["exposed_comm_ns"].isna().all()


@scenario("layers", "hsdp")
def fsdp2_is_seen(comm: Communicator, name: str) -> None:
    model = layers()
    shape = {"layers": (2,), "hsdp": (2, 1)}[name]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    table, out = watched_training(comm, model, lambda _: backward(model, comm.rank, late_rank=1))
    expect_known(table, GRADIENTS, *([GATHERS] if name == "layers" else []))  # one rank has all shards of its own
    assert table.loc[3, "backward_ns"] > 0
    groups = set(load_watched(out).ranks[comm.rank].cells_of_kind(CellKind.ALL_REDUCE)["group"].tolist())
    # Only all-reduces are written, of the replicas. Those of the late rank may be over before it waits for them.
    are_expected = name == "hsdp" and (comm.rank == 0 or bool(groups))
    assert len(groups) == are_expected, groups


@scenario("blocking", "asynchronous")
def a_plain_loop_is_seen(comm: Communicator, name: str) -> None:
    model = layers()

    def step(_: int) -> None:
        backward(model, comm.rank, late_rank=1)
        works = [dist.all_reduce(p.grad, async_op=name == "asynchronous") for p in model.parameters()]
        for work in filter(None, works):
            work.wait()

    table, out = watched_training(comm, model, step)
    expect_known(table, GRADIENTS)
    took = [rank.cells_of_kind(CellKind.ALL_REDUCE) for rank in load_watched(out).ranks]
    first = [cells["value"][cells["number"] == 0] for cells in took]
    assert len(first[0]) == 3
    assert first[0].max() > LATE_S * 0.5e9, first
    assert first[1].sum() < first[0].sum(), first


@scenario("bucketed", "zero2", "zero3", "ring")
def strategies_of_the_engine_are_seen(comm: Communicator, name: str) -> None:
    strategy: Strategy = class_of(name)(layers(), comm, Options())
    optimizer = torch.optim.SGD([tensor for _, tensor in strategy.named_optimized()], lr=0.01)

    waited: dict[int, int] = {}

    def step(number: int) -> None:
        before_ns = waited_ns()
        strategy.zero_grad()
        if comm.rank == 1:
            time.sleep(LATE_S / 2)
        strategy.backward(strategy(torch.randn(4, 8)).square().sum())
        optimizer.step()
        strategy.updated()
        waited[number] = waited_ns() - before_ns

    table, _ = watched_training(comm, strategy.model, step)
    both = [(table.loc[number, "exposed_comm_ns"], waited[number]) for number in (3, 4, 5)]
    # The engine counts for itself, with what the watch does around each wait, and with what else a busy machine does.
    assert all(watched < counted * 1.05 + 1_000_000 for watched, counted in both), both
    assert any(counted * 0.8 - 2_000_000 < watched for watched, counted in both), both
    expect_known(table, GRADIENTS, *([GATHERS] if name.startswith("zero") else []))


@scenario()
def other_collectives_are_others(comm: Communicator) -> None:
    def step(_: int) -> None:
        objects: list[Any] = [comm.rank]
        dist.broadcast_object_list(objects, 0)
        dist.barrier()
        if comm.rank == 0:
            dist.send(torch.ones(2), 1)
        else:
            dist.recv(torch.ones(2), 0)

    table, _ = watched_training(comm, nn.Linear(1, 1), step)
    expect_known(table, OTHERS)


@scenario()
def a_compiled_model_is_seen(comm: Communicator) -> None:
    compiled: Any = torch.compile(DistributedDataParallel(layers()), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table, _ = watched_training(comm, compiled, lambda _: backward(compiled, comm.rank))
    expect_known(table, GRADIENTS)


@scenario()
def training_is_what_it_would_be(comm: Communicator) -> None:
    results = []
    for watched in (False, True):
        model = wrapped()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(comm.rank)

        def step(_: int, model: Any = model, optimizer: Any = optimizer, generator: Any = generator) -> None:
            model(torch.randn(4, 8, generator=generator)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        if watched:
            watched_training(comm, model, step)
        else:
            for number in range(7):
                step(number)
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@scenario()
def all_ranks_record_at_one_step_by_themselves(comm: Communicator) -> None:
    """From step 350 on rank 1 is late, which rank 0 sees two bursts later; rank 1 sees nothing unusual."""
    out, model, bursts = folder(comm), layers(), Bursts(every=100, burst=3)
    with Recorder(out, model, warmup=1, steps=1, record_when="exposed > 3 * median", times=1) as recorder:
        for number in range(650):
            loss = model(torch.randn(4, 8)).square().sum()
            if comm.rank == 1 and number >= 350 and bursts.holds(number):  # nobody measures the others
                time.sleep(LATE_S)
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            recorder.step()
    dist.barrier()
    (recorded,) = out.glob("step-*")
    assert sorted(run.name for run in recorded.iterdir()) == [
        *("rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz", "run.json")
    ]
    links = {each for rank in load_watched(out / "watch").ranks for each in rank.header.recordings}
    assert {f"step-{link.step}" for link in links} == {recorded.name}, links
    assert all(link.path == str(recorded) and link.reason.startswith("exposed ") for link in links), links


found = scenario.found


@pytest.mark.parametrize(("found", "name"), scenario.on(2), indirect=["found"])
def test_on_gloo(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


@pytest.mark.parametrize(
    ("found", "name"), scenario.on(2, "strategies|ddp_tells.*plain|layers", link=True), indirect=["found"]
)
def test_behind_an_emulated_link(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
