"""A host's lanes from small traces: which threads, in which order, and what their calls launched."""

from __future__ import annotations

from pathlib import Path

from made.traces import event, gloo, launched, op, run_of, step

from overlaplab.timeline.host_lanes import HostKind, device_marks, host_lanes
from overlaplab.timeline.timeline import timeline_events

KINDS = [kind.value for kind in HostKind]


def test_lanes_of_a_host(tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "gpu",
        [
            event("autograd::engine::evaluate_function: MmBackward0", 40, 60, tid=2),
            *launched("sgemm_backward", 45, 120, 150, correlation=2, tid=2),
            step(0, 0, 200),
            event("forward.py(3): forward", 0, 30, cat="python_function"),
            op("mm", 2, 20),
            *launched("sgemm", 5, 30, 90, correlation=1),
            event("cudaDeviceSynchronize", 90, 150, cat="cuda_runtime", tid=1, correlation=3),
            event("my range", 0, 25, cat="user_annotation"),
            *launched("sgemm_graph", 31, 95, 100, correlation=4),
            event("sgemm_graph_2", 100, 110, cat="kernel", tid=7, stream=7, device=0, correlation=4),
        ],
        backend="nccl",
    )
    host = host_lanes(run, 0)
    assert host.labels == ("main", "autograd")
    rows = [(row.lane, KINDS[row.part], row.start_ns, row.end_ns, row.name) for row in host.events.itertuples()]
    assert rows == [
        (0, "range", 0, 25_000, "my range"),
        (0, "operator", 2_000, 20_000, "aten::mm"),
        (0, "launch", 5_000, 6_000, "cudaLaunchKernel"),
        (0, "launch", 31_000, 32_000, "cudaLaunchKernel"),
        (0, "runtime call", 90_000, 150_000, "cudaDeviceSynchronize"),
        (1, "operator", 40_000, 60_000, "autograd::engine::evaluate_function: MmBackward0"),
        (1, "launch", 45_000, 46_000, "cudaLaunchKernel"),
    ]
    names = run.traces[0].events["name"].astype(str)
    assert names.iloc[host.events["event"]].tolist() == [name for *_, name in rows]
    assert list(zip(host.calls, names.iloc[host.launched], strict=True)) == [
        (2, "sgemm"),
        (3, "sgemm_graph"),
        (3, "sgemm_graph_2"),
        (6, "sgemm_backward"),
    ]
    timeline = timeline_events(run)
    assert timeline.hosts == (0,)
    calls, marks = device_marks(timeline.events, 0, host)
    assert calls.tolist() == host.calls.tolist()
    assert timeline.events["name"].astype(str).iloc[marks].tolist() == names.iloc[host.launched].tolist()


def test_times_count_from_the_runs_zero_on_every_rank(tmp_path: Path) -> None:
    first = [step(0, 1000, 1100), *launched("sgemm", 1005, 1020, 1080, correlation=1)]
    second = [step(0, 1050, 1150), *launched("sgemm", 1055, 1070, 1130, correlation=1)]
    run = run_of(tmp_path / "gpu", first, second, backend="nccl")
    assert timeline_events(run).hosts == (0, 1)
    assert [host_lanes(run, place).events["start_ns"].tolist() for place in (0, 1)] == [[5_000], [55_000]]


def test_on_the_cpu_threads_have_lanes_anyway(tmp_path: Path) -> None:
    run = run_of(tmp_path / "cpu", [step(0, 0, 100), op("mm", 0, 40), gloo(30, 90)])
    assert timeline_events(run).hosts == ()
