"""Recorded runs on GPUs played as programs of hosts and streams: their four dependencies, and whole traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made import gpu as made_gpu
from made.traces import event, launched, op, run_of, step
from msgspec.structs import replace

import overlaplab
from overlaplab import OverlaplabError, load_run, summary
from overlaplab.evidence.dependencies import blocking_calls, device_events, full_queues
from overlaplab.manifest import Link, Manifest, Mesh
from overlaplab.report.predicted_run import write_run
from overlaplab.simulate.advice.tried import replayed_spans_ns
from overlaplab.simulate.gpus.streams import device_programs
from overlaplab.simulate.player import End, Note, Wait, Work, play
from overlaplab.simulate.predictions.predict import predict
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import recorded_spans_ns

SAMPLES = Path(__file__).parents[3] / "traces"


def synchronize(start: float, end: float) -> dict[str, Any]:
    return event("cudaStreamSynchronize", start, end, cat="cuda_runtime", correlation=99)


EVENTS = [
    step(3, 0, 400),
    op("forward", 0, 10),
    *launched("gemm", 10, 20, 60, correlation=1),
    *launched("gemm", 30, 61, 100, correlation=2),  # behind the one before
    *launched("copy", 40, 110, 150, stream=9, correlation=3),  # its stream waits for the second
    *launched("gemm", 50, 160, 200, correlation=4),  # and this one for the copy
    synchronize(70, 205),
    *launched("gemm", 240, 250, 300, correlation=5),  # the host comes late
]


def test_what_each_event_waited_for(tmp_path: Path) -> None:
    trace = run_of(tmp_path, EVENTS, backend="nccl").traces[0]
    found = device_events(trace)
    assert [(own.before, own.after) for own in found] == [(None, None), (0, None), (None, 1), (1, 2), (3, None)]
    assert [call.until for call in blocking_calls(trace)] == [3]


ROOM = 1_010
"""Launches that the made queue holds."""


def queued(kernel_us: int) -> list[dict[str, Any]]:
    """A host that launches 2,000 kernels, in 2 µs each unless the queue is full."""
    events: list[dict[str, Any]] = []
    host = free = 0
    begun: list[int] = []
    for place in range(2_000):
        start = max(host + 1, free)
        until = max(host + 2, begun[place - ROOM] if place >= ROOM else 0)
        events.append(event("cudaLaunchKernel", host, until, cat="cuda_runtime", correlation=place))
        events += launched("gemm", host, start, start + kernel_us, correlation=place)[1:]
        begun.append(start)
        host, free = until, start + kernel_us
    return [step(3, 0, host), *events]


def test_a_host_waits_while_its_queue_is_full(tmp_path: Path) -> None:
    run = run_of(tmp_path, queued(10), backend="nccl")
    full = full_queues(run.traces[0])
    assert full
    assert replayed_spans_ns(run).tolist() == [[20_000_000]]
    programs = device_programs(run)
    assert programs is not None
    (host, stream, _) = programs.programs
    assert sum(isinstance(move, Wait) for move in host) == len(full)
    fast = [Work(move.ns // 10) if isinstance(move, Work) else move for move in stream]
    (spans,) = [play([host, fast, programs.programs[-1]]).spans_ns(2)]
    assert spans == pytest.approx([sum(1 for _ in range(2_000)) * 2_000], rel=0.01), "it never has to wait"


def test_a_launch_waits_for_none_that_is_launched_later(tmp_path: Path) -> None:
    """A device that begins only after 2,000 launches, as on ROCm: its host had room."""
    events = [step(3, 0, 20_000)]
    for place in range(2_000):
        events.append(event("hipLaunchKernel", 2 * place, 2 * place + 1, cat="cuda_runtime", correlation=place))
        start = 5_000 + 5 * place
        events += launched("gemm", 2 * place, start, start + 5, correlation=place)[1:]
    programs = device_programs(run_of(tmp_path, events, backend="nccl"))
    assert programs is not None
    assert not any(isinstance(move, Wait) for move in programs.programs[0])
    play(programs.programs)


def test_a_copy_that_blocks_waits_for_its_device_and_no_room(tmp_path: Path) -> None:
    """`.item()` of a host that is 1,900 launches ahead: without waiting for the device, it does not wait."""
    events = queued(10)[1:]
    end = max(each["ts"] + each["dur"] for each in events)
    host = max(each["ts"] + each["dur"] for each in events if each["cat"] == "cuda_runtime")
    copy = launched("Memcpy DtoH (Device -> Pageable)", host, end, end + 2, cat="gpu_memcpy", correlation=9_999)
    copy[0] |= {"name": "cudaMemcpyAsync", "dur": end + 3 - host}
    run = run_of(tmp_path, [step(3, 0, end + 5), *events, *copy], backend="nccl")
    (call,) = blocking_calls(run.traces[0])
    assert call.row not in {each.row for each in full_queues(run.traces[0])}


def test_a_graph_is_one_launch(tmp_path: Path) -> None:
    """Five graphs of 600 kernels: no queue is full, however many kernels wait."""
    events = [step(3, 0, 40_000)]
    for number in range(5):
        call, *_ = launched("cudaGraphLaunch", 50 * number, 0, 0, correlation=number)
        events.append(call | {"name": "cudaGraphLaunch", "dur": 50})
        for kernel in range(600):
            start = 6_000 * number + 10 * kernel + 60
            events += launched("gemm", 0, start, start + 10, correlation=number)[1:]
    assert full_queues(run_of(tmp_path, events, backend="nccl").traces[0]) == ()


def test_recorded_steps_are_played_to_the_nanosecond(tmp_path: Path) -> None:
    run = run_of(tmp_path, EVENTS, backend="nccl")
    assert recorded_spans_ns(run).tolist() == replayed_spans_ns(run).tolist() == [[280_000]]


def test_what_waits_comes_earlier(tmp_path: Path) -> None:
    """With the copy, the third event, half as long, all behind it is 20 µs earlier, also what the host launches."""
    found = device_programs(run_of(tmp_path, EVENTS, backend="nccl"))
    assert found is not None
    programs = [list(program) for program in found.programs]
    for program in programs:
        for place, move in enumerate(program):
            if isinstance(move, Note) and move.key == (0, "begun", 2):
                program[place + 1] = Work(20_000)
    assert play(programs).spans_ns(found.steps[0]) == [260_000]


def test_notes_are_waited_for() -> None:
    host = [Work(5), Note("a"), Wait("b", 1), Work(2), End()]
    stream = [Wait("a", 3), Work(10), Note("b")]
    assert play([host, stream]).ends_ns[0] == (5 + 3 + 10 + 1 + 2,)


@pytest.mark.parametrize("make", [made_gpu.bucketed, lambda: made_gpu.zero3(1), made_gpu.fsdp2])
def test_ranks_that_wait_for_each_other_replay(tmp_path: Path, make: Any) -> None:
    run = run_of(tmp_path, make(), make(), backend="nccl")
    assert replayed_spans_ns(run) == pytest.approx(recorded_spans_ns(run), rel=0.01)


def broadcasting(late_us: int, **scalars: Any) -> list[dict[str, Any]]:
    """Three steps in which a kernel, which may come late, is followed by a broadcast of NCCL from rank 0."""
    events: list[dict[str, Any]] = []
    for number in range(3):
        at = 1000 * number
        begun, ended, correlation = at + 62 + late_us, at + 482, 2 * number
        gemm = launched("gemm", at + 5, at + 20, begun - 2, correlation=correlation)
        shapes = {"Input Dims": [[[1000]], [], [], []], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
        call = event("c10d::broadcast_", at + 70, at + 80, **shapes, **scalars)
        kernel = launched("ncclDevKernel_Broadcast", at + 73, begun, ended, correlation=correlation + 1, stream=20)
        kernel[1]["args"] |= {"Collective name": "broadcast", "Group size": 2, "Process Group Name": "0", "Seq": number}
        events += [step(number, at, at + 1000), op("aten::mm", at + 1, at + 9), *gemm, call, *kernel]
        events.append(synchronize(at + 100, ended + 3))
    return events


@pytest.mark.parametrize("late_us", [(400, 0), (0, 400)])
def test_a_broadcast_whose_root_is_known_replays_as_any_other(tmp_path: Path, late_us: tuple[int, int]) -> None:
    spans = []
    for name, scalars in (("known", {"Concrete Inputs": ["", "", "0", "0"]}), ("unknown", {})):
        run = run_of(tmp_path / name, *(broadcasting(each, **scalars) for each in late_us), backend="nccl")
        spans.append(replayed_spans_ns(run).tolist())
        table = overlaplab.collectives(run)
        assert table["wait_ns"].notna().any() == (name == "known")
    assert spans[0] == spans[1]


def test_another_link_is_predicted_of_anybodys_run(tmp_path: Path) -> None:
    """A reduction of 4 MB takes 40 µs; at 1 Gbit/s it takes 32 ms, which the second gemm waits for."""
    rank = [
        step(3, 0, 90),
        *launched("gemm", 1, 10, 20, correlation=1),
        event("c10d::allreduce_", 2, 4, **{"Input Dims": [[1_000_000]], "Input type": ["float"]}),
        *launched("ncclDevKernel_AllReduce_Sum_f32", 3, 21, 61, stream=9, correlation=2),
        *launched("gemm", 5, 62, 80, correlation=3),
    ]
    run_of(tmp_path / "run", rank, rank, backend="nccl")
    run = load_run(tmp_path / "run")
    slow = Link(emulated=True, bandwidth_gbps=1.0, latency_us=0.0, world_size=2)
    assert predict(run, Setting()).step_ns == predict(run, Setting()).recorded_step_ns == 70_000
    found = predict(run, Setting(link=slow))
    assert found.step_ns == 70_000 - 40_000 + 32_000_000
    write_run(tmp_path / "predicted", found.manifest, found.ranks)
    again = load_run(tmp_path / "predicted", cache=False)
    assert summary(again)["span_ns"].tolist() == [found.step_ns] * 2
    assert summary(again)["exposed_comm_ns"].tolist() == [32_000_000] * 2
    wider = predict(run, Setting(link=slow, ranks=8))
    assert wider.step_ns == 70_000 - 40_000 + 56_000_000  # each rank sends 14/8 of 4 MB, not 1 of it
    assert (wider.manifest["world_size"], wider.times_as_far["ranks"]) == (8, 4)
    write_run(tmp_path / "wider", wider.manifest, wider.ranks)
    assert summary(load_run(tmp_path / "wider", cache=False))["span_ns"].tolist() == [wider.step_ns] * 2
    for setting, why in (
        (Setting(accumulate=2), "nothing but the link"),
        (Setting(ranks=4), "how long collectives of 4 ranks take is not known. Name a link"),
        (Setting(ranks=0), "ranks must be above 0, not 0"),
    ):
        with pytest.raises(OverlaplabError, match=why):
            predict(run, setting)
    with pytest.raises(OverlaplabError, match="is an all-reduce of all ranks, and one is all_gather of 8 of 8 ranks"):
        predict(load_run(SAMPLES / "h100" / "zero3"), Setting(ranks=4))
    assert run.manifest is None
    shared = replace(run, manifest=Manifest(format_version=1, world_size=2, mesh=Mesh(dp=1, tp=2)))
    with pytest.raises(OverlaplabError, match="its ranks share the model"):
        predict(shared, Setting(ranks=4, link=slow))
    alone = predict(run, Setting(ranks=1, link=slow))
    write_run(tmp_path / "alone", alone.manifest, alone.ranks)
    assert len(load_run(tmp_path / "alone", cache=False).traces) == 1


def test_messages_are_not_those_of_other_ranks(tmp_path: Path) -> None:
    """Nobody knows when a message's sender had come to it."""
    rank = [
        step(3, 0, 90),
        *launched("gemm", 1, 10, 20, correlation=1),
        *launched("ncclDevKernel_SendRecv", 3, 21, 61, stream=9, correlation=2),
    ]
    run = run_of(tmp_path / "run", rank, rank, backend="nccl")
    link = Link(emulated=True, bandwidth_gbps=1.0, latency_us=0.0, world_size=2)
    with pytest.raises(OverlaplabError, match="of no collective when all ranks had come to it"):
        predict(run, Setting(ranks=4, link=link))


def test_as_many_ranks_as_were_emulated_take_as_long() -> None:
    """The formula gives what the engine's emulated link took, and more for more ranks."""
    run = load_run(SAMPLES / "h100" / "bucketed-cap-25")
    recorded, eight, more = (predict(run, Setting(ranks=ranks)).step_ns for ranks in (None, 8, 64))
    assert abs(eight - recorded) < 0.001 * recorded
    assert more > 1.02 * recorded
