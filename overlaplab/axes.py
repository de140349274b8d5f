"""The axes of a mesh of ranks, and which one a process group works along, by its description in the trace.

Sources: the engine's own groups are described by their axis; Megatron-LM's by `group_desc` in
megatron/core/parallel_state.py; those of a `DeviceMesh` are called `mesh_` and the dimension (`_init_one_process_group`
in torch/distributed/device_mesh.py), and torchtitan's dimensions stand in torchtitan/distributed/parallel_dims.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PIPELINE, TENSOR = "pp", "tp"

AXES: Mapping[str, str] = {
    PIPELINE: r"pp|PIPELINE_MODEL_PARALLEL_GROUP|(POSITION_)?EMBEDDING_GROUP",
    "dp": r"dp|dp_cp|batch|loss"
    r"|(INTRA_PARTIAL_)?DATA_PARALLEL_GROUP(_WITH_CP)?(_AG)?(_GLOO)?|EXPERT_DATA_PARALLEL_GROUP(_GLOO)?",
    "replicate": r"replicate|dp_replicate",
    "shard": r"shard|dp_shard|dp_shard_cp|dp_shard_in_ep|dp_shard_mod_ep|fsdp|efsdp",
    TENSOR: r"tp|etp|tensor(_and_context)?(_model)?_parallel(_group)?|EXPERT_TENSOR_PARALLEL_GROUP",
    "cp": r"cp|CONTEXT_PARALLEL_GROUP",
    "ep": r"ep|EXPERT_MODEL_PARALLEL_GROUP|EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP",
}
"""By the axis the descriptions of its groups: pipeline, data, data replicated and sharded, tensor, context, expert.

A group over several dimensions counts along the one whose collectives it carries: gradients are averaged over
`dp_cp` and sharded over `dp_shard_cp`. The first and the last stage share embeddings, along the pipeline. Groups over
the pipeline and the tensors at once (`MODEL_PARALLEL_GROUP`, of the gradients' norm) have no axis here, nor have those
of all ranks.
"""
_DESCRIPTION = re.compile(
    "(?:mesh_)?(?:" + "|".join(f"(?P<{axis}>{names})" for axis, names in AXES.items()) + ")", re.IGNORECASE
)


def find_axis(description: str) -> str:
    """The axis of a process group with this description, one of `AXES`; empty where it names none."""
    match = _DESCRIPTION.fullmatch(description)
    return next((axis for axis in AXES if match[axis] is not None), "") if match else ""
