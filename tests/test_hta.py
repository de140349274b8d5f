"""HTA's analyses on our tables, against HTA's own parser and by hand."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hta.common.trace import Trace as HtaTrace
from hta.trace_analysis import TraceAnalysis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made.syncs import WAITS, computing, reduced, wait
from made.traces import event, gloo, launched, op, run_of, step, write
from samples import sample_run

import overlaplab
from overlaplab import OverlaplabError, Run, load_run
from overlaplab.events import activity
from overlaplab.hta import trace_analysis
from overlaplab.intervals import intersect, total
from overlaplab.timeline.timeline import timeline_events

pytestmark = pytest.mark.filterwarnings(  # HTA calls what pandas will drop, and divides by nothing
    r"ignore::DeprecationWarning:hta\..*", r"ignore::RuntimeWarning:hta\..*"
)

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ZERO = 1e6
"""µs before the first event. HTA compares starts from zero with ends that are not, which only shows near zero."""


@pytest.fixture(autouse=True)
def _quiet_and_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    logging.getLogger("hta").setLevel(logging.CRITICAL)


def parsed_by_hta(run: Run) -> TraceAnalysis:
    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = HtaTrace(trace_files={trace.rank or 0: trace.path for trace in run.traces}, trace_dir="")
    analysis.t.load_traces(include_last_profiler_step=True, use_multiprocessing=False)
    return analysis


TABLES: dict[str, Callable[[TraceAnalysis], pd.DataFrame]] = {
    "overlap": lambda a: a.get_comm_comp_overlap(visualize=False),
    "temporal": lambda a: a.get_temporal_breakdown(visualize=False),
    "kinds of kernels": lambda a: a.get_gpu_kernel_breakdown(visualize=False)[0].query("sum > 0"),
    "kernels": lambda a: a.get_gpu_kernel_breakdown(visualize=False)[1],
    "idle": lambda a: a.get_idle_time_breakdown(visualize=False)[0],
    "launches": lambda a: a.get_cuda_kernel_launch_stats(visualize=False)[0],
}


def assert_same_tables(run: Run) -> None:
    ours, theirs = trace_analysis(run), parsed_by_hta(run)
    for name, table in TABLES.items():
        found, expected = table(ours), table(theirs)
        keys = [column for column in found if found[column].dtype.kind not in "f"]
        found, expected = (t.sort_values(keys, ignore_index=True) for t in (found, expected))
        pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-9, atol=1e-6, obj=name)


kernels = st.lists(
    st.tuples(
        st.sampled_from([7, 20, 24]),
        st.sampled_from(
            ["gemm", "void relu<float>(float*)", NCCL, "Memcpy DtoD (Device -> Device)", "Memset (Device)"]
        ),
        st.integers(0, 400),  # host's time between this launch and the one before, in eighths of a µs
        st.integers(0, 300),  # from its launch, or the end of the kernel before on its stream, to its start
        st.integers(1, 400),
    ),
    min_size=1,
    max_size=25,
)


def gpu_events(drawn: list[tuple[int, str, int, int, int]], steps: int) -> list[dict[str, Any]]:
    """A trace of these kernels. Times are eighths of a µs, which floats hold exactly, as HTA calculates in floats."""
    events: list[dict[str, Any]] = []
    host, free = 0, dict.fromkeys((7, 20, 24), 0)
    for correlation, (stream, name, pause, delay, length) in enumerate(drawn, 1):
        host += pause + 16
        start = max(host + 8, free[stream]) + delay
        free[stream] = start + length
        cat = "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
        at = (ZERO + t / 8 for t in (host, start, start + length))
        events += launched(name, *at, stream=stream, correlation=correlation, cat=cat)
    width = host / 8 / max(steps, 1) + 5
    return [*events, *(step(i, ZERO + i * width, ZERO + (i + 1) * width) for i in range(steps))]


@settings(
    max_examples=int(os.environ.get("FUZZ", "6")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(kernels, st.integers(0, 3))
def test_any_gpu_trace_gives_the_tables_of_htas_parser(
    tmp_path: Path, drawn: list[tuple[int, str, int, int, int]], steps: int
) -> None:
    drawn = [(7, "gemm", 1, 1, 80), (20, NCCL, 1, 1, 80), *drawn]  # HTA fails without kernels
    run = run_of(tmp_path, gpu_events(drawn, steps), backend="nccl")
    assert_same_tables(run)
    found = activity(run.traces[0])
    exact = 100 * total(intersect(found.compute, found.communication)) / total(found.communication)
    percent = TABLES["overlap"](parsed_by_hta(run))["comp_comm_overlap_pctg"][0]
    assert percent == pytest.approx(exact, abs=0.005 + 1e-9)
    if not steps:
        assert overlaplab.summary(run)["overlap_ratio"].tolist() == pytest.approx([percent / 100], abs=0.00005 + 1e-9)


def small_gpu_run(folder: Path) -> Run:
    """Two steps on two streams, and a kernel that nothing here launched."""
    rank = [
        step(5, ZERO, ZERO + 50),
        step(6, ZERO + 50, ZERO + 90),
        op("mm", ZERO, ZERO + 4),
        *launched("gemm", ZERO + 1, ZERO + 10, ZERO + 30, correlation=1),
        *launched(NCCL, ZERO + 3, ZERO + 20, ZERO + 40, stream=20, correlation=2),
        *launched("gemm", ZERO + 51, ZERO + 60, ZERO + 70, correlation=3),
        event("gemm", ZERO + 80, ZERO + 85, cat="kernel", tid=7, stream=7, device=0, correlation=99),
    ]
    return run_of(folder, rank, rank, backend="nccl")


def test_a_small_gpu_run_by_hand(tmp_path: Path) -> None:
    run = small_gpu_run(tmp_path)
    assert_same_tables(run)
    analysis = trace_analysis(run)
    assert isinstance(analysis, TraceAnalysis)
    assert TABLES["overlap"](analysis).to_numpy().tolist() == [[0, 50.0], [1, 50.0]]
    assert TABLES["temporal"](analysis).iloc[0].tolist()[:5] == [0, 20, 30, 10, 60]
    assert TABLES["launches"](analysis).to_numpy().tolist() == [[1, 1, 20, 8], [2, 1, 20, 16], [3, 1, 10, 8]]
    idle = TABLES["idle"](analysis)
    assert idle[["stream", "idle_category", "idle_time"]].to_numpy().tolist() == [
        [7, "host_wait", 30.0],
        [7, "other", 0.0],
        [20, "other", 0.0],
    ]
    assert analysis.get_profiler_steps() == [5, 6]
    assert analysis.t.get_iterations(0) == [5, 6]
    queue = analysis.get_queue_length_time_series([1])[1]
    assert queue[["ts", "stream", "queue_length"]].to_numpy().tolist() == [
        [1, 7, 1],
        [10, 7, 0],
        [51, 7, 1],
        [60, 7, 0],
        [3, 20, 1],
        [20, 20, 0],
    ]


def test_with_one_step_or_none_kernels_of_unknown_launch_count(tmp_path: Path) -> None:
    lone = event("gemm", ZERO + 80, ZERO + 85, cat="kernel", tid=7, stream=7, device=0, correlation=99)
    rank = [*launched("gemm", ZERO + 1, ZERO + 10, ZERO + 30, correlation=1), lone]
    analysis = trace_analysis(run_of(tmp_path, rank, backend="nccl"))
    assert TABLES["temporal"](analysis)["compute_time(us)"].tolist() == [25]


def test_times_are_exact_and_from_the_first_event(tmp_path: Path) -> None:
    path = tmp_path / "rank3.json"
    path.write_text(
        '{"baseTimeNanoseconds": 1790857026000000000, "traceEvents": ['
        '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 1, "ts": 8796093022207.001, "dur": 0.007},'
        '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 1, "ts": 8796093022207.009, "dur": 1.5}]}'
    )
    filled = trace_analysis(load_run(path)).t
    host = filled.get_trace(3)[lambda table: table["stream"] == -1]
    assert host[["ts", "dur", "pid", "tid"]].to_numpy().tolist() == [[0.0, 0.007, 9, 1], [0.008, 1.5, 9, 1]]
    assert filled.get_trace_start_unixtime_ns(3) == 1790857026000000000 + 8796093022207001


def gloo_run(folder: Path, ranks: int = 1) -> Run:
    """Two steps. The second all-reduce waits for the first. Operators wait inside, at the start and at the end."""
    rank = [
        step(0, 0, 100),
        step(1, 100, 200),
        op("mm", 0, 40),
        op("add", 10, 20),
        event("c10d::allreduce_", 40, 42),
        event("c10d::allreduce_", 44, 45),
        gloo(50, 70),
        gloo(70, 90),
        op("mul", 60, 100),
        op("outer", 100, 160),
        event("c10d::barrier", 120, 130),
        gloo(135, 150, kind="barrier"),
        op("late", 160, 180),
        event("engine::wait", 160, 165, cat="user_annotation"),
        event("engine::wait", 175, 180, cat="user_annotation"),
        op("end", 180, 190),
    ]
    return run_of(folder, *[rank] * ranks)


def test_gloo_threads_stand_for_streams(tmp_path: Path) -> None:
    run = gloo_run(tmp_path)
    analysis = trace_analysis(run)
    table = analysis.t.get_trace(0)
    names = analysis.t.symbol_table.get_sym_table()
    streams = table[table["stream"] > 0].assign(name=lambda rows: [names[number] for number in rows["name"]])
    assert streams[["name", "stream", "ts", "dur", "iteration"]].to_numpy().tolist() == [
        ["aten::mm", 1, 0, 40, 0],
        ["ncclKernel_all_reduce", 2, 50, 20, 0],
        ["aten::mul", 1, 60, 40, 0],
        ["ncclKernel_all_reduce", 2, 70, 20, 0],
        ["aten::outer", 1, 100, 20, 1],
        ["aten::outer", 1, 130, 30, 1],
        ["ncclKernel_barrier", 2, 135, 15, 1],
        ["aten::late", 1, 165, 10, 1],
        ["aten::end", 1, 180, 10, 1],
    ]
    assert (table["stream"] == -1).sum() == len(run.traces[0].events) + 3  # and a launch for each collective
    assert TABLES["overlap"](analysis)["comp_comm_overlap_pctg"].tolist() == [81.82]  # (10 + 20 + 15) ÷ 55
    assert TABLES["temporal"](analysis).iloc[0].tolist()[:5] == [0, 30, 150, 10, 190]
    assert TABLES["launches"](analysis)[["cpu_duration", "gpu_duration", "launch_delay"]].to_numpy().tolist() == [
        [2, 20, 8],
        [1, 20, 25],
        [10, 15, 5],
    ]
    idle = TABLES["idle"](analysis)
    assert idle[["stream", "idle_category", "idle_time"]].to_numpy().tolist() == [
        [1, "host_wait", 25.0],
        [1, "kernel_wait", 15.0],  # inside operators
        [1, "other", 0.0],
        [2, "host_wait", 45.0],
        [2, "kernel_wait", 0.0],
        [2, "other", 0.0],
    ]
    kinds = TABLES["kinds of kernels"](analysis).set_index("kernel_type")["sum"].to_dict()
    assert kinds == {"COMPUTATION": 105, "COMPUTATION overlapping COMMUNICATION": 45, "COMMUNICATION": 10}


@pytest.mark.parametrize("strategy", ["naive", "torch-ddp", "zero3"])
def test_of_our_samples_hta_finds_what_we_find(strategy: str) -> None:
    run = sample_run(strategy)
    analysis = trace_analysis(run)
    overlap, temporal = TABLES["overlap"](analysis), TABLES["temporal"](analysis)
    for place, trace in enumerate(run.traces):
        found = activity(trace)
        hidden, comm = total(intersect(found.compute, found.communication)), total(found.communication)
        assert overlap["comp_comm_overlap_pctg"][place] == pytest.approx(100 * hidden / comm, abs=0.00501)
        assert temporal["compute_time(us)"][place] == pytest.approx(total(found.compute) / 1000)
        assert temporal["non_compute_time(us)"][place] == pytest.approx((comm - hidden) / 1000)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "critical_path_analysis": {"rank": 0, "annotation": "ProfilerStep", "instance_id": 0},
    "get_frequent_cuda_kernel_sequences": {"operator_name": "aten::mm", "output_dir": "."},
    "get_gpu_kernels_with_user_annotations": {"rank": 0},
    "get_queue_length_summary_from_time_series": {"queue_length_dict": {}},
    "get_time_spent_blocked_on_full_queue": {"queue_length_dict": {}},
    "overlay_critical_path_analysis": {"rank": 0, "critical_path_graph": None, "output_dir": "."},
}
REFUSED = {
    "critical_path_analysis": "needs pandas below 3 or HTA 0.6",
    "generate_trace_with_counters": "writes into the trace file",
    "get_cupti_counter_data_with_operators": "needs hardware counters",
    "get_frequent_cuda_kernel_sequences": "writes into the trace file",
    "get_memory_bw_summary": "needs the bandwidth of copies",
    "get_memory_bw_time_series": "needs the bandwidth of copies",
    "overlay_critical_path_analysis": "writes into the trace file",
}
METHODS = [name for name, _ in inspect.getmembers(TraceAnalysis, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("made", [small_gpu_run, lambda folder: gloo_run(folder, 2)], ids=["gpu", "gloo"])
def test_every_method_works_or_says_why_not_and_leaves_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, made: Callable[[Path], Run]
) -> None:
    monkeypatch.setattr("plotly.basedatatypes.BaseFigure.show", lambda *_, **__: None)
    run = made(tmp_path)
    before = [trace.events.copy(deep=True) for trace in run.traces]
    called = getattr(trace_analysis(run), method)
    arguments = ARGUMENTS.get(method, {})
    if "visualize" in inspect.signature(called).parameters:
        arguments = arguments | {"visualize": False}
    refused = dict(REFUSED)
    if method == "get_potential_stragglers" and "nccl" in run.traces[0].backend:  # type: ignore[operator]
        refused[method] = "overlaplab collectives"  # these kernels have newer names
    if method in refused:
        with pytest.raises(OverlaplabError) as caught:
            called(**arguments)
        assert refused[method] in str(caught.value)
        assert f"{run.path}: HTA's {method} " in str(caught.value)
        assert "\n" not in str(caught.value)
    else:
        called(**arguments)
    for trace, events in zip(run.traces, before, strict=True):
        pd.testing.assert_frame_equal(trace.events, events)


def test_a_run_of_one_unknown_rank_is_rank_0(tmp_path: Path) -> None:
    run = load_run(write(tmp_path / "trace.json", [op("mm", 0, 4), gloo(2, 8)]))
    assert run.traces[0].rank is None
    analysis = trace_analysis(run)
    assert TABLES["overlap"](analysis).to_numpy().tolist() == [[0, 33.33]]
    assert TABLES["idle"](analysis)["rank"].unique().tolist() == [0]


def test_a_rank_that_is_not_there_is_said(tmp_path: Path) -> None:
    analysis = trace_analysis(load_run(write(tmp_path / "rank3.json", [op("mm", 0, 4), gloo(2, 8)])))
    with pytest.raises(OverlaplabError, match=r"rank 0: not in this run. Pass one of \[3\]"):
        analysis.get_idle_time_breakdown(visualize=False)
    assert analysis.get_idle_time_breakdown([3], visualize=False)[0]["rank"].unique().tolist() == [3]


def test_a_run_without_anything_on_a_device_is_said(tmp_path: Path) -> None:
    analysis = trace_analysis(run_of(tmp_path, [event("cudaLaunchKernel", 0, 1, cat="cuda_runtime")], backend="nccl"))
    with pytest.raises(OverlaplabError, match="get_temporal_breakdown failed on pandas"):
        TABLES["temporal"](analysis)
    assert len(trace_analysis(run_of(tmp_path / "empty", [])).t.get_trace(0)) == 0


def test_wrong_arguments_are_pythons_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'rank'"):
        trace_analysis(small_gpu_run(tmp_path)).get_temporal_breakdown(rank=0)


def test_without_hta_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hta.trace_analysis", None)
    with pytest.raises(OverlaplabError, match=r"pip install 'overlaplab\[hta\]'") as caught:
        trace_analysis(small_gpu_run(tmp_path))
    assert "\n" not in str(caught.value)


# docs/hta.md, a test for each of its rows: HTA's own parser and analysis on a made trace, and ours.


def hta_percent(run: Run) -> float:
    return float(TABLES["overlap"](parsed_by_hta(run))["comp_comm_overlap_pctg"].iloc[0])


def our_percent(run: Run) -> float:
    return 100 * float(overlaplab.totals(run)["overlap_ratio"].iloc[0])


def on_device(name: str, start: float, end: float, *, stream: int, number: int, cat: str = "kernel") -> list[Any]:
    times = (ZERO + number, ZERO + 50 + start, ZERO + 50 + end)
    return launched(name, *times, stream=stream, correlation=number, cat=cat)


def test_compiled_ranges_on_the_host_are_no_kernels(tmp_path: Path) -> None:
    """Inductor's ranges around its launches have an argument `stream`."""
    rank = [
        *on_device(NCCL, 0, 100, stream=20, number=1),
        *on_device("triton_poi_fused_add_0", 20, 40, stream=7, number=2),
        event("triton_poi_fused_add_0", ZERO + 110, ZERO + 120, stream=7, kernel_backend="triton"),
    ]
    run = run_of(tmp_path, rank, backend="nccl")
    assert hta_percent(run) == 30
    assert our_percent(run) == 20
    assert TABLES["overlap"](trace_analysis(run))["comp_comm_overlap_pctg"].tolist() == [20]
    assert run.traces[0].events.query("category == 'cpu_op'")["stream"].tolist() == [-1]


@pytest.mark.parametrize("cat", ["cpu_op", "user_annotation", "cuda_runtime", "python_function", "Operator", "Trace"])
def test_a_stream_alone_makes_no_device_event(tmp_path: Path, cat: str) -> None:
    host = event("aten::mm", 0, 90, cat=cat, tid=1, stream=7, device=0, correlation=1)
    run = run_of(tmp_path, [*launched("gemm", 1, 10, 30, correlation=2), host], backend="nccl")
    assert run.traces[0].events.query("category == @cat and name == 'aten::mm'")["stream"].tolist() == [-1]
    assert overlaplab.summary(run)["compute_ns"].tolist() == [20_000]
    lanes = timeline_events(run).lanes
    assert lanes.loc[lanes["kind"] == "stream", "label"].tolist() == ["rank 0 stream 7 (compute)"]


def test_times_are_not_rounded_to_microseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = [
        *on_device(NCCL, 0.5, 10.25, stream=20, number=1),
        *on_device("gemm", 2.5, 4.75, stream=7, number=2),
    ]
    run = run_of(tmp_path, rank, backend="nccl")
    assert our_percent(run) == pytest.approx(100 * 2.25 / 9.75)
    assert hta_percent(run) == 23.08
    monkeypatch.delenv("HTA_DISABLE_NS_ROUNDING")
    assert hta_percent(run) == 11.11  # 1 of 9 µs


def test_where_all_communication_is_deepeps(tmp_path: Path) -> None:
    rank = [
        *on_device("void deep_ep::intranode::dispatch<2, 768, 8192>(int4*)", 0, 100, stream=20, number=1),
        *on_device("gemm", 20, 40, stream=7, number=2),
    ]
    run = run_of(tmp_path, rank, backend="nccl")
    assert np.isnan(hta_percent(run))
    assert our_percent(run) == 20


FAMILIES = {
    "custom all-reduce": "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)",
    "symmetric memory": "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
    "NVSHMEM": "void nvshmemi_reduce_kernel<int, (rdxn_ops_t)4>(int)",
    "DeepEP": "void deep_ep::intranode::combine<2, 768, 8192>(int4*)",
    "RCCL, MSCCL": "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "copy engines": "Memcpy PtoP (Device -> Device)",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_communication_that_is_not_named_after_nccl(tmp_path: Path, family: str) -> None:
    name = FAMILIES[family]
    cat = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    rank = [
        *on_device("gemm", 0, 50, stream=7, number=1),
        *on_device(name, 30, 60, stream=20, number=2, cat=cat),
        *on_device(NCCL, 100, 120, stream=24, number=3),
    ]
    run = run_of(tmp_path, rank, backend="nccl")
    assert hta_percent(run) == 0
    assert our_percent(run) == 40  # 20 of 30 + 20 µs


def test_a_stream_that_waits_computes_nothing(tmp_path: Path) -> None:
    rank = [
        *on_device(NCCL, 0, 100, stream=20, number=1),
        *on_device("gemm", 90, 100, stream=7, number=2),
        event("Stream Wait Event", ZERO + 70, ZERO + 110, cat="cuda_sync", tid=7, stream=7, device=0, correlation=3),
    ]
    run = run_of(tmp_path, rank, backend="nccl")
    assert hta_percent(run) == 50
    assert our_percent(run) == 10


def test_what_streams_wait_for_is_as_in_htas_own_table(tmp_path: Path) -> None:
    names = ["wait_on_stream", "wait_on_cuda_event_record_corr_id"]
    events = [*reduced(), *WAITS, *computing(22, 161, 200), *wait(30, 11, 7)]
    run = run_of(tmp_path, events, backend="nccl")
    own = HtaTrace(trace_files={0: run.traces[0].path}, trace_dir="")
    own.load_traces(use_multiprocessing=False)
    tables = (each.get_trace(0).query("correlation >= 0") for each in (trace_analysis(run).t, own))
    first, second = (table.sort_values(["correlation", "stream"])[names].to_numpy().tolist() for table in tables)
    assert first == second
    assert [7, 2] in first


def test_the_last_step_counts(tmp_path: Path) -> None:
    """HTA leaves it out unless told otherwise, with all that its steps launched."""
    rank = []
    for number, hidden in enumerate((10, 30)):
        at = ZERO + 200 * number
        rank += [
            step(number, at, at + 200),
            *launched(NCCL, at + 1, at + 50, at + 150, stream=20, correlation=10 * number + 1),
            *launched("gemm", at + 2, at + 50, at + 50 + hidden, correlation=10 * number + 2),
        ]
    run = run_of(tmp_path, rank, backend="nccl")
    assert hta_percent(run) == 20
    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = HtaTrace(trace_files={0: run.traces[0].path}, trace_dir="")
    analysis.t.load_traces(use_multiprocessing=False)
    assert TABLES["overlap"](analysis)["comp_comm_overlap_pctg"].tolist() == [10]
    assert our_percent(run) == 20


def test_every_difference_is_on_the_page() -> None:
    page = (Path(__file__).parents[1] / "docs" / "hta.md").read_text()
    for word in (*FAMILIES, "`stream`", "µs", "NaN", "Stream Wait Event", "last step"):
        assert word in page, word
