"""Which collectives a host range launched, and when they ran."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.traces import event, gloo, launched, op, run_of

from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import Span
from overlaplab.evidence.launches import launches
from overlaplab.vocabulary import collective_kind

moments = st.integers(0, 60)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(moments, st.sampled_from([1, 2]), st.booleans()), max_size=10),
    st.lists(st.tuples(moments, st.integers(0, 30), st.sampled_from([1, 2])), min_size=1, max_size=10),
)
def test_a_range_holds_what_its_thread_launched_in_it(
    calls: list[tuple[int, int, bool]], ranges: list[tuple[int, int, int]]
) -> None:
    """Against a look at every launch; some have no recorded execution."""
    events = [op("mm", 0, 1, tid=1), op("mm", 0, 1, tid=2), gloo(0, 1)]
    for seq, (at, tid, ran) in enumerate(calls):
        events.append(event(f"engine::launch seq={seq}", at, at, tid=tid))
        if ran:
            events.append(event(f"engine::comm seq={seq} kind=all_reduce bytes=8", at + 5, at + 9 + seq, tid=7))
    with tempfile.TemporaryDirectory() as folder:
        (trace,) = run_of(Path(folder), events).traces
    found = executions(trace)
    threads = list(trace.events["tid"].cat.categories)
    lanes = {tid: threads.index(str(tid)) for tid in (1, 2)}
    for start, length, tid in ranges:
        span = Span(start_ns=1000 * start, end_ns=1000 * (start + length), thread=lanes[tid])
        inside = [
            (seq, at, ran) for seq, (at, t, ran) in enumerate(calls) if t == tid and start <= at <= start + length
        ]
        launches = found.launches_inside(span)
        assert sorted(launch.start_ns for launch in launches) == sorted(1000 * at for _, at, _ in inside)
        ends = [(1000 * (at + 5), 1000 * (at + 9 + seq)) for seq, at, ran in inside if ran]
        expected = (min(start for start, _ in ends), max(end for _, end in ends)) if ends else None
        assert found.communication_span(span) == expected


@pytest.mark.parametrize(
    ("calls", "ran", "pairs"),
    [
        ([10, 20], [(11, 15), (21, 25)], [(11, 15), (21, 25)]),
        ([10, 20], [(2, 4), (11, 15), (21, 25)], [(11, 15), (21, 25)]),  # launched before the recording began
        ([10, 20], [(2, 4), (12, 25)], [(12, 25), None]),  # so was the first, and the last had not begun
        ([10, 20], [(11, 15)], [(11, 15), None]),
        ([10, 20], [(11, 30), (21, 25)], [(11, 30), (21, 25)]),  # gloo runs two at once
        ([], [(11, 15)], []),
        ([10], [], [None]),
    ],
)
def test_gloo_runs_in_the_order_of_the_calls(
    tmp_path: Path, calls: list[int], ran: list[tuple[int, int]], pairs: list[tuple[int, int] | None]
) -> None:
    events = [event("c10d::allreduce_", at, at + 1) for at in calls] + [gloo(*bounds) for bounds in ran]
    (trace,) = run_of(tmp_path, [op("mm", 0, 1), *events]).traces
    found = [launch.ran for launch in launches(trace)]
    assert found == [bounds and (1000 * bounds[0], 1000 * bounds[1]) for bounds in pairs]


def test_on_a_gpu_any_thread_may_launch(tmp_path: Path) -> None:
    """The kernels of one label are one collective; others, one each."""
    events = [
        *launched("gemm", 1, 2, 3, correlation=1),
        event("engine::comm seq=0 kind=all_gather bytes=8", 10, 14, tid=2),
        *launched("ncclDevKernel_AllGather", 11, 20, 30, stream=9, correlation=2, tid=2),
        *launched("ncclDevKernel_AllGather", 12, 18, 25, stream=9, correlation=3, tid=2),
        *launched("ncclDevKernel_ReduceScatter", 16, 40, 50, stream=9, correlation=4, tid=2),
    ]
    (trace,) = run_of(tmp_path, events, backend="nccl").traces
    found = executions(trace)
    assert [(one.kind, one.bytes, one.ran) for one in found.launches] == [
        ("all_gather", 8, (18_000, 30_000)),
        ("reduce_scatter", None, (40_000, 50_000)),
    ]
    assert found.communication_span(Span(start_ns=9_000, end_ns=15_000, thread=0)) == (18_000, 30_000)
    assert found.first_begin_ns(0) == 2_000
    assert found.first_begin_ns(1_001) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::broadcast_", "broadcast"),
        ("c10d::barrier", "barrier"),
        ("c10d::recv_any_source_", "send_recv"),
        ("c10d::reduce_", "reduce"),
        ("c10d::gather_", "gather"),
        ("c10d::scatter_", "scatter"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("vllm::cross_device_reduce_1stage", "all_reduce"),
        ("Memcpy PtoP (Device -> Device)", None),
    ],
)
def test_a_kind_by_its_name(name: str, kind: str | None) -> None:
    assert collective_kind(name) == kind
