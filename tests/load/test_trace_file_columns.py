"""The facts in arguments and arrows: collectives, shapes, process groups, ranks, flows."""

from __future__ import annotations

import gc
import io
import json
from pathlib import Path
from typing import Any

import pytest
from made.traces import document, event, op

from overlaplab import OverlaplabError
from overlaplab.dtypes import DTYPE_BYTES, torch_dtype
from overlaplab.event_columns import COLLECTIVE_COLUMNS, INPUT_COLUMNS, SYNC_COLUMNS
from overlaplab.events import Group
from overlaplab.load.file.trace_file import TraceFile, read_trace


def read(events: list[dict[str, Any]], **keys: Any) -> TraceFile:
    return read_trace("t.json", io.BytesIO(json.dumps(document(events, **keys)).encode()))


def arrow(
    ph: str, identity: object, ts: float, *, cat: str = "ac2g", pid: object = 9, tid: object = 1
) -> dict[str, Any]:
    return {"ph": ph, "id": identity, "pid": pid, "tid": tid, "ts": ts, "cat": cat, "name": cat}


KERNEL = {
    "Collective name": "_reduce_scatter_base",
    "dtype": "BFloat16",
    "In msg nelems": 800,
    "Out msg nelems": 100,
    "Process Group Name": "3",
    "Process Group Description": "mesh_dp",
    "Group size": 8,
    "Seq": 41,
    "Dst Rank": 2,
    "Comms Id": 18_446_744_073_709_551_614,
    "stream": 20,
}


def test_a_kernel_tells_its_collective() -> None:
    found = read([event("late", 5, 6), event("ncclDevKernel_Generic", 1, 2, cat="kernel", **KERNEL)]).collectives
    assert found.dtypes.astype(str).to_dict() == COLLECTIVE_COLUMNS
    assert found.to_dict("records") == [
        {
            "event": 0,
            "kind": "reduce_scatter",
            "dtype": "bfloat16",
            "elements_in": 800,
            "elements_out": 100,
            "bytes": 1600,
            "group": "3",
            "group_description": "mesh_dp",
            "group_size": 8,
            "sequence": 41,
            "source": -1,
            "destination": 2,
            "root": -1,
            "comms_id": 9_223_372_036_854_775_806,
        }
    ]


@pytest.mark.parametrize(
    ("name", "dims", "types", "kind", "dtype", "elements_in", "elements_out", "sent"),
    [
        ("gloo:all_reduce", [[10, 3]], ["float"], "all_reduce", "float32", 30, 30, 120),
        ("nccl:all_reduce", [[]], ["double"], "all_reduce", "float64", 1, 1, 8),
        ("gloo:all_gather", [[10]], ["long int"], "all_gather", "int64", 10, -1, -1),
        ("gloo:reduce_scatter", [[10]], ["c10::Half"], "reduce_scatter", "float16", 10, -1, 20),
        ("c10d::_allgather_base_", [[8], [2], []], ["float", "float", ""], "all_gather", "float32", 2, 8, 32),
        ("c10d::allreduce_", [[[8, 2], [3]], []], ["TensorList", "Scalar"], "all_reduce", "", 19, 19, -1),
        ("c10d::allreduce_", [[], []], ["TensorList", "Scalar"], "all_reduce", "", -1, -1, -1),
        ("record_param_comms", [[7], []], ["unsigned char", "Scalar"], "", "uint8", 7, -1, -1),
        ("gloo:all_reduce", "odd", ["float"], "all_reduce", "", -1, -1, -1),
        ("gloo:all_reduce", [["a"]], ["float"], "all_reduce", "", -1, -1, -1),
        ("gloo:all_reduce", [[2**40, 2**40]], ["float"], "all_reduce", "", -1, -1, -1),
        ("c10d::allreduce_", [[[2**47], [2**47]]], ["TensorList"], "all_reduce", "", -1, -1, -1),
    ],
)
def test_shapes_tell_elements(
    name: str, dims: Any, types: Any, kind: str, dtype: str, elements_in: int, elements_out: int, sent: int
) -> None:
    content = read([event(name, 1, 2, **{"Input Dims": dims, "Input type": types})])
    (row,) = content.collectives.to_dict("records")
    found = (row["kind"], row["dtype"], row["elements_in"], row["elements_out"], row["bytes"])
    assert found == (kind, dtype, elements_in, elements_out, sent)
    assert (row["group"], row["sequence"]) == ("", -1)
    assert row["group_size"] == (4 if elements_in == 2 else -1)  # a gather's output ÷ its input


def test_operators_without_arguments_tell_nothing() -> None:
    shapes = {"Input Dims": [[2]], "Input type": ["float"]}
    content = read([event("gloo:all_reduce", 1, 2), event("aten::mm", 3, 4, **shapes)])
    assert (len(content.collectives), len(content.inputs)) == (0, 0)


def test_shapes_are_kept_of_what_communicates_and_accumulates() -> None:
    name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    content = read([op("mm", 1, 2), event(name, 3, 4, **{"Input Dims": [[2, 3]], "Input type": ["float"]})])
    assert content.inputs.dtypes.astype(str).to_dict() == INPUT_COLUMNS
    assert content.inputs.astype(object).to_numpy().tolist() == [[1, "[[2, 3]]", '["float"]']]


def test_what_streams_wait_for_is_kept_of_sync_events() -> None:
    fields = {"wait_on_stream": 9, "wait_on_cuda_event_record_corr_id": 5, "stream": 7, "correlation": 6}
    waits = event("Stream Wait Event", 4, 5, cat="cuda_sync", **fields)
    context = event("Context Sync", 2, 3, cat="cuda_sync", stream=-1, correlation=4)
    content = read([waits, op("mm", 1, 2), context])
    assert content.syncs.dtypes.astype(str).to_dict() == SYNC_COLUMNS
    assert content.syncs.to_numpy().tolist() == [[1, -1, -1], [2, 9, 5]]
    assert content.events["stream"].tolist() == [-1, -1, 7]


@pytest.mark.parametrize(
    ("spelling", "name", "size"),
    [
        ("Float", "float32", 4),
        ("float", "float32", 4),
        ("torch.float32", "float32", 4),
        ("BFloat16", "bfloat16", 2),
        ("c10::BFloat16", "bfloat16", 2),
        ("Half", "float16", 2),
        ("c10::Half", "float16", 2),
        ("Long", "int64", 8),
        ("long int", "int64", 8),
        ("Int", "int32", 4),
        ("Byte", "uint8", 1),
        ("Char", "int8", 1),
        ("unsigned char", "uint8", 1),
        ("Bool", "bool", 1),
        ("Float8_e4m3fn", "float8_e4m3fn", 1),
        ("c10::Float8_e5m2", "float8_e5m2", 1),
        ("ComplexDouble", "complex128", 16),
        ("Float4_e2m1fn_x2", "float4_e2m1fn_x2", None),
    ],
)
def test_types_have_torchs_names(spelling: str, name: str, size: int | None) -> None:
    assert torch_dtype(spelling) == name
    assert DTYPE_BYTES.get(name) == size


def test_process_groups() -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "7", "ranks": "[0, 1]"},
        "odd",
    ]
    content = read([op("mm", 1, 2)], distributedInfo={"rank": "2", "pg_config": groups})
    assert content.rank == 2
    assert content.groups == (
        Group(name="0", description="default_pg", size=4, ranks=(0, 1, 2, 3)),
        Group(name="7", ranks=(0, 1)),
    )


def test_arrows_belong_to_the_event_before_them() -> None:
    launch = event("cudaLaunchKernel", 2, 3, cat="cuda_runtime", correlation=7)
    kernel = event("gemm", 4, 5, cat="kernel", tid=20, stream=20, correlation=7)
    parent = event("aten::mm", 2, 3)  # as early as the launch
    content = read(
        [
            parent,
            arrow("s", 3, 2, cat="fwdbwd"),
            launch,
            arrow("s", 7, 2),
            arrow("s", 8, 2),
            kernel,
            arrow("f", 7, 4, tid=20),
            op("backward", 6, 7),
            arrow("f", 3, 6, cat="fwdbwd"),
            arrow("f", 9, 6, cat="something else"),
        ]
    )
    events = content.events.set_index("name")
    assert events["flow_launch"].to_dict() == {
        "aten::mm": -1,
        "cudaLaunchKernel": 7,  # the first of two
        "gemm": 7,
        "aten::backward": -1,
    }
    assert events["flow_backward"].to_dict() == {
        "aten::mm": 3,
        "cudaLaunchKernel": -1,
        "gemm": -1,
        "aten::backward": 3,
    }


def test_arrows_elsewhere_are_searched_by_process_thread_and_start() -> None:
    starts = [arrow("s", 100 + i, i) for i in range(40)]
    ends = [arrow("f", 2**40 + i, i, cat="fwdbwd", tid=2) for i in range(40)]
    stray = [arrow("s", 5, 3.5), arrow("s", 5, 3, pid=8)]
    events = [op("a", i, i + 0.5, tid=tid) for i in range(40) for tid in (1, 2)]
    table = read([*starts, *stray, *events, *ends[::-1]]).events
    on_first, on_second = table[table["tid"] == "1"], table[table["tid"] == "2"]
    assert on_first["flow_launch"].tolist() == [100 + i for i in range(40)]
    assert on_second["flow_backward"].tolist() == [2**40 + i for i in range(40)]
    assert set(on_second["flow_launch"]) == set(on_first["flow_backward"]) == {-1}


def test_numbers_beyond_32_bits_widen_their_column() -> None:
    events = [event("k", i, i + 1, cat="kernel", stream=2**40 if i else 7, correlation=2**31 - 1) for i in range(2)]
    table = read(events).events
    assert table["stream"].tolist() == [7, 2**40]
    assert (str(table["stream"].dtype), str(table["correlation"].dtype)) == ("int64", "int32")


def test_the_external_id_has_two_spellings() -> None:
    assert read([event("a", 1, 2, **{"External id": 5})]).events["external_id"].tolist() == [5]
    assert read([event("a", 1, 2, **{"external id": 6})]).events["external_id"].tolist() == [6]


def test_ranks_that_arguments_tell() -> None:
    merged = read([event("b", 3, 4, rank=1), event("a", 1, 2, rank=0), op("mm", 5, 6)])
    assert merged.event_ranks is not None
    assert merged.event_ranks.tolist() == [0, 1, -1]
    # torch writes `Rank` into collectives' arguments, where it may be another rank's.
    sent = {"Collective name": "send", "Rank": 1}
    assert read([event("record_param_comms", 1, 2, **sent), op("mm", 3, 4)]).event_ranks is None


def test_an_opened_stream_is_read(tmp_path: Path) -> None:
    with pytest.raises(OverlaplabError, match=r"^s3://bucket/rank0\.json: "):
        read_trace("s3://bucket/rank0.json", io.BytesIO(b"hello"))


def test_garbage_collection_is_as_it_was() -> None:
    for wanted in (True, False):
        (gc.enable if wanted else gc.disable)()
        try:
            read([op("mm", 1, 2)])
            with pytest.raises(OverlaplabError):
                read_trace("t.json", io.BytesIO(b"hello"))
            assert gc.isenabled() == wanted
        finally:
            gc.enable()
