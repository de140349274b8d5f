"""The emulated link between two real processes."""

import statistics
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from overlaplab_engine.config import AUTO_LINK
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network import carrier
from overlaplab_engine.network.calibration import LATENCIES_US, choose_link
from overlaplab_engine.network.communicator import Communicator
from overlaplab_engine.network.link import Kind
from ranks.engine_ranks import Scenarios, run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.alone

LINK = "0.1Gbps,1000us"
scenario = Scenarios()
MEGABYTE = torch.ones(250_000)  # 2 ms + 80 ms for an all-reduce of two
T_NS = 82_000_000


def modelled(comm: Communicator, since: int) -> list[tuple[Kind, int]]:
    return [(c.kind, c.modelled_ns) for c in comm.group.log[since:]]


@scenario()
def an_idle_link_takes_its_time_and_no_more(comm: Communicator) -> None:
    occupied = []
    for _ in range(5):
        comm.barrier()
        since = len(comm.group.log)
        start = time.perf_counter_ns()
        comm.all_reduce_max(MEGABYTE.clone()).wait()
        took = time.perf_counter_ns() - start
        (carried,) = comm.group.log[since:]
        assert (carried.kind, carried.nbytes, carried.modelled_ns) == (Kind.ALL_REDUCE, 1_000_000, T_NS)
        assert carried.occupied_ns >= T_NS
        assert took >= 0.95 * T_NS
        occupied.append(carried.occupied_ns)
    assert statistics.median(occupied) < 1.05 * T_NS  # a busy machine may delay one


@scenario()
def the_link_counts_from_the_last_arrival(comm: Communicator) -> None:
    comm.barrier()
    since = len(comm.group.log)
    time.sleep(0.3 * comm.rank)
    start = time.perf_counter()
    comm.all_reduce_max(MEGABYTE.clone()).wait()
    took = time.perf_counter() - start
    assert T_NS <= comm.group.log[since].occupied_ns < 3 * T_NS  # not 0.3 s more
    assert took >= (0.36 if comm.rank == 0 else 0.08)


@scenario()
def clocks_may_differ(comm: Communicator) -> None:
    """Rank 1's clock is 10 s behind. Uncorrected, a collective would end on one rank 10 s before its last arrival."""
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(carrier, "local_ns", lambda: time.time_ns() - 10_000_000_000)
        group = dist.new_group(backend="emulated")
        dist.all_reduce(MEGABYTE.clone(), group=group)
        (carried,) = [c for c in group.log if c.nbytes == 1_000_000]
        assert T_NS <= carried.occupied_ns < T_NS + 5_000_000_000
        group.close()


@scenario()
def one_collective_after_another(comm: Communicator) -> None:
    comm.barrier()
    start = time.perf_counter()
    works = [comm.all_reduce_max(MEGABYTE.clone()) for _ in range(3)]
    assert not works[2].is_completed(), "launching must not wait"
    works[0].wait()
    assert time.perf_counter() - start >= 0.08
    assert not works[2].is_completed()
    works[2].wait()
    assert time.perf_counter() - start >= 0.24


@scenario()
def a_collective_that_is_late_says_how_much(comm: Communicator) -> None:
    sleep = carrier.Alarm.sleep_until
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrier.Alarm, "sleep_until", lambda alarm, end_ns: sleep(alarm, end_ns + 30_000_000))
        since = len(comm.group.log)
        comm.all_reduce_max(MEGABYTE.clone()).wait()
        assert comm.group.log[since].occupied_ns >= T_NS + 30_000_000
        since = len(comm.group.messages)
        comm.exchange([(MEGABYTE, 1 - comm.rank)], [(torch.empty_like(MEGABYTE), 1 - comm.rank)]).wait()
        modelled_ns = [carried.modelled_ns for carried in comm.group.messages[since:]]
        assert modelled_ns == [81_000_000] * 2
        assert all(carried.occupied_ns >= 111_000_000 for carried in comm.group.messages[since:])


@scenario()
def groups_share_the_link(comm: Communicator) -> None:
    """Also if the ranks use them in different orders, and with other work on the default group."""
    groups = [dist.new_group(backend="emulated") for _ in range(2)]
    comm.barrier()
    start = time.perf_counter()
    works = [
        dist.all_reduce(MEGABYTE.clone(), group=group, async_op=True)
        for group in (groups if comm.rank == 0 else reversed(groups))
    ]
    works.append(comm.all_reduce_max(MEGABYTE.clone()))
    for work in works:
        work.wait()
    assert time.perf_counter() - start >= 3 * 0.082
    for group in groups:
        (carried,) = [c for c in group.log if c.nbytes == 1_000_000]
        assert carried.occupied_ns >= T_NS  # its own time, without what it waited for the link
        group.close()


@scenario()
def messages_take_their_time(comm: Communicator) -> None:
    """Both ranks send first, and wait later."""
    peer, got = 1 - comm.rank, [torch.zeros(250_000) for _ in range(2)]
    since = len(comm.group.messages)
    comm.barrier()
    start = time.perf_counter()
    works = []
    for tag, into in enumerate(got):
        works.append(dist.isend(torch.full((250_000,), 10.0 * comm.rank + tag), peer, tag=tag))
        works.append(dist.irecv(into, peer, tag=tag))
    for work in works:
        work.wait()
    assert time.perf_counter() - start >= 2 * 0.081  # one after the other, in each direction
    assert [into[0].item() for into in got] == [10.0 * peer, 10.0 * peer + 1]
    carried = comm.group.messages[since:]
    assert [(c.kind, c.nbytes, c.modelled_ns) for c in carried] == [(Kind.SEND_RECV, 1_000_000, 81_000_000)] * 4
    assert all(c.occupied_ns >= 81_000_000 for c in carried)
    small = torch.zeros(1)
    batch = [dist.P2POp(dist.isend, torch.full((1,), float(comm.rank)), peer), dist.P2POp(dist.irecv, small, peer)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert small.item() == peer
    if comm.rank == 0:
        dist.send(torch.full((1,), 5.0), 1)
    else:
        dist.recv(small, 0)
        assert small.item() == 5
    with pytest.raises(EngineError, match="must name its source"):
        dist.recv(small)


@scenario()
def lanes_post_their_messages(comm: Communicator) -> None:
    """A caller with a normal priority would hold gloo's lock while gloo's thread, which is urgent, takes its core."""
    peer, threads = 1 - comm.rank, []
    group, mover = comm.group, comm.group._mover

    def noted(name: str) -> Any:
        def post(*arguments: Any) -> Any:
            threads.append(threading.current_thread().name)
            return getattr(mover, name)(*arguments)

        return post

    group._mover = SimpleNamespace(send=noted("send"), recv=noted("recv"))
    try:
        sent = dist.isend(torch.ones(1), peer, tag=7)
        dist.recv(torch.zeros(1), peer, tag=7)
        sent.wait()
    finally:
        group._mover = mover
    assert threads == ["emulated-link-lane"] * 2


@scenario()
def exchanged_messages_keep_their_order(comm: Communicator) -> None:
    peer, got = 1 - comm.rank, torch.zeros(2, 3)
    since = len(comm.group.messages)
    sent = torch.stack([torch.full((3,), 10.0 * comm.rank + number) for number in range(2)])
    work = comm.exchange([(row, peer) for row in sent], [(row, peer) for row in got])
    work.wait()
    assert work.is_completed()
    assert got.tolist() == [[10.0 * peer] * 3, [10.0 * peer + 1] * 3]
    assert [(c.kind, c.nbytes) for c in comm.group.messages[since:]] == [(Kind.SEND_RECV, 12)] * 4


@scenario()
def rooted_collectives(comm: Communicator) -> None:
    rank, since = comm.rank, len(comm.group.log)
    x = torch.full((3,), float(rank + 1))
    dist.reduce(x, 1)
    assert x.tolist() == [3.0] * 3 or rank == 0
    parts = [torch.zeros(2) for _ in range(2)] if rank == 1 else None
    dist.gather(torch.full((2,), float(rank)), parts, dst=1)
    assert parts is None or [part.tolist() for part in parts] == [[0, 0], [1, 1]]
    out = torch.zeros(2)
    dist.scatter(out, [torch.full((2,), 7.0), torch.full((2,), 8.0)] if rank == 0 else None, src=0)
    assert out.tolist() == [7.0 + rank] * 2
    listed = [torch.zeros(1, 2), torch.zeros(2)]
    dist.all_to_all(listed, [torch.full((1, 2), 10.0 * rank), torch.full((2,), 10.0 * rank + 1)][:: 1 - 2 * rank])
    assert [part.tolist() for part in listed] == ([[[0, 0]], [11, 11]] if rank == 0 else [[[1, 1]], [10, 10]])
    alpha = 1_000_000  # a rank sends a byte in 80 ns
    assert modelled(comm, since) == [
        (Kind.REDUCE, alpha + 12 * 80),
        (Kind.GATHER, alpha + 16 * 40),
        (Kind.SCATTER, alpha + 16 * 40),
        (Kind.ALL_TO_ALL, alpha + 16 * 40),
    ]


@scenario()
def auto_chooses_a_latency_above_the_floor(comm: Communicator) -> None:
    link, move = comm.link, carrier.Carrier._move

    def slowly(self: Any, *args: Any) -> tuple[int, int]:
        time.sleep(0.004)
        return move(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrier.Carrier, "_move", slowly)
        comm.set_link(AUTO_LINK)
        floor_ns = choose_link(comm)
        chosen = comm.link
        assert floor_ns >= 4_000_000
        assert chosen.bandwidth_gbps == 1
        assert 5000 <= chosen.latency_us in LATENCIES_US  # 5000, unless the machine is busy
        assert comm.gather_objects(chosen.latency_us) == [chosen.latency_us] * 2
    comm.set_link(link)


@scenario()
def the_link_is_asleep(comm: Communicator) -> None:
    works = [comm.all_reduce_max(MEGABYTE.clone()) for _ in range(6)]
    cpu, start = time.process_time(), time.perf_counter()
    for work in works:
        work.wait()
    cpu, took = time.process_time() - cpu, time.perf_counter() - start
    assert took > 0.4
    assert cpu < 0.15 * took, f"{cpu} s of processor in {took} s"


@scenario()
def collectives_of_all_kinds(comm: Communicator) -> None:
    rank, group = comm.rank, comm.group
    since = len(comm.group.log)
    x = torch.full((4,), float(rank + 1))
    dist.all_reduce(x)
    assert x.tolist() == [3] * 4
    full = torch.empty(4)
    dist.all_gather_into_tensor(full, torch.full((2,), float(rank)))
    assert full.tolist() == [0, 0, 1, 1]
    parts = [torch.empty(2), torch.empty(2)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert [p.tolist() for p in parts] == [[0, 0], [1, 1]]
    half = torch.empty(2)
    dist.reduce_scatter_tensor(half, torch.arange(4.0))
    assert half.tolist() == ([0, 2] if rank == 0 else [4, 6])
    y = torch.full((2,), float(rank))
    dist.broadcast(y, src=1)
    assert y.tolist() == [1, 1]
    swapped = torch.empty(2)
    dist.all_to_all_single(swapped, torch.tensor([10.0 * rank, 10.0 * rank + 1]))
    assert swapped.tolist() == [rank, 10 + rank]
    dist.barrier()
    assert functional.all_reduce(torch.ones(2), "sum", group).tolist() == [2, 2]
    gathered = functional.all_gather_tensor(torch.full((1,), float(rank)), 0, group)
    assert gathered.tolist() == [0, 1]
    assert comm.gather_objects({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    assert comm.broadcast_object(f"from {rank}") == "from 0"
    kinds = [kind for kind, _ in modelled(comm, since)]
    assert kinds[:7] == [
        Kind.ALL_REDUCE,
        Kind.ALL_GATHER,
        Kind.ALL_GATHER,
        Kind.REDUCE_SCATTER,
        Kind.BROADCAST,
        Kind.ALL_TO_ALL,
        Kind.BARRIER,
    ]
    assert [c.nbytes for c in comm.group.log[since : since + 7]] == [16, 16, 16, 16, 8, 8, 0]
    assert [c.seq for c in comm.group.log] == list(range(len(comm.group.log)))


@scenario()
def torch_ddp_without_us(comm: Communicator) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 4))
    since = len(comm.group.log)
    model(torch.full((2, 4), float(comm.rank + 1))).sum().backward()
    assert model.module.weight.grad.tolist() == [[3.0] * 4] * 4
    assert [kind for kind, _ in modelled(comm, since)] == [Kind.ALL_REDUCE]


@scenario()
def torch_fsdp2(comm: Communicator) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    alone = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    alone.load_state_dict(model.state_dict())
    mesh = init_device_mesh("cpu", (comm.world_size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    since = len(comm.group.log)
    inputs = [torch.full((2, 4), float(rank + 1)) for rank in range(comm.world_size)]
    model(inputs[comm.rank]).square().sum().backward()
    (sum(alone(x).square().sum() for x in inputs) / comm.world_size).backward()
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), q.grad)
    assert {Kind.ALL_GATHER, Kind.REDUCE_SCATTER} <= {kind for kind, _ in modelled(comm, since)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(__file__, 2, tmp_path_factory.mktemp("link") / "found.json", LINK=LINK)


@pytest.mark.parametrize("name", scenario)
def test_scenario(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


if __name__ == "__main__":
    scenario.main()
