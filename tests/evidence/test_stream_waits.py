"""What device events and the host waited for, where the trace says it: exactly, whatever the times suggest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.syncs import COMMUNICATION, COMPUTE, COPIES, WAITS, computing, record, reduced, synchronize, wait
from made.traces import event, launched, run_of, step

from overlaplab.evidence.dependencies import blocking_calls, device_events
from overlaplab.evidence.stream_waits import stream_waits
from overlaplab.simulate.advice.tried import replayed_spans_ns
from overlaplab.simulate.undisturbed import recorded_spans_ns

COPY = launched("Memcpy HtoD (Pinned -> Device)", 21, 30, 155, stream=COPIES, correlation=10, cat="gpu_memcpy")
FOR_THE_COPY = [*record(22, 11), *wait(23, 12, COMPUTE, on=COPIES, recorded_by=11)]
Events = list[dict[str, Any]]


def after(folder: Path, *events: Any) -> list[int | None]:
    trace = run_of(folder, list(events), backend="nccl").traces[0]
    return [each.after for each in device_events(trace)]


def test_a_wait_is_for_what_was_told_and_not_for_what_ended_last(tmp_path: Path) -> None:
    """The second kernel begins right after the all-reduce, and waited for the copy, which was over before."""
    second = computing(25, 161, 200)
    assert after(tmp_path, *reduced(), *COPY, *FOR_THE_COPY, *second) == [None, None, 0, 1]
    without = [each for each in (*reduced(), *COPY, *FOR_THE_COPY, *second) if each["cat"] != "cuda_sync"]
    assert after(tmp_path / "without", *without) == [None, None, 0, 2]


def test_of_several_waits_the_last_to_end_counts_and_all_are_known(tmp_path: Path) -> None:
    events = [*reduced(), *WAITS, *COPY, *FOR_THE_COPY, *computing(25, 161, 200), *computing(26, 201, 210, 13)]
    found = device_events(run_of(tmp_path, events, backend="nccl").traces[0])
    assert [(each.after, each.waits) for each in found] == [(None, ()), (None, ()), (0, (0,)), (2, (2, 1)), (None, ())]


def test_a_stream_without_work_passes_on_what_it_waits_for(tmp_path: Path) -> None:
    """The stream of copies waits for the all-reduce, and the main stream for an event recorded there."""
    through = [*wait(20, 6, COPIES, on=COMMUNICATION, recorded_by=5), *record(22, 7)]
    joined = wait(24, 8, COMPUTE, on=COPIES, recorded_by=7)
    assert after(tmp_path, *reduced(), *through, *joined, *computing(26, 161, 200)) == [None, 0, 1]


def test_streams_that_wait_for_each_other_wait_once_for_each_event(tmp_path: Path) -> None:
    events = [*reduced(), *wait(20, 6, 25, on=COMMUNICATION, recorded_by=5)]
    for turn in range(12):
        at, number = 22 + 4 * turn, 100 + 2 * turn
        events += [*record(at, number), *wait(at + 1, 500 + number, COPIES, on=25, recorded_by=number)]
        events += [*record(at + 2, number + 1), *wait(at + 3, 600 + number, 25, on=COPIES, recorded_by=number + 1)]
    events += launched("Memcpy HtoD (Pinned -> Device)", 80, 161, 170, stream=COPIES, correlation=10, cat="gpu_memcpy")
    trace = run_of(tmp_path, events, backend="nccl").traces[0]
    assert [len(rows) for rows in stream_waits(trace).of_events.values()] == [0, 1, 1]
    assert device_events(trace)[-1].waits == (1,)


def test_where_one_wait_is_unknown_its_event_is_told_by_the_times(tmp_path: Path) -> None:
    events = [*reduced(), *wait(20, 6, COMPUTE), *computing(26, 161, 200), *computing(27, 201, 220, 13)]
    found = device_events(run_of(tmp_path, events, backend="nccl").traces[0])
    assert [(each.after, each.waits) for each in found] == [(None, ()), (0, (0,)), (1, None), (None, ())]


def test_within_a_graph_waits_are_unknown(tmp_path: Path) -> None:
    graph = [event("gemm", at, at + 9, cat="kernel", tid=7, stream=7, device=0, correlation=9) for at in (161, 171)]
    call = event("cudaGraphLaunch", 22, 24, cat="cuda_runtime", correlation=9)
    found = device_events(run_of(tmp_path, [*reduced(), *WAITS, call, *graph], backend="nccl").traces[0])
    assert [each.waits for each in found] == [(), (0,), None, None]


@pytest.mark.parametrize(("stream", "expected"), [(COMMUNICATION, [1]), (COMPUTE, [])])
def test_the_host_waits_for_the_stream_of_its_call(tmp_path: Path, stream: int, expected: list[int]) -> None:
    """The call returns when the all-reduce has ended; for the stream that computes it had nothing to wait for."""
    events = [*reduced(), *synchronize(70, 162, 6, stream), *computing(170, 180, 200)]
    trace = run_of(tmp_path, events, backend="nccl").traces[0]
    assert [call.until for call in blocking_calls(trace)] == expected


def test_an_event_and_the_device_are_waited_for(tmp_path: Path) -> None:
    told = {"wait_on_stream": COMMUNICATION, "wait_on_cuda_event_record_corr_id": 5}
    synced: Events = [
        event("cudaEventSynchronize", 70, 162, cat="cuda_runtime", correlation=6),
        event("Event Sync", 70, 162, cat="cuda_sync", tid=-1, stream=-1, device=0, correlation=6, **told),
        event("cudaDeviceSynchronize", 182, 202, cat="cuda_runtime", correlation=8),
        event("Context Sync", 182, 202, cat="cuda_sync", tid=-1, stream=-1, device=0, correlation=8),
    ]
    trace = run_of(tmp_path, [*reduced(), *synced, *computing(170, 180, 200)], backend="nccl").traces[0]
    assert [call.until for call in blocking_calls(trace)] == [1, 2]


def test_without_fields_there_is_nothing(tmp_path: Path) -> None:
    events = [*reduced(resolved=False), *wait(20, 6, COMPUTE), *computing(26, 161, 200)]
    trace = run_of(tmp_path, events, backend="nccl").traces[0]
    assert not stream_waits(trace).of_events
    assert [each.after for each in device_events(trace)] == [None, 0, 1]


def test_steps_with_recorded_waits_are_played_to_the_nanosecond(tmp_path: Path) -> None:
    later = [step(4, 400, 800), *computing(410, 420, 500, 15)]
    events = [*reduced(), *WAITS, *COPY, *FOR_THE_COPY, *computing(25, 161, 200), *later]
    run = run_of(tmp_path, events, backend="nccl")
    assert recorded_spans_ns(run).tolist() == replayed_spans_ns(run).tolist()
