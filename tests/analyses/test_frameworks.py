"""Traces of other frameworks, made small in the shape that each writes: Summary, Timeline and Collectives work, and
what such a trace does not tell is said to be unknown.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made.traces import event, gloo, launched, op, step, write

import overlaplab
from overlaplab import Run, load_run
from overlaplab.findings import bucket_notes, run_warnings, schedule_notes
from overlaplab.report import documents
from overlaplab.sections.run_tables import RunTables
from overlaplab.timeline.timeline import timeline_events

Event = dict[str, Any]

# torch/distributed/fsdp/{_runtime_utils,fully_sharded_data_parallel,_flat_param}.py
FSDP1 = [
    "FullyShardedDataParallel.forward",
    "FullyShardedDataParallel._root_pre_forward",
    "FullyShardedDataParallel._to_kwargs",
    "FullyShardedDataParallel._pre_forward",
    "FullyShardedDataParallel._pre_forward_prefetch",
    "FullyShardedDataParallel.rate_limiter",
    "FullyShardedDataParallel._post_forward",
    "FullyShardedDataParallel._pre_backward_hook",
    "FullyShardedDataParallel._pre_backward_prefetch",
    "FullyShardedDataParallel._post_backward_hook",
]
# lightning/pytorch/profilers/pytorch.py: what it records, and the modules' forward
LIGHTNING = [
    "[pl][profile]run_training_batch",
    "[pl][profile][Strategy]DDPStrategy.training_step",
    "[pl][profile][LightningModule]Model.optimizer_step",
    "[pl][module]torch.nn.modules.linear.Linear: layer",
]
# deepspeed/runtime/zero/parameter_offload.py: autograd functions around each module
DEEPSPEED = [
    "PreBackwardFunctionForModule",
    "autograd::engine::evaluate_function: PostBackwardFunctionModuleBackward",
    "PostBackwardFunctionModuleBackward",
]
# megatron/core/tensor_parallel/layers.py: autograd functions; accelerate wraps torch's own engines
MEGATRON = [
    "LinearWithGradAccumulationAndAsyncCommunication",
    "autograd::engine::evaluate_function: LinearWithGradAccumulationAndAsyncCommunicationBackward",
]
FRAMEWORKS = {"fsdp1": FSDP1, "lightning": LIGHTNING, "deepspeed": DEEPSPEED, "megatron": MEGATRON}


def wrappers(names: list[str]) -> list[Event]:
    """Ranges around the whole step, one by `record_function` and one by autograd."""
    return [
        event(name, 1, 99, cat="user_annotation" if name.startswith(("Fully", "[pl]")) else "cpu_op") for name in names
    ]


def run_with(folder: Path, events: list[Event], *, backend: str, **info: Any) -> Run:
    told = {"rank": 0, "world_size": 2, "backend": backend, **info}
    write(folder / "rank0.json", events, distributedInfo=told)
    return load_run(folder)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_on_gloo_wrapping_ranges_hide_no_communication(tmp_path: Path, framework: str) -> None:
    gather = [event("c10d::_allgather_base_", 10, 60), gloo(12, 58, kind="_all_gather_base")]
    events = [step(3, 0, 100), *wrappers(FRAMEWORKS[framework]), *gather, op("mm", 70, 80)]
    run = run_with(tmp_path, events, backend="gloo")
    (row,) = overlaplab.summary(run).to_dict("records")
    assert (row["compute_ns"], row["comm_ns"], row["overlapped_ns"]) == (10_000, 46_000, 0)
    assert overlaplab.collectives(run)["kind"].tolist() == ["all_gather"]
    nothing_is_guessed(run)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_on_a_gpu_wrapping_ranges_count_as_nothing(tmp_path: Path, framework: str) -> None:
    """Neither do their copies on the device, which have a stream and cover everything."""
    names = FRAMEWORKS[framework]
    mirrored = [event(name, 20, 99, cat="gpu_user_annotation", tid=7, stream=7) for name in names]
    told = {"Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 4, "Out msg nelems": 8}
    group = {"Process Group Name": "5", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "Group size": 2}
    kernel = launched("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 5, 40, 60, correlation=2)
    kernel[1]["args"] |= told | group
    compute = launched("nvjet_hsh_128x128", 3, 20, 50, stream=8, correlation=1)
    events = [step(3, 0, 100), *wrappers(names), *mirrored, *compute, *kernel]
    groups = [{"pg_name": "5", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 1]}]
    run = run_with(tmp_path, events, backend="nccl", pg_config=groups)
    (row,) = overlaplab.summary(run).to_dict("records")
    assert (row["span_ns"], row["compute_ns"], row["comm_ns"], row["overlapped_ns"]) == (40_000, 30_000, 20_000, 10_000)
    (found,) = overlaplab.collectives(run).to_dict("records")
    assert (found["kind"], found["bytes"], found["dtype"]) == ("all_gather", 16, "bfloat16")
    assert found["group_description"] == "TENSOR_MODEL_PARALLEL_GROUP"
    nothing_is_guessed(run)


def nothing_is_guessed(run: Run) -> None:
    """Gathers of unknown units, and no buckets: tables are empty, warnings say why, documents are complete."""
    gathers, buckets = overlaplab.schedule(run), overlaplab.buckets(run)
    assert gathers.empty
    assert buckets.empty
    assert schedule_notes(gathers) == (
        "no gathers were found: they show in the engine's labels or FSDP2's ranges, and on a GPU in its activity;"
        " buckets of gradients are in `overlaplab buckets`",
    )
    assert bucket_notes(buckets) == (
        "no buckets were found: they show in the engine's labels or torch's DDP, and on a GPU in its activity; what"
        " gathers parameters is in `overlaplab schedule`",
    )
    assert run_warnings(run) == ("1 of 2 ranks has no trace here",)
    assert len(timeline_events(run).events)
    for document in (documents.summary_document, documents.schedule_document, documents.buckets_document):
        json.dumps(document(RunTables(run=run)), allow_nan=False)


def test_lightning_and_accelerate_over_ddp_have_ddps_buckets(tmp_path: Path) -> None:
    """Whatever framework is above, it is torch's DDP that launches."""
    name = "torch::autograd::AccumulateGrad"
    events = [
        step(3, 0, 100),
        *wrappers(LIGHTNING),
        event("DistributedDataParallel.forward", 2, 9, cat="user_annotation"),
        event(f"autograd::engine::evaluate_function: {name}", 20, 29),
        event(name, 20, 21),
        event("c10d::allreduce_", 25, 26),
        gloo(27, 60),
    ]
    (row,) = overlaplab.buckets(run_with(tmp_path, events, backend="gloo")).to_dict("records")
    assert (row["source"], row["start_ns"], row["exposed_ns"]) == ("ddp", 27_000, 33_000)


def test_among_several_ranks_unrecognised_communication_is_a_warning(tmp_path: Path) -> None:
    """The warning names the kernels with the most time, so that a reader may recognise communication."""
    events = [
        step(3, 0, 100),
        *launched("gemm", 1, 20, 50, correlation=1),
        *launched("my_own_ring_exchange", 2, 50, 90, correlation=2),
    ]
    warnings = run_warnings(run_with(tmp_path, events, backend="nccl"))
    assert "rank 0: no communication recognised among 2 ranks; most time is in my_own_ring_exchange, gemm" in warnings
    assert overlaplab.summary(load_run(tmp_path))["overlap_ratio"].isna().all()
