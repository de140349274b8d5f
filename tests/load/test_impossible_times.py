"""Device events at times that cannot be true: known as such, counted, and at the cost of no other event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import event, launched, op, write

from overlaplab.events import DAMAGED
from overlaplab.load.file.trace_file import TraceFile, read_trace

UNIX_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000
SECOND_US = 1_000_000
ELSEWHERE = "a minute from all that the host did"


def read(folder: Path, events: list[dict[str, Any]], **keys: Any) -> TraceFile:
    return read_trace(write(folder / "rank0.json", events, **keys))


def recording(at: float = UNIX_US, *, kernels: int = 5, shift: float = 0) -> list[dict[str, Any]]:
    """One kernel of 400 µs per ms, each launched half a ms before, the device's clock ahead by `shift`."""
    starts = [at + 1000 * place for place in range(kernels)]
    found = [
        one
        for number, host in enumerate(starts)
        for one in launched("gemm", host, host + 500 + shift, host + 900 + shift, correlation=number)
    ]
    return [op("mm", at, at + 1000 * kernels), *found]


def damaged(content: TraceFile) -> list[tuple[str, int]]:
    """Name and time in µs of the damaged events."""
    rows = content.events[content.events["phase"] == DAMAGED]
    assert (rows["dur_ns"] == 0).all()
    return [(str(name), int(ns) // 1000) for name, ns in zip(rows["name"], rows["ts_ns"], strict=True)]


@pytest.mark.parametrize(
    ("ts", "dur"),
    [(0, 0), (0, 400), (UNIX_US - DAY_US, 400), (UNIX_US + DAY_US, 400), (UNIX_US - 2 * SECOND_US, 400)],
)
def test_such_an_event_lies_at_its_launch(tmp_path: Path, ts: float, dur: float) -> None:
    events = recording()
    events[4] |= {"ts": ts, "dur": dur}
    content = read(tmp_path, events)
    assert damaged(content) == [("gemm", UNIX_US + 1000)]
    assert content.events["ts_ns"].is_monotonic_increasing
    assert len(content.warnings) == 1
    assert content.warnings[0].startswith("1 events of a device lie before their launch")
    assert ELSEWHERE in content.warnings[0]


def test_one_that_ends_a_day_later(tmp_path: Path) -> None:
    events = recording()
    events[4]["dur"] = DAY_US
    assert damaged(read(tmp_path, events)) == [("gemm", UNIX_US + 1000)]


def test_zero_among_relative_times(tmp_path: Path) -> None:
    """Times from the profiler's start on are short: nothing lies a second away, and the first event may start at 0."""
    events = recording(100)
    events[8] |= {"ts": 0, "dur": 0}
    for base in ({}, {"baseTimeNanoseconds": 1_700_000_000_000_000_000}):
        content = read(tmp_path, events, **base)
        zero_us = int(base.get("baseTimeNanoseconds", 0)) // 1000
        assert damaged(content) == [("gemm", zero_us + 3100)]
    first = [*launched("gemm", 0, 0, 0, correlation=9), *recording(100)]
    assert damaged(read(tmp_path, first)) == []


def test_most_of_them(tmp_path: Path) -> None:
    """As in pytorch/pytorch#188481, where from some moment on nearly all kernels have no time."""
    events = recording(kernels=10)
    for kernel in events[6::2]:
        kernel |= {"ts": 0, "dur": 0}
    assert len(damaged(read(tmp_path, events))) == 8


def test_without_its_launch_it_counts_for_no_step(tmp_path: Path) -> None:
    events = recording()
    events[4] |= {"ts": 0, "dur": 0, "args": {"device": 0, "stream": 7}}
    assert damaged(read(tmp_path, events)) == [("gemm", UNIX_US)]


def test_annotations_of_the_device_are_no_exception(tmp_path: Path) -> None:
    mirror = event("engine::backward", 0, 1, cat="gpu_user_annotation", tid=7, stream=7, device=0)
    content = read(tmp_path, [*recording(), mirror])
    assert damaged(content) == [("engine::backward", UNIX_US)]
    assert content.events["ts_ns"].iloc[0] == UNIX_US * 1000


def test_a_kernel_without_a_duration(tmp_path: Path) -> None:
    events = recording()
    del events[4]["dur"]
    content = read(tmp_path, events)
    assert damaged(content) == [("gemm", UNIX_US + 1500)]
    assert content.warnings == ("1 kernels or copies have no duration: how long they took is unknown",)


@pytest.mark.parametrize("shift", [-DAY_US, -2 * SECOND_US, 2 * SECOND_US, DAY_US])
def test_a_clock_that_differs_throughout_is_believed(tmp_path: Path, shift: float) -> None:
    assert damaged(read(tmp_path, recording(shift=shift))) == []
    events = recording(shift=shift)
    events[4]["ts"] -= 3 * DAY_US
    assert len(damaged(read(tmp_path, events))) == 1


def test_what_is_long_and_true(tmp_path: Path) -> None:
    """A collective that waits for minutes while the host does, and what was launched behind it."""
    host = UNIX_US + 5000
    waits = 300 * SECOND_US
    events = [
        *recording(),
        *launched("ncclDevKernel_AllReduce", host, host + 10, host + waits, correlation=20),
        *launched("gemm", host + 5, host + waits, host + waits + 100, correlation=21),
        event("cudaDeviceSynchronize", host + 10, host + waits + 100, cat="cuda_runtime", correlation=22),
    ]
    assert damaged(read(tmp_path, events)) == []


def test_two_processes_with_the_same_numbers(tmp_path: Path) -> None:
    """In a merged file, or one of two recordings, the earlier call may have launched it."""
    later = [one | {"pid": 10} for one in recording(UNIX_US + 600 * SECOND_US)]
    assert damaged(read(tmp_path, recording() + later)) == []
    assert damaged(read(tmp_path, later + recording())) == []


def test_kernels_alone_are_all_that_is_known(tmp_path: Path) -> None:
    kernels = [one for one in recording() if one["cat"] == "kernel"]
    assert damaged(read(tmp_path, [kernels[0] | {"ts": 0}, *kernels[1:]])) == []
