"""What labels of played programs are made of: the fields in names of moves, dtypes, and which waits have no label."""

from __future__ import annotations

from overlaplab.manifest import Manifest
from overlaplab.simulate.player import Mark, Program, Wait

NAME_FIELDS = {
    "bucket": ("bucket",),
    "parameters": ("bucket",),
    "gather": ("unit", "microbatch", "phase"),
    "scatter": ("unit", "microbatch"),
    "replicas": ("unit", "microbatch"),
    "activations": ("module", "microbatch", "phase"),
}
"""What the name of a launch of this role consists of."""


def unit_label_fields(name: str) -> dict[str, str]:
    """The fields of a label, from the name of a unit's move."""
    return ordered_fields(dict(zip(NAME_FIELDS["gather"], name.split(" "), strict=True)))


def ordered_fields(fields: dict[str, str]) -> dict[str, str]:
    """The fields in the grammar's order, which is not that of names."""
    return {key: fields[key] for key in ("bucket", "unit", "module", "phase", "microbatch") if key in fields}


def sent_dtype(manifest: Manifest, role: str) -> str:
    """The type in which gradients, parameters, activations, or flags are sent."""
    if not role:
        return "int32"
    computes = manifest.param_dtype or (manifest.model.dtype if manifest.model else None) or "float32"
    if role in ("gather", "parameters", "activations"):
        return computes
    return manifest.reduce_dtype or ("float32" if manifest.main_grad else computes)


def unit_name(name: str) -> str:
    """The unit in the name of a move."""
    return name.split(" ")[0]


def silent_waits(program: Program) -> set[int]:
    """The places of waits within a backward pass after its last gradient, as DDP's, which no label shows."""
    silent: set[int] = set()
    since: set[int] = set()
    inside = False
    for place, move in enumerate(program):
        if isinstance(move, Mark) and move.word in ("backward", "gradient", "kept_gradient"):
            inside = True
            since.clear()
        elif isinstance(move, Mark) and move.word in ("backward_end", "kept_end"):
            silent |= since
            inside = False
            since.clear()
        elif isinstance(move, Wait) and inside:
            since.add(place)
    return silent
