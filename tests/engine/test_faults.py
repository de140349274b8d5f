"""However a run ends, it ends soon, says why on one line, and leaves no half-written file and no process."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from overlaplab_engine.errors import EngineError
from overlaplab_engine.faults import MANAGED
from overlaplab_engine.launch import _first_cause, launch
from overlaplab_engine.network.communicator import is_lost_peer
from ranks.warm_ranks import WarmProcess
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

FAULTY = Path(__file__).with_name("faulty_engine.py")
SMALL = ["--layers", "2", "--width", "32", "--seq", "16", "--vocab", "50", "--batch", "2", "--warmup", "1"]
LIMIT_S = 250.0
"""On a busy machine, too; ranks that nobody ends wait 300 s for the one that failed."""


def started(line: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *line], stdout=pipe, stderr=pipe, text=True, env=os.environ | environment)


class Job:
    """A recording with a fault, started; `warm`: its launcher is a fork that has torch, and so are its ranks."""

    def __init__(
        self, out: Path, fault: str, *options: str, entry: tuple[str, ...] = (), nproc: int = 2, warm: bool = False
    ) -> None:
        self.out = out
        self.token = f"{os.getpid()}-{time.time_ns()}"
        ranks = () if entry else ("--nproc", str(nproc))
        line = [*entry, str(FAULTY), "--out", str(out), *ranks, "--device", "cpu", *SMALL, *options]
        self.noted = out.parent / "processes"
        self.noted.mkdir()
        environment = {"FAULT": fault, "TOKEN": self.token, "STALLED": str(out.parent / "stalled")}
        self.asked = out.parent / "asked"
        environment |= {"PROCESSES": str(self.noted), "ASKED": str(self.asked)}
        self.started = time.monotonic()
        self.process = WarmProcess(line, environment) if warm else started(line, environment)

    def end(self) -> tuple[int, list[str]]:
        """Exit code and the lines on stderr; stdout must be empty."""
        stdout, stderr = self.process.communicate(timeout=LIMIT_S + 60)
        assert stdout == "" or torch.__version__.startswith("2.9.")  # whose gloo greets there
        return self.process.returncode, stderr.splitlines()

    def wait_until_stalled(self, ranks: int = 2) -> None:
        while not all((self.out.parent / f"stalled{rank}").exists() for rank in range(ranks)):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() - self.started < LIMIT_S
            time.sleep(0.05)

    def kill(self) -> None:
        """Leave nothing behind, however the test went."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def processes(self) -> list[int]:
        """Processes of this job that are alive."""
        found = []
        noted = {path.name for path in self.noted.iterdir()}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                alive = "\nState:\tZ" not in path.with_name("status").read_text()
                ours = path.parent.name in noted or f"TOKEN={self.token}".encode() in path.read_bytes()
                if alive and ours:
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def assert_clean(self) -> None:
        """No process left, no half-written file, what traces there are can be read, and none asked DNS for a name."""
        assert not self.asked.exists(), self.asked.read_text()
        assert self.processes() == []
        names = [path.name for path in self.out.iterdir()] if self.out.exists() else []
        assert all(name.endswith(".pt.trace.json.gz") for name in names), names
        for name in names:
            with gzip.open(self.out / name) as trace:
                assert json.load(trace)["traceEvents"]


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by /proc")
pytestmark = needs_proc


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def start(out: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(*arguments: str, **more: Any) -> Job:
        jobs.append(Job(out, *arguments, **more))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.mark.parametrize(
    ("fault", "options", "message"),
    [
        pytest.param(
            "1:2:raise",
            ("--strategy", "naive", "--link", "1Gbps,200us"),
            "rank 1: ZeroDivisionError: the boom",
            marks=pytest.mark.slow,
        ),
        ("0:3:raise-in-hook", ("--strategy", "torch-ddp", "--warmup", "2"), "rank 0: ZeroDivisionError: in a hook"),
        pytest.param(
            "0:3:raise-in-hook",
            ("--strategy", "per-param"),
            "rank 0: ZeroDivisionError: in a hook",
            marks=pytest.mark.slow,
        ),
        # The other rank is stuck, and says nothing.
        ("0:2:raise-in-backward", ("--strategy", "bucketed"), "rank 0: ZeroDivisionError: in a tensor's hook"),
        (
            "0:2:lose-peer",
            ("--strategy", "bucketed"),
            "rank 0: lost another rank (RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out)",
        ),
        ("1:2:kill", ("--strategy", "bucketed"), "rank 1: killed by SIGKILL"),
        pytest.param(
            "0:2:kill",
            ("--strategy", "torch-ddp", "--warmup", "2", "--link", "1Gbps,200us"),
            "rank 0: killed by SIGKILL",
            marks=pytest.mark.slow,
        ),
        pytest.param("1:2:exit", ("--strategy", "per-param"), "rank 1: ended with exit code 7", marks=pytest.mark.slow),
        pytest.param(
            "1:3:kill-in-gather", ("--strategy", "zero3"), "rank 1: killed by SIGKILL", marks=pytest.mark.slow
        ),
        ("0:3:kill-in-gather", ("--strategy", "zero3", "--link", "1Gbps,200us"), "rank 0: killed by SIGKILL"),
        pytest.param(
            "1:3:kill-in-gather",
            ("--strategy", "zero2", "--link", "1Gbps,200us"),
            "rank 1: killed by SIGKILL",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "0:3:raise-in-gather",
            ("--strategy", "zero3", "--prefetch", "2"),
            "rank 0: ZeroDivisionError: in a hook",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "0:3:raise-in-forward",
            ("--strategy", "zero3"),
            "rank 0: ZeroDivisionError: in a hook",
            marks=pytest.mark.slow,
        ),
        (
            "1:3:other-order",
            ("--strategy", "zero3"),
            "rank 1: zero3 needs all ranks to run the same units in the same order: "
            "here came using layers.1, other than in the pass before, and not on all ranks",
        ),
        (
            "1:0:mismatch",
            ("--strategy", "bucketed"),
            "rank X: the models differ: rank 0 has head.norm.weight [32] float32, "
            "rank 1 has layers.2.attention_norm.weight [32] float32",
        ),
    ],
)
def test_a_rank_that_fails_ends_the_run(
    start: Callable[..., Job], out: Path, fault: str, options: tuple[str, ...], message: str
) -> None:
    expect_failure(start(fault, *options, "--steps", "6", warm=True), message)


def expect_failure(job: Job, message: str) -> None:
    code, lines = job.end()
    assert time.monotonic() - job.started < LIMIT_S
    assert code == 2
    told = f"overlaplab record: {message}"
    # All ranks find out that their models differ; whichever is first says so.
    assert len(lines) == 1
    assert lines[0] in (told, told.replace("X", "0"), told.replace("X", "1"))
    job.assert_clean()


def test_a_recording_that_saw_nothing_on_its_device_is_no_run(start: Callable[..., Job]) -> None:
    job = start("1:0:no-device-events", "--strategy", "naive", "--steps", "1", warm=True)
    code, lines = job.end()
    assert code == 2
    (line,) = lines
    assert line.startswith("overlaplab record: rank 1: the profiler saw nothing run on cpu: ")
    job.assert_clean()
    assert not {"run.json", "rank1.pt.trace.json.gz"} & {path.name for path in job.out.iterdir()}


def test_a_rendezvous_that_fails_is_an_error_on_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def launcher(*_: Any) -> Any:
        raise dist.DistNetworkError("no port\nis free")

    for name in (MANAGED, "KINETO_LOG_LEVEL", "TORCH_CPP_LOG_LEVEL", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # launch sets them for its ranks
    monkeypatch.setattr("overlaplab_engine.launch.elastic_launch", launcher)
    with pytest.raises(EngineError, match=r"^the ranks cannot be started: DistNetworkError: no port is free$"):
        launch(2, [], tmp_path)


def test_a_run_that_comes_through_asks_dns_for_no_name(start: Callable[..., Job], out: Path) -> None:
    """Those that end in a failure do not either (`assert_clean`)."""
    job = start("0:9:none", "--strategy", "naive", "--steps", "1", warm=True)
    assert job.end() == (0, [f"overlaplab record: naive, 1 steps on 2 ranks → {out}"])
    assert not job.asked.exists(), job.asked.read_text()


def failure(folder: Path, rank: int, exitcode: int, **told: Any) -> ProcessFailure:
    path = folder / f"error{rank}.json"
    if told:
        path.write_text(json.dumps({"timestamp": 0, "lost_peer": False, **told}))
    return ProcessFailure(local_rank=rank, pid=rank, exitcode=exitcode, error_file=str(path))


def test_consequences_come_after_causes(tmp_path: Path) -> None:
    """Each rank's end is a more likely cause than the ones before it."""
    failures = {}
    for rank, (exitcode, told, message) in enumerate(
        [
            (2, {}, "ended with exit code 2"),
            (2, {"message": "lost late", "lost_peer": True, "time_ns": 9}, "lost late"),
            (2, {"message": "lost", "lost_peer": True, "time_ns": 1}, "lost"),
            (7, {}, "ended with exit code 7"),
            (2, {"message": "late", "time_ns": 6}, "late"),
            (2, {"message": "boom", "time_ns": 5}, "boom"),
            (-signal.SIGKILL, {}, "killed by SIGKILL"),
        ]
    ):
        failures[rank] = failure(tmp_path, rank, exitcode, **told)
        assert _first_cause(failures) == f"rank {rank}: {message}"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer [127.0.0.1]:1"), True),
        (dist.DistNetworkError("recv: Broken pipe"), True),
        (dist.DistBackendError("ncclRemoteError: ... a remote process exiting prematurely."), True),
        (dist.DistBackendError("ncclSystemError\nLast error:\nConnection closed by remote peer"), True),
        (dist.DistBackendError("ncclUnhandledCudaError: Call to CUDA function failed."), False),
        (ZeroDivisionError("boom"), False),
    ],
)
def test_whose_error_it_is(error: BaseException, lost: bool) -> None:
    assert is_lost_peer(error) is lost


def test_what_the_failing_rank_recorded_is_kept(start: Callable[..., Job], out: Path) -> None:
    job = start("1:4:raise", "--strategy", "bucketed", "--steps", "6", warm=True)
    expect_failure(job, "rank 1: ZeroDivisionError: the boom")
    trace = json.loads(gzip.decompress((out / "rank1.pt.trace.json.gz").read_bytes()))
    steps = {e["name"] for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep")}
    assert {"ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"} <= steps


@pytest.mark.parametrize(("sent", "warm"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_an_interrupted_run_ends(start: Callable[..., Job], out: Path, sent: signal.Signals, warm: bool) -> None:
    """One rank asleep in Python, the other waiting in a collective."""
    job = start("1:2:stall", "--strategy", "bucketed", warm=warm)
    job.wait_until_stalled()
    assert len(job.processes()) == 3
    asked = time.monotonic()
    job.process.send_signal(sent)
    code, lines = job.end()
    assert time.monotonic() - asked < LIMIT_S
    assert (code, lines) == (2, [f"overlaplab record: interrupted by {sent.name}; all ranks have ended"])
    job.assert_clean()


def test_ranks_do_not_outlive_their_launcher(start: Callable[..., Job], out: Path) -> None:
    job = start("1:2:stall", "--strategy", "bucketed", warm=True)
    job.wait_until_stalled()
    job.process.kill()
    killed = time.monotonic()
    while job.processes():
        assert time.monotonic() - killed < LIMIT_S
        time.sleep(0.1)
    job.end()


def test_under_torchrun_the_rank_tells_its_error_itself(start: Callable[..., Job], out: Path) -> None:
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    job = start("1:2:raise", "--strategy", "bucketed", entry=run, warm=True)
    code, lines = job.end()
    assert time.monotonic() - job.started < LIMIT_S
    assert code != 0
    ours = [line for line in lines if line.startswith("overlaplab record:")]
    assert ours[0] == "overlaplab record: rank 1: ZeroDivisionError: the boom"
    job.assert_clean()
