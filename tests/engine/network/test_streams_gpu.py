"""On a GPU: the real streams, with one rank over NCCL, and with one rank of an emulated group of 8."""

import copy
import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from devices.gpu_testing import GPU_TESTS, limit, run
from overlaplab_engine.models.batches import place
from overlaplab_engine.network.communicator import Communicator, connect
from overlaplab_engine.network.host_link import HostStreams, StreamCopy, Way
from overlaplab_engine.network.link import Kind, Link
from overlaplab_engine.network.streams import CommStreams, StreamWork
from overlaplab_engine.optimizer import AdamW
from overlaplab_engine.strategies import Options, make
from overlaplab_engine.strategy_names import StrategyName
from overlaplab_engine.train import train_step
from ranks.engine_trials import BATCHES, SMALL_CAP_MB, transformer
from strategies import ALONE

pytestmark = GPU_TESTS

MILLISECOND = 2_000_000
"""In cycles, about."""
RECORDING_S = 80.0
"""How long the engine's command may take."""


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Communicator]]:
    """A group of this process alone."""
    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    joined: list[Communicator] = []

    def join(link: str | None = None, communicators: int = 1) -> Communicator:
        joined.append(connect(torch.device("cuda", 0), link and Link.parse(link), communicators=communicators))
        return joined[-1]

    yield join
    for comm in joined:
        comm.close()


def off_from_one_process(comm: Communicator, name: StrategyName, steps: int = 4, offload: bool = False) -> float:
    """By how much a parameter differs at most, after so many updates in float64."""
    model = transformer().to(comm.device)
    alone = copy.deepcopy(model)
    strategy = make(name, model, comm, Options(bucket_cap_mb=SMALL_CAP_MB, offload=offload))
    optimizer, alone_optimizer = AdamW(strategy.optimized(), lr=1e-3), AdamW(alone.parameters(), lr=1e-3)
    for step in range(steps):
        train_step(strategy, optimizer, BATCHES, step, accumulate=1, clip_norm=None)
        alone.zero_grad()
        alone(*place(BATCHES.rank_batch(step, 0, 0), comm.device)).backward()
        alone_optimizer.step()
    strategy.settle()
    got = strategy.full_parameters()
    return max(float((got[n] - p).detach().abs().nan_to_num(torch.inf).max()) for n, p in alone.named_parameters())


def slow_streams(monkeypatch: pytest.MonkeyPatch, milliseconds: int = 1) -> None:
    """Every collective is late, so that whatever does not wait for it reads something else."""
    launch = CommStreams.launch

    def late(self: CommStreams, kind: Kind, call: Callable[[], object]) -> StreamWork:
        return launch(self, kind, lambda: (torch.cuda._sleep(milliseconds * MILLISECOND), call()))

    monkeypatch.setattr(CommStreams, "launch", late)


@pytest.mark.parametrize("name", ALONE)
def test_one_rank_over_nccl_is_one_process(
    name: StrategyName, join: Callable[..., Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_streams(monkeypatch)
    assert off_from_one_process(join(), name) <= 1e-10


def test_gathers_may_have_a_communicator_of_their_own(
    join: Callable[..., Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1")  # as `connect` does, and for this test alone
    slow_streams(monkeypatch)
    assert off_from_one_process(join(communicators=2), StrategyName.ZERO3) <= 1e-10


@pytest.mark.parametrize("name", [StrategyName.ZERO2, StrategyName.ZERO3, StrategyName.TORCH_FSDP2])
def test_offloaded_updates_are_those_of_one_process(
    name: StrategyName, join: Callable[..., Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_streams(monkeypatch)
    copy = HostStreams.copy

    def late(self: HostStreams, way: Way, destination: torch.Tensor, source: torch.Tensor) -> StreamCopy:
        with torch.cuda.stream(self._streams[way]):
            torch.cuda._sleep(MILLISECOND)
        return copy(self, way, destination, source)

    monkeypatch.setattr(HostStreams, "copy", late)
    assert off_from_one_process(join(), name, offload=True) <= 1e-10


@limit(RECORDING_S + 60)
def test_a_recording_shows_copies_of_pinned_memory(tmp_path: Path) -> None:
    options = ["--strategy", "zero2", "--offload", "--nproc", "1", "--link", "none", "--layers", "3", "--steps", "2"]
    run_folder = recorded(tmp_path / "run", "--device", "cuda", *options)
    assert json.loads((run_folder / "run.json").read_text())["host_link"] is None
    with gzip.open(run_folder / "rank0.pt.trace.json.gz") as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    ways = Counter(name.split()[1] for name in names if name.startswith("engine::copy"))
    assert ways["way=down"] == ways["way=up"] > 0
    assert names.count("Memcpy DtoH (Device -> Pinned)") >= ways["way=down"]
    assert names.count("Memcpy HtoD (Pinned -> Device)") >= ways["way=up"]


@pytest.mark.parametrize("name", [StrategyName.ZERO2, StrategyName.ZERO3])  # of one rank others move nothing
def test_a_missing_wait_is_wrong(
    name: StrategyName, join: Callable[..., Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_streams(monkeypatch, 50)  # later than a slow host comes to what should wait
    monkeypatch.setattr(StreamWork, "wait", lambda self: None)
    assert off_from_one_process(join(), name) > 1e-10


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("link", [None, "400Gbps,10us,8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_host_never_waits_in_a_step(
    name: StrategyName, link: str | None, dtype: torch.dtype, join: Callable[..., Communicator]
) -> None:
    comm = join(link)
    ours = name not in (StrategyName.TORCH_DDP, StrategyName.TORCH_FSDP2)
    options = Options(bucket_cap_mb=SMALL_CAP_MB, main_grad=ours and dtype is torch.bfloat16)
    strategy = make(name, transformer(dtype=dtype).to(comm.device), comm, options)
    optimizer = AdamW(strategy.optimized(), lr=1e-3)
    losses = []
    for step in range(5):
        torch.cuda.set_sync_debug_mode("error" if step >= 3 else "default")
        try:
            losses.append(train_step(strategy, optimizer, BATCHES, step, accumulate=2, clip_norm=1.0))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    strategy.settle()
    assert torch.stack(losses).isfinite().all()


def recorded(out: Path, *options: str) -> Path:
    code, said = run([sys.executable, "-m", "overlaplab_engine", *options, "--out", str(out)], RECORDING_S)
    assert code == 0, said
    return out


@limit(RECORDING_S + 60)
def test_a_recording_over_nccl_has_what_the_analyser_reads(tmp_path: Path) -> None:
    options = ["--strategy", "zero3", "--nproc", "1", "--link", "none", "--layers", "3", "--steps", "2"]
    run_folder = recorded(tmp_path / "run", "--device", "cuda", *options)
    assert json.loads((run_folder / "run.json").read_text())["backend"] == "nccl"
    with gzip.open(run_folder / "rank0.pt.trace.json.gz") as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    collectives = [name for name in names if name.startswith("engine::comm")]
    assert sum("kind=all_gather" in name for name in collectives) == 2 * 7  # 2L + 1
    assert sum("kind=reduce_scatter" in name for name in collectives) == 2 * 5
    assert names.count("record_param_comms") >= len(collectives)
