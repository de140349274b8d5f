"""A rank's collectives, and where each fact about them comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.ranks import carried, group
from made.traces import event, gloo, launched, op, run_of, write

import overlaplab
from overlaplab import load_run
from overlaplab.evidence.launches import launches
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives

ARGUMENTS = {
    "Collective name": "allreduce",
    "In msg nelems": 100,
    "Out msg nelems": 100,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Name": "3",
    "Process Group Description": "mesh_dp",
    "Seq": 41,
}
"""What `record_param_comms` writes (torch/csrc/distributed/c10d/ParamCommsUtils.hpp)."""

TOLD = ["kind", "dtype", "elements", "bytes", "group", "group_description", "group_size", "sequence"]


def table_of(folder: Path, events: list[dict[str, Any]], **info: Any) -> pd.DataFrame:
    folder.mkdir(exist_ok=True)
    path = folder / "rank0.json"
    events = [*launched("gemm", 0, 0, 1, correlation=9_999), *events]
    write(path, events, distributedInfo={"rank": 0, "world_size": 8, "backend": "nccl", **info})
    return recorded_collectives(load_run(path).traces[0])


def kernel(name: str, host: float, start: float, end: float, correlation: int, **args: Any) -> list[dict[str, Any]]:
    call, ran = launched(name, host, start, end, stream=9, correlation=correlation, tid=2)
    ran["args"] |= args
    return [call, ran]


def operator(start: float, end: float, **args: Any) -> list[dict[str, Any]]:
    return [
        event("c10d::allreduce_", start, end, tid=2),
        event("record_param_comms", start + 1, end - 1, tid=2, **(ARGUMENTS | args)),
        event("nccl:all_reduce", start + 2, end - 2, tid=2, cat="user_annotation"),
    ]


EVERYTHING = ["all_reduce", "bfloat16", 100, 200, "3", "mesh_dp", 8, 41]


def test_the_kernels_own_arguments(tmp_path: Path) -> None:
    (row,) = table_of(tmp_path, kernel("ncclDevKernel_Generic", 5, 10, 20, 1, **ARGUMENTS))[TOLD].to_numpy().tolist()
    assert row == EVERYTHING


def test_the_operator_that_launched_it(tmp_path: Path) -> None:
    """RCCL's kernels all have the same name, which says nothing about the kind."""
    events = operator(2, 8) + kernel("ncclDevKernel_Generic(x)", 5, 10, 20, 1)
    table = table_of(tmp_path, events)
    assert table[TOLD].to_numpy().tolist() == [EVERYTHING]
    assert table[["launch_ns", "start_ns", "end_ns"]].sub(table["launch_ns"], axis=0).to_numpy().tolist() == [
        [0, 5_000, 15_000]
    ]


def test_operators_of_another_thread_or_moment_are_ignored(tmp_path: Path) -> None:
    elsewhere = [e | {"tid": 5} for e in operator(2, 8)]
    table = table_of(tmp_path, elsewhere + operator(20, 26) + kernel("ncclDevKernel_Generic", 9, 10, 20, 1))
    assert table[["kind", "bytes", "kind_known"]].to_numpy().tolist() == [["", -1, False]]


def test_older_operators_are_described_by_their_inputs(tmp_path: Path) -> None:
    """`nccl:_all_gather_base` has one size, `c10d::_allgather_base_` both; the kernel only names its kind."""
    events = [
        event("c10d::_allgather_base_", 2, 9, tid=2, **shapes([[64], [8], []], ["float", "float", ""])),
        event("record_param_comms", 3, 8, tid=2, **shapes([[], []], ["TensorList", "Scalar"])),
        event("nccl:_all_gather_base", 4, 7, tid=2, cat="user_annotation", **shapes([[8]], ["float"])),
        *kernel("ncclKernel_AllGather_RING", 5, 10, 20, 1),
    ]
    (row,) = table_of(tmp_path, events)[["kind", "dtype", "bytes"]].to_numpy().tolist()
    assert row == ["all_gather", "float32", 256]


def shapes(dims: list[Any], types: list[str]) -> dict[str, Any]:
    return {"Input Dims": dims, "Input type": types}


def test_an_all_to_all_is_sends_and_receives_on_the_device(tmp_path: Path) -> None:
    events = operator(2, 8, **{"Collective name": "all_to_all"}) + kernel("ncclDevKernel_SendRecv", 5, 10, 20, 1)
    events += kernel("ncclDevKernel_SendRecv", 30, 40, 50, 2)
    table = table_of(tmp_path, events)
    assert table[["kind", "named", "kind_known"]].to_numpy().tolist() == [
        ["all_to_all", "send_recv", True],
        ["send_recv", "send_recv", False],
    ]


def test_of_nested_operators_record_param_comms_comes_first(tmp_path: Path) -> None:
    """A barrier is an all-reduce of a byte for the device."""
    events = operator(2, 9, **{"Collective name": "barrier"})
    events[0]["args"] = shapes([[1]], ["unsigned char"])
    events += kernel("ncclDevKernel_AllReduce_Sum_u8", 5, 10, 20, 1)
    assert table_of(tmp_path, events)[["kind", "dtype"]].to_numpy().tolist() == [["barrier", "bfloat16"]]


def test_an_operators_kernels_are_one_collective(tmp_path: Path) -> None:
    """One call may need several kernels, on several streams, and copies between devices."""
    events = operator(2, 12) + kernel("ncclDevKernel_AllReduce", 5, 20, 30, 1) + kernel("ncclX", 6, 15, 22, 2)
    events += launched("Memcpy PtoP (Device -> Device)", 7, 28, 35, correlation=3, cat="gpu_memcpy", tid=2)
    table = table_of(tmp_path, events)
    assert len(table) == 1
    first = table.iloc[0]
    assert first["end_ns"] - first["start_ns"] == 20_000
    assert first["launch_end_ns"] - first["launch_ns"] == 2_000
    assert first["bytes"] == 200


def test_operators_by_external_id_where_calls_are_not_recorded(tmp_path: Path) -> None:
    told = operator(2, 8, **{"External id": 77})
    _, linked = kernel("ncclDevKernel_Generic", 5, 10, 20, 1, **{"External id": 77})
    _, old = kernel("ncclDevKernel_Generic", 5, 30, 40, 77, **{"External id": 77})  # the correlation, written twice
    table = table_of(tmp_path, [*told, linked, old])
    assert table["bytes"].tolist() == [200, -1]
    assert (table["launch_ns"] == UNKNOWN_NS).all()


def test_of_a_graphs_kernels_only_the_kernel_is_known(tmp_path: Path) -> None:
    call, first = launched("ncclDevKernel_AllReduce_Sum", 3, 10, 20, correlation=1, tid=2)
    call["name"] = "cudaGraphLaunch"
    _, gemm = launched("gemm", 3, 20, 30, correlation=1)
    _, second = launched("ncclDevKernel_AllGather", 3, 30, 40, correlation=1)
    first["args"] |= ARGUMENTS
    events = [*operator(2, 8), call, first, gemm, second]
    table = table_of(tmp_path, events)
    assert table[["kind", "bytes", "sequence", "group"]].to_numpy().tolist() == [
        ["all_reduce", -1, -1, ""],
        ["all_gather", -1, -1, ""],
    ]
    assert (table["launch_ns"] == UNKNOWN_NS).all()
    trace = load_run(tmp_path / "rank0.json").traces[0]
    assert launches(trace) == ()
    # The host was in the step when it launched the graph.
    write(tmp_path / "rank0.json", [event("ProfilerStep#6", 1, 9, cat="user_annotation"), gemm, *events])
    assert overlaplab.collectives(load_run(tmp_path / "rank0.json"))["step"].tolist() == [6, 6]


def test_collectives_without_a_group_belong_to_the_only_one(tmp_path: Path) -> None:
    table = table_of(
        tmp_path, kernel("ncclDevKernel_AllReduce", 5, 10, 20, 1), pg_config=[group("0", range(8), "default_pg")]
    )
    assert table[["group", "group_description"]].to_numpy().tolist() == [["0", "default_pg"]]


def test_launches_hold_what_arguments_hold(tmp_path: Path) -> None:
    table_of(tmp_path, operator(2, 8) + kernel("ncclDevKernel_Generic", 5, 10, 20, 1))
    (launch,) = launches(load_run(tmp_path / "rank0.json").traces[0])
    assert (launch.kind, launch.dtype, launch.bytes, launch.elements) == ("all_reduce", "bfloat16", 200, 100)
    assert (launch.group, launch.group_size) == ("3", 8)


def test_plain_gloo(tmp_path: Path) -> None:
    """One launched before the recording, one with a size, one with a label, one not begun when the recording ended."""
    first, second, third = gloo(1, 4), gloo(12, 15), gloo(22, 26)
    second["args"] |= shapes([[321]], ["float"])
    events = [
        op("mm", 0, 2),
        *(first, second, third),
        event("c10d::allreduce_", 10, 11),
        event("engine::collective seq=5 kind=all_reduce dtype=float16 bytes=84 group=0", 19, 22),
        event("c10d::allreduce_", 20, 21),
        event("c10d::allreduce_", 30, 31),
    ]
    (trace,) = run_of(tmp_path, events).traces
    table = recorded_collectives(trace)
    assert table["kind"].tolist() == ["all_reduce"] * 4
    assert table["bytes"].tolist() == [-1, 1284, 84, -1]
    assert table["dtype"].tolist()[1:3] == ["float32", "float16"]
    assert table["sequence"].tolist() == [-1, -1, 5, -1]
    assert (table["launch_ns"] == UNKNOWN_NS).tolist() == [True, False, False, False]
    assert (table["start_ns"] == UNKNOWN_NS).tolist() == [False, False, False, True]
    reasons = overlaplab.collectives(run_of(tmp_path, events))["unmatched"].tolist()
    assert reasons == [None, None, None, "when it ran was not recorded"]


def test_gloos_threads_that_overtake_one_another(tmp_path: Path) -> None:
    """The second call's range began last, since its thread had no core; sizes tell which is which."""
    sizes = (300, 200, 100)
    calls = [event("c10d::allreduce_", at, at + 1) for at in (10, 12, 14)]
    ranges = [gloo(11, 20), gloo(40, 45, tid=8), gloo(21, 30)]
    for call, own, elements in zip(calls, ranges, sizes, strict=True):
        call["args"] |= shapes([[elements]], ["float"])
        own["args"] |= shapes([[elements]], ["float"])
    table = recorded_collectives(run_of(tmp_path, [op("mm", 0, 50), *calls, *ranges]).traces[0])
    launched = table.sort_values("launch_ns")
    assert launched["elements"].tolist() == [*sizes]
    assert ((launched["start_ns"] - launched["launch_ns"]) / 1000).tolist() == [1, 28, 7]


def test_on_a_link_a_rank_is_there_when_the_link_is_free(tmp_path: Path) -> None:
    """The second was launched while the first held the link; the third's launch was not recorded."""
    events = [op("mm", 0, 1), *carried(0, 5, 10, launch=3), *carried(1, 11, 20, launch=4), *carried(2, 25, 30)]
    table = recorded_collectives(run_of(tmp_path, events).traces[0])
    assert ((table["arrived_ns"] - table["start_ns"]) / 1000).tolist() == [-2, -1, 0]


def test_gloos_own_ranges_under_a_link(tmp_path: Path) -> None:
    """Inside a collective of the link they are part of it, on whatever thread; elsewhere they count themselves."""
    events = [op("mm", 0, 1), *carried(0, 5, 10, launch=3), gloo(6, 9, tid=8), gloo(20, 22, tid=8)]
    table = recorded_collectives(run_of(tmp_path, events).traces[0])
    assert (table["end_ns"] - table["start_ns"]).tolist() == [5_000, 2_000]


def test_gloos_own_ranges_beside_a_shorter_collective_of_another_group(tmp_path: Path) -> None:
    """It belongs to the one that began before the other and goes on after it."""
    longer, shorter = carried(0, 5, 30), [e | {"tid": 9} for e in carried(0, 6, 10, group="1")]
    table = recorded_collectives(run_of(tmp_path, [op("mm", 0, 1), *longer, *shorter, gloo(20, 22, tid=8)]).traces[0])
    assert (table["end_ns"] - table["start_ns"]).tolist() == [25_000, 4_000]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_an_empty_trace_has_no_collectives(tmp_path: Path, backend: str) -> None:
    assert len(recorded_collectives(run_of(tmp_path, [op("mm", 0, 1)], backend=backend).traces[0])) == 0


def test_groups_that_share_an_emulated_link(tmp_path: Path) -> None:
    """Both number from 0; the second takes its collective up while the link carries the first's."""

    def comm(group: str, start: float, end: float, tid: int) -> dict[str, Any]:
        label = (
            f"engine::comm seq=0 kind=all_reduce dtype=float32 bytes=8 group={group} link=1Gbps,1us modelled_ns=9000"
        )
        return event(label, start, end, tid=tid, cat="user_annotation")

    def launch(group: str, at: float) -> dict[str, Any]:
        return event(f"engine::launch seq=0 group={group}", at, at + 0.5, cat="user_annotation")

    path = tmp_path / "rank0.json"
    write(path, [launch("0", 1), launch("1", 2), comm("0", 3, 12, 7), comm("1", 4, 21, 8)])
    table = recorded_collectives(load_run(path).traces[0])
    times = table[["launch_ns", "arrived_ns", "start_ns", "end_ns"]] - table["launch_ns"].min() + 1000
    assert times.to_numpy().tolist() == [[1000, 1000, 3000, 12_000], [2000, 12_000, 4000, 21_000]]
