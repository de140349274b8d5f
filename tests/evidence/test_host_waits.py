"""When a rank's host was inside a blocking call. Those of CPUs: tests/analyses/test_exposed.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import event, gloo, launched, op, run_of, step

from overlaplab.evidence.host_waits import host_waits

INSTANT = {"cat": "cpu_instant_event", "args": {"Bytes": -64, "Device Type": 0, "Device Id": -1}}


def test_a_gpus_host_waits_where_it_synchronises(tmp_path: Path) -> None:
    """A wait of one stream for another does not hold up the host; on ROCm `item` waits in a copy."""
    calls = [("cudaStreamSynchronize", 20, 60), ("cudaStreamWaitEvent", 70, 71), ("hipDeviceSynchronize", 80, 90)]
    calls += [("hipMemcpyWithStream", 92, 95), ("hipMemcpyAsync", 96, 97)]
    events = [step(0, 0, 100), *launched("gemm", 10, 12, 50, correlation=1)]
    events += [event(name, start, end, cat="cuda_runtime") for name, start, end in calls]
    trace = run_of(tmp_path, events, backend="nccl").traces[0]
    begun = trace.events["ts_ns"].min()
    assert ((host_waits(trace) - begun) // 1000).tolist() == [[20, 60], [80, 90], [92, 95]]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], [[20, 60]]),
        ([event("<built-in method wait>", 31, 61, cat="python_function")], [[20, 60]]),
        ([{"ph": "i", "s": "t", "name": "[memory]", "pid": 9, "tid": 1, "ts": 35} | INSTANT], [[20, 60]]),
        ([op("aten::item", 35, 36)], []),
    ],
    ids=["plain", "with_stack", "profile_memory", "goes on"],
)
def test_a_host_that_begins_nothing_waits_for_what_it_launched(
    tmp_path: Path, more: list[dict[str, Any]], expected: list[list[int]]
) -> None:
    """What the profiler's options add are no acts of the host."""
    sent = {"Input Dims": [[[250]]], "Input type": ["TensorList"]}
    events = [step(0, 0, 100), op("mm", 5, 15), event("c10d::allreduce_", 20, 30, **sent), gloo(25, 60), *more]
    trace = run_of(tmp_path, sorted(events, key=lambda fields: float(fields["ts"]))).traces[0]
    begun = trace.events["ts_ns"].min()
    assert ((host_waits(trace) - begun) // 1000).tolist() == expected
