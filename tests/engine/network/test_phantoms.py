"""One rank of an emulated group: the data that its phantoms move, and its link on a CPU and on a stream."""

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from overlaplab_engine.cli import main
from overlaplab_engine.config import Config, Device
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network import process_group
from overlaplab_engine.network.device_clock import EDGES_NS, SLOTS, DeviceClock
from overlaplab_engine.network.link import Kind, Link, LinkWait
from overlaplab_engine.network.phantoms import BLOCK_ELEMENTS, SCALE, Phantoms
from overlaplab_engine.network.process_group import Emulation
from overlaplab_engine.network.stream_carrier import StreamCarrier
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.train import _device, record
from ranks.phantom_trials import CPU, group_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

SLOW = Link(bandwidth_gbps=1, latency_us=1000)


def reduction(op: Any) -> Any:
    return SimpleNamespace(reduceOp=op)


# What phantoms move


@pytest.mark.parametrize(
    ("op", "factor"),
    [(dist.ReduceOp.SUM, 8), (dist.ReduceOp.AVG, 1), (dist.ReduceOp.MAX, 1), (dist.ReduceOp.MIN, 1)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int64])
def test_a_reduction_is_that_of_equal_ranks(op: Any, factor: int, dtype: torch.dtype) -> None:
    x, y = torch.tensor([[1, 2], [3, 4]], dtype=dtype), torch.arange(100_000, dtype=torch.float32)
    Phantoms(3, 8).allreduce([x, y], reduction(op)).wait()
    assert x.tolist() == [[factor, 2 * factor], [3 * factor, 4 * factor]]
    assert torch.equal(y, factor * torch.arange(100_000))
    part, full = torch.zeros(2, dtype=dtype), torch.arange(16, dtype=dtype)
    Phantoms(3, 8)._reduce_scatter_base(part, full, reduction(op)).wait()
    assert part.tolist() == [6 * factor, 7 * factor]
    assert full.tolist() == list(range(16))
    own = full[6:8]
    Phantoms(3, 8)._reduce_scatter_base(own, full, reduction(op)).wait()
    assert full.tolist() == [0, 1, 2, 3, 4, 5, 6 * factor, 7 * factor, *range(8, 16)]
    out = torch.zeros(2, dtype=dtype)
    Phantoms(1, 2).reduce_scatter([out], [[torch.zeros(2, dtype=dtype), part]], reduction(op)).wait()
    assert out.tolist() == (part * {8: 2, 1: 1}[factor]).tolist()


def test_a_gather_holds_this_ranks_part_and_small_values() -> None:
    phantoms = Phantoms(1, 4)
    full, own = torch.full((40_000,), torch.nan), torch.full((10_000,), 7.0)
    phantoms._allgather_base(full, own, None).wait()
    assert (full[10_000:20_000] == 7).all()
    theirs = torch.cat([full[:10_000], full[20_000:]])
    assert 0.9 * SCALE < float(theirs.std()) < 1.1 * SCALE
    assert float(theirs.abs().max()) < 10 * SCALE
    again = torch.zeros(40_000)
    again[10_000:20_000] = 7
    phantoms._allgather_base(again, again[10_000:20_000], None).wait()  # in place; and phantoms send what they sent
    assert torch.equal(again, full)
    counts = torch.full((4,), 9)
    phantoms._allgather_base(counts, torch.tensor([5]), None).wait()
    assert counts.tolist() == [0, 5, 0, 0]
    listed = [torch.zeros(2) for _ in range(4)]
    phantoms.allgather([listed], [torch.ones(2)], None).wait()
    assert [part.tolist() for part in listed] == [[1, 1]] * 4


def test_messages_and_rooted_collectives_of_one_rank() -> None:
    phantoms = Phantoms(1, 3)
    here, there = (SimpleNamespace(rootRank=root, reduceOp=dist.ReduceOp.SUM) for root in (1, 0))
    x, y = torch.ones(2), torch.ones(2)
    phantoms.reduce([x], here)
    phantoms.reduce([y], there)
    assert (x.tolist(), y.tolist()) == ([3, 3], [1, 1])
    listed = [torch.zeros(2) for _ in range(3)]
    phantoms.gather([listed], [y], here)
    phantoms.gather([], [y], there)
    assert [part.tolist() for part in listed] == [[1, 1]] * 3
    out = torch.zeros(2)
    phantoms.scatter([out], [[torch.full((2,), float(rank)) for rank in range(3)]], here)
    assert out.tolist() == [1, 1]
    phantoms.scatter([out], [], there)
    assert 0 < float(out.abs().max()) < 10 * SCALE
    swapped, full = torch.full((6,), torch.nan), torch.arange(6.0)
    phantoms.alltoall_base(swapped, full, [], [], None)
    assert swapped[2:4].tolist() == [2, 3]
    assert float(torch.cat([swapped[:2], swapped[4:]]).abs().max()) < 10 * SCALE
    phantoms.alltoall_base(uneven := torch.full((4,), torch.nan), full, [1, 2, 1], [1, 2, 3], None)
    assert uneven[1:3].tolist() == [1, 2]
    assert not uneven.isnan().any()
    phantoms.recv([out.fill_(torch.nan)], 0, 0)
    phantoms.send([out], 0, 0)
    assert not out.isnan().any()


def test_scratch_is_a_block_per_type_however_much_is_moved() -> None:
    phantoms, block = Phantoms(0, 2), BLOCK_ELEMENTS["cpu"]
    assert phantoms.scratch_bytes == 0
    phantoms.allreduce([torch.ones(10)], reduction(dist.ReduceOp.SUM))
    assert phantoms.scratch_bytes == 40
    for numel in (10, 200_000, 100_000):
        phantoms._allgather_base(torch.ones(2 * numel), torch.ones(numel), None)
        phantoms.broadcast([torch.ones(numel)], None)
    assert phantoms.scratch_bytes == 2 * 4 * block
    phantoms.allreduce([torch.ones(block, dtype=torch.float64)], reduction(dist.ReduceOp.SUM))
    assert phantoms.scratch_bytes == 2 * 4 * block + 8 * block


def test_memory_is_read_and_written_as_a_ring_would(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = {"sent": 0, "received": 0}
    stage, peers = Phantoms._stage, Phantoms._peers

    def counting_stage(self: Phantoms, block: torch.Tensor) -> torch.Tensor:
        moved["sent"] += block.numel()
        return stage(self, block)

    def counting_peers(self: Phantoms, block: torch.Tensor) -> torch.Tensor:
        moved["received"] += block.numel()
        return peers(self, block)

    monkeypatch.setattr(Phantoms, "_stage", counting_stage)
    monkeypatch.setattr(Phantoms, "_peers", counting_peers)
    phantoms, full, part = Phantoms(2, 4), torch.ones(100_000), torch.ones(25_000)
    for move, sent, received in [
        (lambda: phantoms.allreduce([full], reduction(dist.ReduceOp.AVG)), 100_000, 0),
        (lambda: phantoms._reduce_scatter_base(part, full, reduction(dist.ReduceOp.SUM)), 125_000, 0),
        (lambda: phantoms._allgather_base(full, part, None), 0, 75_000),
        (lambda: phantoms.broadcast([part], None), 25_000, 0),
    ]:
        moved |= {"sent": 0, "received": 0}
        move()
        assert moved == {"sent": sent, "received": received}


def test_autograd_takes_no_notice() -> None:
    """As with any backend: neither an operation on a leaf nor a new version of what is saved."""
    leaf = torch.ones(4, requires_grad=True)
    loss = (leaf * leaf).sum()
    phantoms = Phantoms(0, 2)
    phantoms.allreduce([leaf], reduction(dist.ReduceOp.SUM))
    phantoms._allgather_base(leaf, torch.zeros(2), None)
    loss.backward()
    assert leaf.grad is not None
    assert leaf._version == 0


def test_what_phantoms_cannot_do_is_one_line() -> None:
    phantoms = Phantoms(0, 2)
    with pytest.raises(EngineError, match="only SUM, AVG, MAX and MIN"):
        phantoms.allreduce([torch.ones(1)], reduction(dist.ReduceOp.PRODUCT))


# The group


def test_torch_sees_a_group_of_eight() -> None:
    with group_of(8, rank=2) as comm:
        assert (dist.get_world_size(), dist.get_rank(), comm.world_size, comm.rank) == (8, 2, 8, 2)
        assert comm.phantom_ranks == [0, 1, 3, 4, 5, 6, 7]
        assert comm.exchange_through_store("key", "value", 1.0) == ["value"] * 8
        assert comm.gather_objects({"a": 1}) == [{"a": 1}] * 8
        assert comm.broadcast_object("mine") == "mine"
        comm.barrier()
        everyones: list[Any] = [None] * 8
        dist.all_gather_object(everyones, {"b": 2})
        assert everyones == [{"b": 2}] * 8
        assert functional.all_reduce(torch.ones(2), "sum", comm.group).tolist() == [8, 8]
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("outer", "inner"))  # groups of a part of the ranks
        x = torch.ones(1)
        dist.all_reduce(x, group=mesh["inner"].get_group())
        assert x.tolist() == [2]
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(2, 2))  # without a hook: its reducer asks the work for a future
        model(torch.ones(3, 2)).sum().backward()
        assert model.module.weight.grad.tolist() == [[3, 3], [3, 3]]


def test_a_closed_group_leaves_nothing_behind() -> None:
    """Neither memory, which a later recording in this process would count as its own, nor threads."""
    for _ in range(2):
        with group_of(8) as comm:
            comm.all_gather(torch.zeros(8000), torch.ones(1000)).wait()
            comm.all_reduce_max(torch.ones(10)).wait()
            assert comm.scratch_bytes == 4 * (7000 + 10)
            lent = [
                weakref.ref(t)
                for held in (comm.group._mover._scratch, comm.group._mover._staging)
                for t in held.values()
            ]
            groups = [weakref.ref(comm.group), weakref.ref(dist.new_group([0, 1]))]
            assert len(lent) == 2
            assert all(group() for group in groups)
        assert comm.scratch_bytes == 0
        assert comm.phantom_ranks == list(range(1, 8))
        assert [t() for t in lent] == [None, None]
        del comm
        gc.collect()
        assert [group() for group in groups] == [None, None]
        assert [t.name for t in threading.enumerate() if t.name == "emulated-link"] == []


@pytest.mark.alone
def test_a_thread_takes_each_collectives_time() -> None:
    with group_of(8, link=SLOW) as comm:  # 14 ms, and 1.75 × 8 µs per kB
        start = time.perf_counter_ns()
        works = [comm.all_reduce_max(torch.ones(250_000)) for _ in range(2)]
        assert not works[1].is_completed(), "launching must not wait"
        for work in works:
            work.wait()
        took = time.perf_counter_ns() - start
        carried = comm.group.log
        assert [(c.kind, c.nbytes, c.modelled_ns) for c in carried] == [(Kind.ALL_REDUCE, 1_000_000, 28_000_000)] * 2
        assert all(c.occupied_ns >= 28_000_000 for c in carried)
        assert 0.99 * 56_000_000 <= took < 10 * 56_000_000  # on a busy machine, too
        assert comm.group.carrier.launched == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--link", "1Gbps,1us,8", "--save", "kept"],
            "the losses and parameters of one rank of an emulated group are meaningless",
        ),
        (
            ["--link", "1Gbps,1us,8", "--resume", "kept"],
            "the losses and parameters of one rank of an emulated group are meaningless",
        ),
        (
            ["--nproc", "2", "--link", "1Gbps,1us,8"],
            "--link 1Gbps,1us,8: WORLD does not match the 2 ranks that are recorded; leave WORLD out, or record one "
            "rank of 8 with --nproc 1",
        ),
    ],
)
def test_bad_input_is_one_line(
    options: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fixed = ["--strategy", "bucketed", "--device", "cpu", "--nproc", "1", "--out", str(tmp_path / "run")]
    assert main([*fixed, *options]) == 2
    _, err = capfd.readouterr()
    assert err.startswith(f"overlaplab record: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_on_gpus_a_link_is_around_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    config = Config(strategy=StrategyName.NAIVE, out=tmp_path, device=Device.CUDA, link=SLOW)
    with pytest.raises(EngineError, match="--link on a GPU emulates a group around a single rank"):
        _device(config)


# The stream


class FakeCuda:
    """Streams and a clock that write down what they are told."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = FakeStream(self, "compute")

    def Stream(self, device: torch.device, priority: int) -> "FakeStream":  # noqa: N802
        return FakeStream(self, f"link({priority})")

    def current_stream(self, device: torch.device) -> "FakeStream":
        return self.current

    @contextmanager
    def stream(self, stream: "FakeStream") -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def begin(self, slot: int, stream: "FakeStream") -> None:
        self.log.append(f"{stream.name}: begin {slot}")

    def wait_until(self, slot: int, ns: int, stream: "FakeStream") -> None:
        self.log.append(f"{stream.name}: wait {slot} {ns}")

    def occupied_ns(self, count: int) -> list[int]:
        return [1_000_000 * (slot + 1) for slot in range(count)]

    def check(self) -> None:
        self.log.append("check")

    def close(self) -> None:
        self.log.append("close")


class FakeStream:
    device = torch.device("cuda", 0)

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: "FakeStream") -> None:
        self.cuda.log.append(f"{self.name}: after {other.name}")

    def wait_event(self, event: str) -> None:
        self.cuda.log.append(f"{self.name}: after {event}")

    def record_event(self) -> str:
        self.cuda.log.append(f"{self.name}: record")
        return f"event {len(self.cuda.log)}"

    def synchronize(self) -> None:
        self.cuda.log.append(f"{self.name}: synchronize")


class FakeWork:
    """Something that is moved when it is waited for."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def wait(self) -> None:
        self.cuda.log.append(f"{self.cuda.current.name}: moved")


def test_a_stream_carries_in_order_and_the_host_waits_for_nothing() -> None:
    cuda = FakeCuda()
    carrier = StreamCarrier(Link(bandwidth_gbps=8, latency_us=10), 8, FakeStream.device, clock=cuda, cuda=cuda)
    big = [SimpleNamespace(is_cuda=True, nbytes=1_000_000, dtype=torch.float32)]
    first = carrier.submit(Kind.ALL_GATHER, big, lambda: FakeWork(cuda), big)
    cuda.current = FakeStream(cuda, "gathers")
    second = carrier.submit(Kind.ALL_REDUCE, big, lambda: FakeWork(cuda), big)
    assert second.wait()
    cuda.current = FakeStream(cuda, "compute")
    assert first.wait()
    assert carrier.launched == 2
    assert cuda.log == [
        "link(-1): after compute",
        "link(-1): begin 0",
        "link(-1): moved",
        "link(-1): wait 0 945000",  # 7 × 10 µs + 7/8 × 1 µs per kB
        "link(-1): record",
        "link(-1): after gathers",
        "link(-1): begin 1",
        "link(-1): moved",
        "link(-1): wait 1 1890000",
        "link(-1): record",
        "gathers: after event 10",
        "compute: after event 5",
    ]
    assert [(c.seq, c.kind, c.modelled_ns, c.occupied_ns, c.overran) for c in carrier.log] == [
        (0, Kind.ALL_GATHER, 945_000, 1_000_000, True),
        (1, Kind.ALL_REDUCE, 1_890_000, 2_000_000, True),
    ]
    assert cuda.log[-1] == "link(-1): synchronize"
    carrier.check()
    carrier.close()
    assert cuda.log[-3:] == ["check", "link(-1): synchronize", "close"]


def test_all_groups_on_a_device_share_its_stream() -> None:
    cuda = FakeCuda()
    one, other = (StreamCarrier(SLOW, 8, FakeStream.device, clock=cuda, cuda=cuda) for _ in range(2))
    assert one._stream is other._stream
    assert one._stream is not StreamCarrier(SLOW, 8, torch.device("cuda", 1), clock=cuda, cuda=cuda)._stream


def test_what_the_host_holds_is_moved_at_once() -> None:
    cuda = FakeCuda()
    carrier = StreamCarrier(SLOW, 8, FakeStream.device, clock=cuda, cuda=cuda)
    group = process_group.EmulatedLinkGroup(0, 8, Phantoms(0, 8), carrier)
    x, swapped = torch.ones(2), [torch.zeros(1) for _ in range(8)]
    works = [group.allreduce([x]), group.alltoall(swapped, [torch.ones(1) for _ in range(8)])]
    assert x.tolist() == [8, 8]
    assert swapped[0].tolist() == [1]
    assert all(work.wait() and work.is_completed() for work in works)
    assert (cuda.log, carrier.launched) == ([], 0)


@pytest.mark.parametrize("wait", LinkWait)
def test_the_clock_is_the_one_that_was_asked_for(
    wait: LinkWait, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the configuration to the group."""
    gpu, asked = FakeStream.device, []

    def join(backend: str, pg_options: Emulation, **_: Any) -> None:
        asked.append(pg_options)
        raise RuntimeError("far enough")

    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(dist, "init_process_group", join)
    monkeypatch.setenv("WORLD_SIZE", "1")
    config = Config(strategy=StrategyName.NAIVE, out=tmp_path, link=replace(SLOW, world_size=8), link_wait=wait)
    monkeypatch.setattr("overlaplab_engine.train._device", lambda config: gpu)
    with pytest.raises(EngineError, match="far enough"):
        record(config, [])
    assert current == [gpu]
    monkeypatch.setattr("overlaplab_engine.network.stream_carrier.DeviceClock", lambda device: ("kernel", device))
    monkeypatch.setattr("overlaplab_engine.network.stream_carrier.HostClock", lambda device: ("host", device))
    monkeypatch.setattr(process_group, "StreamCarrier", lambda *told: told)
    monkeypatch.setattr(process_group, "EmulatedLinkGroup", lambda rank, size, mover, carrier: carrier)
    made = process_group._create(SimpleNamespace(group_rank=0, group_size=8), asked[0])
    assert made == (SLOW, 8, gpu, (wait, gpu))


class FakeDriver:
    """Takes the kernels' arguments apart, as the driver does when it launches."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, list[int]]] = []
        self.error = 0

    def cuLaunchKernel(self, name: str, *rest: Any) -> int:  # noqa: N802
        assert rest[:7] == (1, 1, 1, 1, 1, 1, 0)
        count = {"emulated_link_begin": 1, "emulated_link_wait": 2}[name]
        assert (rest[7].value, rest[9]) == (77, None)
        self.launched.append((name, [ctypes.c_uint64.from_address(rest[8][i]).value for i in range(count)]))
        return self.error


def test_the_devices_clock_has_a_slot_for_each_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, stream = FakeDriver(), SimpleNamespace(cuda_stream=77)
    loaded = lambda ptx, names: {name: SimpleNamespace(func=name) for name in names}  # noqa: E731
    monkeypatch.setattr("torch.cuda._utils._cuda_load_module", loaded)
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": driver}.__getitem__)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    clock = DeviceClock(CPU)
    (block,) = clock._blocks
    driver.launched.clear()
    clock.begin(3, stream)
    clock.wait_until(3, 10_000_000_000, stream)
    clock.wait_until(4, 1, stream)
    assert driver.launched == [
        ("emulated_link_begin", [block.data_ptr() + 48]),
        ("emulated_link_wait", [block.data_ptr() + 48, 10_000_000_000 - EDGES_NS]),
        ("emulated_link_wait", [block.data_ptr() + 64, 0]),
    ]
    clock.begin(SLOTS, stream)
    assert driver.launched[-1] == ("emulated_link_begin", [clock._blocks[1].data_ptr()])
    block[:, 0], block[:, 1] = 1_000, 5_000
    clock._blocks[1][0] = torch.tensor([10, 110])
    assert clock.occupied_ns(2) == [4_000 + EDGES_NS] * 2
    assert clock.occupied_ns(SLOTS + 1)[-1] == 100 + EDGES_NS
    driver.error = 700
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        clock.begin(0, stream)
