"""What Kineto writes with `enable_cuda_sync_events`: events recorded on streams, and who waits for them; in µs."""

from __future__ import annotations

from typing import Any

from made.traces import event, launched, op, step

Event = dict[str, Any]
COMPUTE, COMMUNICATION, COPIES = 7, 20, 24
"""Streams."""


def record(at: float, correlation: int) -> list[Event]:
    """The call that records a CUDA event; on which stream only those tell that wait for it."""
    return [event("cudaEventRecord", at, at + 1, cat="cuda_runtime", correlation=correlation)]


def wait(at: float, correlation: int, stream: int, *, on: int = -1, recorded_by: int = -1) -> list[Event]:
    """The call that makes a stream wait for an event; -1 as Kineto writes with CUDA 12.9 and later."""
    told = {"wait_on_stream": on, "wait_on_cuda_event_record_corr_id": recorded_by, "wait_on_cuda_event_id": 1}
    return [
        event("cudaStreamWaitEvent", at, at + 1, cat="cuda_runtime", correlation=correlation),
        _sync("Stream Wait Event", at, at + 1, stream, correlation, **told),
    ]


def synchronize(start: float, end: float, correlation: int, stream: int) -> list[Event]:
    """The host waits for a stream."""
    return [
        event("cudaStreamSynchronize", start, end, cat="cuda_runtime", correlation=correlation),
        _sync("Stream Sync", start, end, stream, correlation),
    ]


def _sync(name: str, start: float, end: float, stream: int, correlation: int, **args: Any) -> Event:
    told = {"cuda_sync_kind": name, "stream": stream, "correlation": correlation, "device": 0, "context": 1}
    return event(name, start, end, cat="cuda_sync", tid=stream, **args, **told)


def reduced(resolved: bool = True) -> list[Event]:
    """The beginning of a step of 400 µs: a kernel that computes from 20 to 60 µs, and, once it is over, an all-reduce
    from 61 to 160 on a stream of its own, by launches until 20 µs. Its end is recorded by the call of correlation 5.
    """
    known = {"on": COMPUTE, "recorded_by": 2} if resolved else {}
    return [
        step(3, 0, 400),
        op("forward", 0, 10),
        *launched("gemm", 10, 20, 60, stream=COMPUTE, correlation=1),
        *record(12, 2),
        *wait(14, 3, COMMUNICATION, **known),
        *launched("ncclDevKernel_AllReduce", 16, 61, 160, stream=COMMUNICATION, correlation=4),
        *record(18, 5),
    ]


def computing(host: float, start: float, end: float, correlation: int = 9) -> list[Event]:
    """A further kernel that computes."""
    return launched("gemm", host, start, end, stream=COMPUTE, correlation=correlation)


WAITS = wait(20, 6, COMPUTE, on=COMMUNICATION, recorded_by=5)
"""The stream that computes waits for the all-reduce."""
