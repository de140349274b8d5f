"""What a host does to send gradients alone."""

from __future__ import annotations

from pathlib import Path

from made.ddp import ddp_ranks
from made.fsdp import fsdp
from made.traces import run_of

from overlaplab.events import Trace
from overlaplab.evidence.dependencies import device_events
from overlaplab.evidence.sending import sendings


def launched(trace: Trace) -> set[str]:
    """The names of what is launched in these ranges, and that nothing else is called so."""
    ranges = [(each.start_ns, each.end_ns) for each in sendings(trace)]
    names = trace.events["name"]
    inside = {True: set[str](), False: set[str]()}
    for own in device_events(trace):
        inside[any(start <= own.called_ns < end for start, end in ranges)].add(str(names.iloc[own.row]))
    assert not inside[True] & inside[False]
    return inside[True]


def test_ddp_copies_gradients_in_launches_and_copies_them_back(tmp_path: Path) -> None:
    run = run_of(tmp_path, *ddp_ranks([2 << 20]), backend="nccl")
    for trace in run.traces:
        assert launched(trace) == {"mul", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "copy"}
        assert len(sendings(trace)) == 3 * (6 + 6), "six gradients in three steps, in and out"
        assert len({each.place for each in sendings(trace)}) == 3 * 3, "three buckets"


def test_buckets_after_a_damaged_kernel_keep_their_copies(tmp_path: Path) -> None:
    ranks = ddp_ranks([2 << 20])
    damaged = next(event for event in ranks[0] if event["name"].startswith("ncclDevKernel"))
    whole = sendings(run_of(tmp_path / "whole", *ranks, backend="nccl").traces[0])
    damaged["dur"] = -5
    trace = run_of(tmp_path / "damaged", *ranks, backend="nccl").traces[0]
    others = [(each.start_ns, each.end_ns) for each in whole if each.place != whole[0].place]
    assert [(each.start_ns, each.end_ns) for each in sendings(trace)] == others


def test_gradients_that_are_views_of_their_bucket_are_not_copied_back(tmp_path: Path) -> None:
    run = run_of(tmp_path, *ddp_ranks([2 << 20], copies=False), backend="nccl")
    assert {len(sendings(trace)) for trace in run.traces} == {3 * 6}


def test_fsdp2_reduces_each_unit_in_a_range(tmp_path: Path) -> None:
    events = fsdp(1, steps=1)
    copies = [
        each | {"cat": "gpu_user_annotation", "ts": each["ts"] + 5} for each in events if "reduce" in each["name"]
    ]
    (trace,) = run_of(tmp_path, [*events, *copies], backend="nccl").traces
    zero = int(trace.events["ts_ns"].min()) - 1000 * min(each["ts"] for each in events)
    ranges = [each for each in events if each["name"].startswith("FSDP::post_backward_reduce")]
    times = [(1000 * each["ts"], 1000 * (each["ts"] + each["dur"])) for each in ranges]
    found = [(each.start_ns - zero, each.end_ns - zero) for each in sendings(trace)]
    assert found[: len(times)] == sorted(times)
    assert len(found) == len(times) + 2 * 7, "seven gathers, each copied out"
    assert len(times) == 4, "three layers and the root"
