"""When a rank's host was inside a blocking call. Those of CPUs: tests/analyses/test_exposed.py."""

from __future__ import annotations

from pathlib import Path

from made.traces import event, launched, run_of, step

from overlaplab.evidence.host_waits import host_waits


def test_a_gpus_host_waits_where_it_synchronises(tmp_path: Path) -> None:
    """A wait of one stream for another does not hold up the host."""
    calls = [("cudaStreamSynchronize", 20, 60), ("cudaStreamWaitEvent", 70, 71), ("hipDeviceSynchronize", 80, 90)]
    events = [step(0, 0, 100), *launched("gemm", 10, 12, 50, correlation=1)]
    events += [event(name, start, end, cat="cuda_runtime") for name, start, end in calls]
    trace = run_of(tmp_path, events, backend="nccl").traces[0]
    begun = trace.events["ts_ns"].min()
    assert ((host_waits(trace) - begun) // 1000).tolist() == [[20, 60], [80, 90]]
