"""What each event counts as, rule by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import event, gloo, launched, op, run_of, step, write
from msgspec.structs import replace

from overlaplab import load_run
from overlaplab.events import Sign, Trace, activity, device_sign, launchers, rule_of, step_windows
from overlaplab.vocabulary import Rule


def trace_of(folder: Path, events: list[dict[str, Any]], backend: str = "gloo") -> Trace:
    return run_of(folder, events, backend=backend).traces[0]


def counted(folder: Path, events: list[dict[str, Any]]) -> dict[str, list[list[int]]]:
    found = activity(trace_of(folder, events))
    sets = {"compute": found.compute, "communication": found.communication, "memory": found.memory}
    return {name: (times // 1000).tolist() for name, times in sets.items() if len(times)}


def test_kernels_and_copies_of_a_device(tmp_path: Path) -> None:
    """`test_rules` covers every rule; this file checks that the sets of intervals follow from them."""
    events = [
        *launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 5, 9, correlation=1),
        *launched("ampere_sgemm", 1, 10, 12, correlation=2),
        *launched("Memcpy HtoD (Pinned -> Device)", 2, 12, 20, correlation=3, cat="gpu_memcpy"),
        *launched("Memcpy PtoP (Device -> Device)", 3, 20, 30, correlation=4, cat="gpu_memcpy"),
    ]
    found = {"communication": [[5, 9], [20, 30]], "compute": [[10, 12]], "memory": [[12, 20]]}
    assert counted(tmp_path, events) == found


@pytest.mark.parametrize(
    ("name", "cat"),
    [
        ("ncclDevKernel_AllReduce", "gpu_user_annotation"),
        ("nccl:all_reduce", "user_annotation"),
        ("Stream Wait Event", "cuda_sync"),
        ("Stream Wait Event", "kernel"),
        ("Event Sync", "kernel"),
        ("aten::mm", "cpu_op"),
    ],
)
def test_annotations_and_waits_count_as_nothing_on_a_gpu(tmp_path: Path, name: str, cat: str) -> None:
    events = [*launched("gemm", 0, 1, 2, correlation=1), event(name, 5, 9, cat=cat, stream=7, correlation=2)]
    assert counted(tmp_path, events) == {"compute": [[1, 2]]}


def test_what_an_engine_comm_range_launches_is_communication(tmp_path: Path) -> None:
    label = event("engine::comm seq=0 kind=all_gather dtype=float32 bytes=8 group=0", 10, 20)
    inside = launched("Memcpy DtoD (Device -> Device)", 12, 40, 50, correlation=1, cat="gpu_memcpy", tid=2)
    after = launched("gemm", 21, 50, 60, correlation=2)
    assert counted(tmp_path, [label, *inside, *after]) == {"communication": [[40, 50]], "compute": [[50, 60]]}


def test_a_wait_that_an_engine_comm_range_launches_is_nothing(tmp_path: Path) -> None:
    label = event("engine::comm seq=0 kind=all_gather dtype=float32 bytes=8 group=0", 10, 20)
    wait = launched("Stream Wait Event", 12, 40, 50, correlation=1)
    assert counted(tmp_path, [label, *wait, *launched("gemm", 21, 50, 60, correlation=2)]) == {"compute": [[50, 60]]}


def test_the_kernels_of_a_graph_are_what_they_are(tmp_path: Path) -> None:
    """They share the correlation of the graph's launch."""
    graph = event("cudaGraphLaunch", 1, 2, cat="cuda_runtime", correlation=7)
    kernels = [
        event("gemm", 10, 20, cat="kernel", tid=7, stream=7, correlation=7),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 15, 30, cat="kernel", tid=9, stream=9, correlation=7),
    ]
    assert counted(tmp_path, [graph, *kernels]) == {"compute": [[10, 20]], "communication": [[15, 30]]}


def test_a_label_mirrored_on_the_gpu_is_ignored(tmp_path: Path) -> None:
    mirror = event("engine::comm seq=0", 10, 30, cat="gpu_user_annotation", tid=7, stream=7)
    assert counted(tmp_path, [mirror, *launched("gemm", 21, 50, 60, correlation=2)]) == {"compute": [[50, 60]]}


def test_the_stream_decides_nothing(tmp_path: Path) -> None:
    events = [
        *launched("ncclDevKernel_X", 0, 5, 9, stream=7, correlation=1),
        *launched("gemm", 2, 9, 11, correlation=2),
    ]
    assert counted(tmp_path, events) == {"communication": [[5, 9]], "compute": [[9, 11]]}


def test_cpu_operators_compute_and_gloo_communicates(tmp_path: Path) -> None:
    events = [op("linear", 0, 10), op("addmm", 2, 8), gloo(5, 20), op("add", 30, 31, tid=2)]
    assert counted(tmp_path, events) == {"compute": [[0, 10], [30, 31]], "communication": [[5, 20]]}


def test_operators_on_a_communication_thread_do_not_compute(tmp_path: Path) -> None:
    events = [
        event("engine::comm seq=0", 0, 10, tid=7),
        op("add_", 2, 4, tid=7),
        op("add_", 12, 14, tid=7),
        gloo(1, 9, 8),
    ]
    assert counted(tmp_path, events) == {"communication": [[0, 10]]}


def test_a_thread_that_sends_goes_on_computing(tmp_path: Path) -> None:
    """gloo's send and receive are noted on the thread that calls them, and last until they are waited for."""
    for kind in ("send", "recv"):
        events = [gloo(5, 40, tid=1, kind=kind), op("mm", 10, 20), op("mm", 50, 60)]
        assert counted(tmp_path / kind, events) == {"communication": [[5, 40]], "compute": [[10, 20], [50, 60]]}


def test_wrappers_do_not_compute_and_launches_do_not_communicate(tmp_path: Path) -> None:
    """A blocking all-reduce in a hook runs inside autograd's ranges, which must not count as hiding it."""
    events = [
        event("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 100),
        event("torch::autograd::AccumulateGrad", 1, 99),
        event("AddmmBackward0", 1, 99),
        event("engine::bucket_launch bucket=0", 1, 99),
        event("c10d::allreduce_", 10, 90),
        event("Optimizer.step#AdamW.step", 0, 100, cat="user_annotation"),
        gloo(12, 88),
    ]
    assert counted(tmp_path, events) == {"communication": [[12, 88]]}


@pytest.mark.parametrize(
    "name", ["c10d::allreduce_", "_c10d_functional::wait_tensor", "c10d_functional::wait_tensor", "engine::wait"]
)
def test_waiting_inside_an_operator_is_cut_out(tmp_path: Path, name: str) -> None:
    events = [op("outer", 0, 100), event(name, 10, 90), op("elsewhere", 20, 30, tid=2)]
    assert counted(tmp_path, events) == {"compute": [[0, 10], [20, 30], [90, 100]]}


def test_other_categories_of_a_host_count_for_nothing(tmp_path: Path) -> None:
    """Python functions, for example, whatever their names."""
    named = [event(name, 0, 10, cat="python_function") for name in ("aten::mm", "gloo:all_reduce", "mylib::kernel")]
    assert counted(tmp_path, [*named, event("aten::mm", 0, 10, cat="user_annotation"), op("mm", 20, 30)]) == {
        "compute": [[20, 30]]
    }


def test_of_other_namespaces_the_leaves_count(tmp_path: Path) -> None:
    events = [
        event("mylib::layer", 0, 50),
        event("mylib::kernel", 10, 20),
        event("mylib::outer", 60, 90),
        op("mm", 61, 62),
        event("profiler::_record_function_enter_new", 95, 96),
    ]
    assert counted(tmp_path, events) == {"compute": [[10, 20], [61, 62]]}


def test_a_call_of_a_compiled_graph_is_compute(tmp_path: Path) -> None:
    """Its loops leave no events. What it waits for is cut out."""
    events = [
        event("Torch-Compiled Region: 0/0", 0, 100, cat="cpu_op"),
        event("## Call CompiledFxGraph fg5o ##", 10, 90, cat="user_annotation"),
        op("addmm", 10, 20),
        event("_c10d_functional::wait_tensor", 50, 70, cat="cpu_op"),
    ]
    assert counted(tmp_path, events) == {"compute": [[10, 50], [70, 90]]}


def test_which_rule_applies(tmp_path: Path) -> None:
    gpu = launched("gemm", 0, 5, 9, correlation=1)
    assert rule_of(trace_of(tmp_path / "gpu", [*gpu, op("mm", 0, 1)])) is Rule.GPU
    assert rule_of(trace_of(tmp_path / "calls", [gpu[0], op("mm", 0, 1)])) is Rule.UNRECORDED
    assert rule_of(trace_of(tmp_path / "nccl", [op("mm", 0, 1)], backend="nccl")) is Rule.UNRECORDED
    assert rule_of(trace_of(tmp_path / "cpu", [op("mm", 0, 1)])) is Rule.CPU
    assert rule_of(trace_of(tmp_path / "empty", [])) is Rule.CPU


def test_where_run_json_names_a_gpu_the_host_does_not_compute(tmp_path: Path) -> None:
    def rule(device: str | None, *events: dict[str, Any]) -> Rule:
        run = run_of(tmp_path / str(device), [*events], manifest={"device": device})
        return rule_of(run.traces[0])

    assert rule("cuda", op("mm", 0, 1)) is Rule.UNRECORDED
    assert rule("cuda", op("mm", 0, 1), *launched("gemm", 0, 5, 9, correlation=1)) is Rule.GPU
    assert rule("cpu", op("mm", 0, 1)) is Rule.CPU
    assert rule(None, op("mm", 0, 1)) is Rule.CPU


RUNTIMES = ("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver", "mtia_runtime", "mlu_runtime")


@pytest.mark.parametrize("category", [*RUNTIMES, "privateuse1_runtime", "privateuse1_driver", "hpu_op"])
def test_every_devices_calls_launch(tmp_path: Path, category: str) -> None:
    call, kernel = launched("gemm", 5, 20, 30, correlation=1)
    call |= {"cat": category, "name": "enqueueKernel"}
    run = run_of(tmp_path / "both", [step(0, 0, 50), call, kernel], backend="xccl")
    assert launchers(run.traces[0]).tolist() == [-1, -1, 1]
    assert [(w.step, w.end_ns - w.start_ns) for w in step_windows(run.traces[0])] == [(0, 10_000)]
    assert device_sign(trace_of(tmp_path / "call", [call, op("mm", 0, 1)])) == (Sign.CALLS, (category,))


def foreign(folder: Path, *events: dict[str, Any], **keys: Any) -> Trace:
    """A trace of anybody's with these events and keys, and an operator."""
    folder.mkdir()
    write(folder / "rank0.json", [op("mm", 0, 9), *events], **keys)
    return load_run(folder).traces[0]


PROCESS = {"ph": "M", "name": "process_name", "pid": 3, "tid": 0}
ARROW = {"ph": "s", "id": 1, "pid": 9, "tid": 1, "ts": 0, "name": "async_npu"}
NAMING: dict[str, Any] = {
    "process": ([PROCESS | {"args": {"name": "Ascend Hardware"}}], {}, (Sign.UNKNOWN, ("process 'Ascend Hardware'",))),
    "CANN": ([PROCESS | {"args": {"name": "CANN"}}], {}, (Sign.UNKNOWN, ("process 'CANN'",))),
    "arrow": ([ARROW | {"cat": "async_npu"}], {}, (Sign.UNKNOWN, ("arrows called 'async_npu'",))),
    "events": (
        [event("dma", 1, 2, cat="mtia_ccp_events", stream=3, device=0)],
        {},
        (Sign.UNKNOWN, ("category 'mtia_ccp_events'",)),
    ),
    "properties": (
        [],
        {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": "NVIDIA H100"}]},
        (Sign.PROPERTIES, ("NVIDIA H100",)),
    ),
    "xccl": ([], {"distributedInfo": {"backend": "xccl"}}, (Sign.BACKEND, ("xccl",))),
    "hccl": ([], {"distributedInfo": {"backend": "cpu:gloo,npu:hccl"}}, (Sign.BACKEND, ("cpu:gloo,npu:hccl",))),
    **{name: ([], {"distributedInfo": {"backend": name}}, None) for name in ("gloo", "mpi", "ucc", "undefined", "")},
    "python": ([PROCESS | {"args": {"name": "python -m scannable inputs"}}], {}, None),
    "no name": ([PROCESS | {"args": {"name": {"a": 1}}}, PROCESS | {"args": {}}, PROCESS], {}, None),
    "ac2g": ([ARROW | {"cat": category} for category in ("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd")], {}, None),
    "no properties": ([], {"deviceProperties": []}, None),
}


@pytest.mark.parametrize("case", NAMING)
def test_what_names_a_device(tmp_path: Path, case: str) -> None:
    events, keys, sign = NAMING[case]
    trace = foreign(tmp_path / "foreign", *events, **keys)
    assert device_sign(trace) == sign
    assert rule_of(trace) is (Rule.CPU if sign is None else Rule.UNRECORDED)


def test_what_run_json_says_goes_before_backends_and_properties(tmp_path: Path) -> None:
    """A machine with GPUs lists them in every trace, those of a training on its CPU included."""
    trace = foreign(tmp_path / "foreign", deviceProperties=[{"name": "NVIDIA H100"}], distributedInfo={"backend": "x"})
    assert rule_of(trace) is Rule.UNRECORDED
    assert rule_of(replace(trace, device="cpu")) is Rule.CPU
    assert device_sign(replace(trace, device="cuda")) == (Sign.MANIFEST, ("cuda",))


def test_a_part_of_a_table_is_ruled_by_what_is_in_it(tmp_path: Path) -> None:
    """A merged file's table is split by rank: each part keeps the categories of the whole."""
    trace = trace_of(tmp_path, [*launched("gemm", 0, 5, 9, correlation=1), op("mm", 0, 1)])
    host = trace.events[trace.events["category"] == "cpu_op"].reset_index(drop=True)
    assert rule_of(replace(trace, tables=replace(trace.tables, events=host))) is Rule.CPU


def test_nothing_is_counted_where_the_device_was_not_recorded(tmp_path: Path) -> None:
    assert counted(tmp_path, [op("mm", 0, 9), event("cudaLaunchKernel", 1, 2, cat="cuda_runtime")]) == {}
