"""A gate that holds up a stream: its keeper is a real process on real memory, the stream a thread (`fake_gpu`)."""

import ctypes
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
from devices.fake_gpu import REFUSED, FakeGpu
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network import host_clock
from overlaplab_engine.network.gate import Gate
from overlaplab_engine.network.gate_keeper import BEGUN, OPEN, ORDER, RELEASED, order
from overlaplab_engine.network.host_clock import HostClock

CPU = torch.device("cpu")
HOUR_NS = 3_600_000_000_000
MILLISECOND_NS = 1_000_000


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not what():
        assert time.monotonic() < deadline, "for ever"
        time.sleep(0.0005)


# The keeper


def test_a_collective_is_released_when_its_time_is_over_and_not_before(gate: Gate) -> None:
    words = gate._words
    words[ORDER] = order(1, 0)
    words[BEGUN] = 1
    until(lambda: words[RELEASED] == 1)
    for number, ms in ((2, 30), (3, 1), (4, 60)):
        began = time.perf_counter_ns()
        words[BEGUN] = number
        words[ORDER] = order(number, ms * MILLISECOND_NS)
        until(lambda number=number: words[RELEASED] == number)
        assert time.perf_counter_ns() - began >= ms * MILLISECOND_NS


def test_nothing_is_released_that_has_no_order_of_its_own(gate: Gate) -> None:
    words = gate._words
    words[ORDER] = order(1, 0)
    words[BEGUN] = 2
    time.sleep(0.05)
    assert words[RELEASED] == 0
    words[BEGUN] = 3  # the launch of 2 failed
    words[ORDER] = order(3, 0)
    until(lambda: words[RELEASED] == 3)


@pytest.mark.parametrize("number", [1 << 16, (1 << 16) + 1, 1 << 40])
def test_numbers_grow_without_end(gate: Gate, number: int) -> None:
    gate._words[BEGUN] = number
    gate._words[ORDER] = order(number, 5)
    until(lambda: gate._words[RELEASED] == number)


def test_an_order_holds_78_hours() -> None:
    assert order(1, 78 * HOUR_NS) < 1 << 64
    assert (order(0x12345, 7) & 0xFFFF, order(0x12345, 7) >> 16) == (0x2345, 7)


def test_a_gate_that_is_closed_early_lets_go_at_once(gate: Gate) -> None:
    gate._words[BEGUN] = 1
    gate._words[ORDER] = order(1, HOUR_NS)
    gate.close()
    assert gate._words[RELEASED] == OPEN
    assert gate._keeper.returncode == 0
    gate.check()
    gate.close()


def test_a_keeper_that_is_killed_lets_go_and_is_told(gate: Gate) -> None:
    gate.check()
    gate._keeper.kill()
    until(lambda: gate._words[RELEASED] == OPEN)
    gate._watch.join()
    with pytest.raises(EngineError, match="the gate keeper's process has ended with code -9"):
        gate.check()


def test_a_keeper_goes_with_its_parent_and_not_with_ctrl_c() -> None:
    """The pipe is open for as long as one of the two lives."""
    code = (
        "import os, signal, time; from overlaplab_engine.network.gate import Gate; gate = Gate();"
        "gate._keeper.send_signal(signal.SIGINT);time.sleep(0.1); gate.check(); print('kept', flush=True); os._exit(3)"
    )
    read, write = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=write, stderr=write)
    os.close(write)
    assert process.wait(300) == 3
    with open(read) as said:
        assert said.read() == "kept\n"


def test_a_keeper_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "keeper.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr("overlaplab_engine.network.gate_keeper.__file__", str(tmp_path / "keeper.py"))
    with pytest.raises(EngineError, match="the gate keeper's process does not start; use --link-wait kernel"):
        Gate()


# The clock


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return driven_by(FakeGpu(), monkeypatch)


def driven_by(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": gpu}.__getitem__)
    return gpu


@pytest.fixture
def clock(gpu: FakeGpu) -> Iterator[HostClock]:
    made = HostClock(CPU, gpu)
    yield made
    made.close()


def test_each_collective_takes_its_time(gpu: FakeGpu, clock: HostClock) -> None:
    stream, times = gpu.current_stream(CPU), [40, 0, 20]
    gpu.log.clear()
    for slot, ms in enumerate(times):
        clock.begin(slot, stream)
        clock.wait_until(slot, ms * MILLISECOND_NS, stream)
    gpu.synchronize()
    occupied = clock.occupied_ns(3)
    assert len(occupied) == 3
    assert all(ns >= ms * MILLISECOND_NS - clock.lead_ns for ns, ms in zip(occupied, times, strict=True))
    assert 0 <= clock.lead_ns <= 50_000
    clock.check()
    told = [
        (number, max(ms * MILLISECOND_NS - clock.lead_ns, 0))
        for number, ms in enumerate(times, start=host_clock.ROUNDS + 1)
    ]
    assert gpu.log == [
        one
        for number, ns in told
        for one in [
            ("write", 8 * BEGUN, number),
            ("write", 8 * ORDER, order(number, ns)),
            ("wait", 8 * RELEASED, number),
        ]
    ]


@pytest.mark.parametrize("kept", [1, 256])
def test_a_launch_that_failed_begins_again_in_its_slot(
    gpu: FakeGpu, clock: HostClock, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_clock, "KEPT", kept)
    stream = gpu.current_stream(CPU)
    for slot, fails in ((0, True), (0, False), (1, True), (1, False)):
        clock.begin(slot, stream)
        if not fails:
            clock.wait_until(slot, 0, stream)
        gpu.synchronize()
    assert len(clock.occupied_ns(5)) == 2


def test_of_older_slots_only_the_times_are_kept(
    gpu: FakeGpu, clock: HostClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_clock, "KEPT", 2)
    stream = gpu.current_stream(CPU)
    for slot in range(5):
        clock.begin(slot, stream)
        clock.wait_until(slot, MILLISECOND_NS, stream)
        gpu.synchronize()
    assert [type(span) for span in clock._spans] == [int, int, int, tuple, tuple]
    assert all(ns >= MILLISECOND_NS - clock.lead_ns for ns in clock.occupied_ns(5))


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_stream_that_waits_goes_on_when_the_clock_ends_early(gpu: FakeGpu, clock: HostClock, end: str) -> None:
    stream = gpu.current_stream(CPU)
    for slot in range(3):
        clock.begin(slot, stream)
        clock.wait_until(slot, HOUR_NS, stream)
    if end == "kill":
        assert clock._gate is not None
        os.kill(clock._gate._keeper.pid, signal.SIGKILL)
        gpu.synchronize()
        with pytest.raises(EngineError, match="ended with code -9"):
            clock.check()
    clock.close()
    assert all(ns < HOUR_NS for ns in clock.occupied_ns(3))
    assert gpu.registered == []
    clock.close()
    clock.check()


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"able": 0}, "this GPU's streams cannot wait for the host"),
        ({"error": REFUSED}, "CUDA error 801 from cuMemHostRegister_v2"),
    ],
)
def test_a_gpu_without_gates_is_one_line(answers: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = driven_by(FakeGpu(**answers), monkeypatch)
    with pytest.raises(EngineError) as raised:
        HostClock(CPU, gpu)
    assert str(raised.value) == f"--link-wait host: {why}; use --link-wait kernel"
