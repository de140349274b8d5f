"""On a GPU: a stream that waits for the host takes its time, shows two copies in a trace, and goes on at the end."""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from devices.gpu_testing import GPU_TESTS, limit, run
from overlaplab_engine.network.host_clock import HostClock
from torch.profiler import ProfilerActivity, profile

pytestmark = GPU_TESTS

GPU = torch.device("cuda", 0)
HOUR_NS = 3_600_000_000_000
RECORDING_S = 80.0
"""How long a recording may take."""


@pytest.fixture
def clock() -> Iterator[HostClock]:
    made = HostClock(GPU)
    yield made
    made.close()


def wait(clock: HostClock, stream: torch.cuda.Stream, times: list[int]) -> None:
    with torch.cuda.stream(stream):
        for slot, ns in enumerate(times):
            clock.begin(slot, stream)
            clock.wait_until(slot, ns, stream)


@pytest.mark.parametrize("ns", [140_000, 1_000_000])
def test_collectives_take_their_time_within_5_percent(clock: HostClock, ns: int, tmp_path: Path) -> None:
    stream = torch.cuda.Stream(GPU, priority=-1)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        wait(clock, stream, [ns] * 50)
        torch.cuda.synchronize()
    off = [occupied - ns for occupied in clock.occupied_ns(50)]
    print(f"lead {clock.lead_ns} ns; {statistics.median(off):+.0f} ns, {min(off):+d} to {max(off):+d}")
    assert abs(statistics.median(off)) <= 0.05 * ns
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert [e["cat"] for e in device] == ["gpu_memcpy"] * 100
    clock.check()


def test_a_stream_that_waits_goes_on_when_the_clock_is_closed(clock: HostClock) -> None:
    stream = torch.cuda.Stream(GPU)
    wait(clock, stream, [HOUR_NS] * 3)
    clock.close()
    assert stream.query()


@limit(RECORDING_S + 60)
def test_a_recording(tmp_path: Path) -> None:
    options = [
        *("--strategy", "bucketed", "--device", "cuda", "--nproc", "1", "--link", "400Gbps,10us,8"),
        *("--link-wait", "host", "--width", "256", "--heads", "4", "--seq", "64", "--warmup", "3", "--steps", "2"),
    ]
    code, said = run([sys.executable, "-m", "overlaplab_engine", *options, "--out", str(tmp_path / "run")], RECORDING_S)
    assert code == 0, said
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["link_wait"] == "host"
    assert len(told["collectives"]["seq"]) > 0
    assert all(ns > 0 for ns in told["collectives"]["occupied_ns"])
