"""Which axis of a mesh a process group works along, by what Megatron-LM, torchtitan and DeviceMesh call it."""

from __future__ import annotations

import pytest

from overlaplab.axes import AXES, find_axis


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EMBEDDING_GROUP", "pp"),
        ("POSITION_EMBEDDING_GROUP", "pp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "tp"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP_AG", "dp"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("MODEL_PARALLEL_GROUP", ""),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", ""),
        ("mesh_pp", "pp"),
        ("mesh_tp", "tp"),
        ("mesh_dp_cp", "dp"),
        ("mesh_dp_replicate", "replicate"),
        ("mesh_dp_shard", "shard"),
        ("mesh_dp_shard_cp", "shard"),
        ("dp_shard_cp", "shard"),
        ("mesh_cp", "cp"),
        ("mesh_ep", "ep"),
        ("mesh_dim_0", ""),
        ("mesh_default", ""),
        ("default_pg", ""),
        ("appp", ""),
        ("", ""),
    ],
)
def test_the_axis(description: str, axis: str) -> None:
    assert find_axis(description) == axis


def test_the_engines_groups_are_called_as_their_axes() -> None:
    assert [find_axis(axis) for axis in AXES] == list(AXES)
