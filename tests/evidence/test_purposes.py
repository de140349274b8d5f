"""What collectives are for, where only the description of their group tells."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from made.ddp import ddp_ranks
from made.gpu import GATHERS, Gpu
from made.traces import event, launched, run_of, step

import overlaplab
from overlaplab.axes import find_axis
from overlaplab.evidence.purposes import purposes
from overlaplab.evidence.recorded import recorded_collectives


@pytest.mark.parametrize(
    ("description", "known"),
    [
        ("tp", True),
        ("mesh_tp", True),
        ("TENSOR_MODEL_PARALLEL_GROUP", True),
        ("mesh_dp", False),
        ("DATA_PARALLEL_GROUP", False),
        ("default_pg", False),
        ("", False),
    ],
)
def test_who_cuts_layers(description: str, known: bool) -> None:
    assert (find_axis(description) == "tp") is known


@pytest.mark.parametrize(("description", "what"), [("mesh_tp", "activations of a layer"), ("mesh_dp", None)])
def test_a_strangers_group_tells(description: str, what: str | None, tmp_path: Path) -> None:
    group = {"Process Group Name": "3", "Process Group Description": description, "Collective name": "allreduce"}
    events = [
        step(0, 0, 100),
        *launched("gemm", 5, 20, 60, correlation=1),
        event("cudaLaunchKernel", 6, 7, cat="cuda_runtime", correlation=2),
        event("ncclDevKernel_AllReduce", 60, 90, cat="kernel", tid=20, stream=20, device=0, correlation=2, **group),
    ]
    rows = overlaplab.exposed(run_of(tmp_path, events, backend="nccl"))
    assert rows["what"].tolist() == [what]


@pytest.mark.parametrize(
    ("within", "kind", "group", "what"),
    [
        ("DistributedDataParallel.forward", "allreduce", "9", "activations of a layer"),
        ("DistributedDataParallel.forward", "all_to_all", "", "activations of a layer"),
        ("DistributedDataParallel.forward", "send", "", "activations of a layer"),
        ("DistributedDataParallel.forward", "allreduce", "", None),
        ("DistributedDataParallel.forward", "broadcast", "", "buffers"),
        ("Optimizer.step#AdamW.step", "broadcast", "", "updated parameters"),
        ("Optimizer.step(closure)", "allgather", "", None),
    ],
)
def test_where_it_is_launched_tells(within: str, kind: str, group: str, what: str | None, tmp_path: Path) -> None:
    """What has no range of its own; with the gradients' group it may be SyncBatchNorm's.

    Lightning's optimizers make the passes within their step, and a metric there is none of their parameters.
    """
    events = [*ddp_ranks([1 << 19])[0]]
    before = next(each for each in events if each["name"] == "DistributedDataParallel.forward")
    start = before["ts"] + 2
    if "closure" in within:
        last = max(each["ts"] + each.get("dur", 0) for each in events)
        start = before["ts"] + before["dur"] - 4
        events.append(
            event("Optimizer.step#SGD.step", before["ts"] - 1, last, cat="user_annotation", tid=before["tid"])
        )
    elif within.startswith("Optimizer"):
        start = max(each["ts"] + each.get("dur", 0) for each in events if each["name"].startswith("autograd::")) + 1
        events.append(event(within, start - 1, start + 20, cat="user_annotation", tid=before["tid"]))
    args = {"Process Group Name": group, "Process Group Description": "undefined", "Collective name": kind}
    call = event("cudaLaunchKernel", start, start + 1, cat="cuda_runtime", tid=before["tid"], correlation=9999)
    kernel = event("ncclDevKernel_X", start + 3, start + 9, cat="kernel", tid=99, stream=99, device=0, **args)
    kernel["args"]["correlation"] = 9999
    trace = run_of(tmp_path, [*events, call, kernel], backend="nccl").traces[0]
    table = recorded_collectives(trace)
    named = purposes(trace)["what"][
        (
            table["kind"] == {"allreduce": "all_reduce", "allgather": "all_gather", "send": "send_recv"}.get(kind, kind)
        ).to_numpy()
    ]
    assert {None if pd.isna(each) else each for each in named} - {f"bucket {number}" for number in range(4)} == {what}


@pytest.mark.parametrize(
    ("kind", "elements", "what"),
    [
        ("reduce_scatter", 100, "activations of all ranks"),
        ("allreduce", 400, "activations of all ranks"),
        ("", 0, None),
    ],
)
def test_what_a_loss_gathers_is_no_metric(kind: str, elements: int, what: str | None, tmp_path: Path) -> None:
    """Its gradient is scattered or summed up in the backward pass; else it may be anything."""
    events = [*ddp_ranks([1 << 19])[0]]
    forward = next(each for each in events if each["name"] == "DistributedDataParallel.forward")
    function = next(each for each in events if each["name"].startswith("autograd::"))
    forward["dur"] -= 4
    between = (forward["ts"] + forward["dur"], function["ts"])
    for number, (at, called, size) in enumerate(
        ((sum(between) / 2, "allgather", 400), (function["ts"] + 0.5, kind, elements))
    ):
        args = {"Collective name": called, "In msg nelems": size // 4, "Out msg nelems": size, "dtype": "Float"}
        args |= {"Process Group Name": "", "Process Group Description": "undefined", "Group size": 4}
        call = event(
            "cudaLaunchKernel", at, at + 0.2, cat="cuda_runtime", tid=forward["tid"], correlation=9000 + number
        )
        kernel = event("ncclDevKernel_X", at + 1, at + 2, cat="kernel", tid=99, stream=99, device=0, **args)
        kernel["args"]["correlation"] = 9000 + number
        events += [call, kernel] if called else []
    trace = run_of(tmp_path, events, backend="nccl").traces[0]
    gathers = (recorded_collectives(trace)["kind"] == "all_gather").to_numpy()
    assert {None if pd.isna(each) else each for each in purposes(trace)["what"][gathers]} == {what}


@pytest.mark.parametrize(
    ("around", "what"), [("FullyShardedDataParallel.forward", None), ("eval", "updated parameters")]
)
def test_fsdp1_gathers_units_for_an_evaluation_after_the_update(around: str, what: str | None, tmp_path: Path) -> None:
    gpu = Gpu()
    with gpu.step():
        with gpu.range(around):
            nccl(gpu, "AllGather", "_allgather_base")
            gpu.run("gemm", 50)
        with gpu.autograd(), gpu.function("AddmmBackward0"):
            gpu.run("gemm_backward", 50)
            nccl(gpu, "ReduceScatter", "_reduce_scatter_base")
        with gpu.range("Optimizer.step#AdamW.step"):
            gpu.run("adamw", 9)
        with gpu.range(around):
            nccl(gpu, "AllGather", "_allgather_base")
    named = purposes(run_of(tmp_path, gpu.events, backend="nccl").traces[0])["what"]
    assert [None if pd.isna(each) else each for each in named] == [None, None, what]


def nccl(gpu: Gpu, name: str, kind: str) -> None:
    gpu.run(f"ncclDevKernel_{name}_RING_LL", 20, GATHERS)
    gpu.events[-1]["args"] |= {"Collective name": kind, "Process Group Name": "0", "Group size": 2}
