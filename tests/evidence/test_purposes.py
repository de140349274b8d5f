"""What collectives are for, where only the description of their group tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.traces import event, launched, run_of, step

import overlaplab
from overlaplab.axes import find_axis


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
