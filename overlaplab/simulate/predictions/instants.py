"""Labels of a played program that no single move gives: buckets that are ready, units that are freed, silent waits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod

from overlaplab.dtypes import DTYPE_BYTES
from overlaplab.manifest import Manifest
from overlaplab.simulate.player import Launch, Mark, Program, Wait, Work
from overlaplab.vocabulary import label_text

NAME_FIELDS = {
    "bucket": ("bucket",),
    "parameters": ("bucket",),
    "gather": ("unit", "microbatch", "phase"),
    "scatter": ("unit", "microbatch"),
    "replicas": ("unit", "microbatch"),
    "activations": ("module", "microbatch", "phase"),
}
"""What the name of a launch of this role consists of."""


def bucket_gradients(program: Program) -> dict[Hashable, tuple[str, ...]]:
    """The gradients of each bucket, by its launch's key: those named, else those that arrived since the one before."""
    gradients: dict[Hashable, tuple[str, ...]] = {}
    arrived: list[str] = []
    for move in program:
        if isinstance(move, Mark) and move.word == "gradient":
            arrived.append(move.name)
        elif isinstance(move, Launch) and move.role == "bucket":
            gradients[move.key] = move.parameters or tuple(arrived)
            arrived.clear()
    return gradients


def move_label_fields(role: str, name: str) -> dict[str, str]:
    """The fields of a label, from the name of a move, in which units are encoded, too."""
    return ordered_fields(dict(zip(NAME_FIELDS[role], name.split(" "), strict=True)))


def ordered_fields(fields: dict[str, str]) -> dict[str, str]:
    """In the grammar's order, which is not that of names."""
    return {key: fields[key] for key in ("bucket", "unit", "module", "phase", "microbatch") if key in fields}


def sent_dtype(manifest: Manifest, role: str) -> str:
    """In which gradients, parameters, activations, or flags are sent."""
    if not role:
        return "int32"
    computes = manifest.param_dtype or (manifest.model.dtype if manifest.model else None) or "float32"
    if role in ("gather", "parameters", "activations"):
        return computes
    return manifest.reduce_dtype or ("float32" if manifest.main_grad else computes)


def gradient_bytes(manifest: Manifest, names: Sequence[str]) -> int:
    """The bytes of these parameters' gradients as they are sent, without flags; 0 where one is not known."""
    elements = {parameter.name: prod(parameter.shape) for parameter in manifest.parameters}
    if not all(name in elements for name in names) or sent_dtype(manifest, "bucket") not in DTYPE_BYTES:
        return 0
    return sum(elements[name] for name in names) * DTYPE_BYTES[sent_dtype(manifest, "bucket")]


def ready_labels(program: Program, manifest: Manifest) -> dict[int, list[str]]:
    """The labels of buckets that are ready with a move: with their last gradient, or else when they are launched."""
    gradients = bucket_gradients(program)
    arrived: dict[str, int] = {}
    labels: dict[int, list[str]] = {}
    further = False
    for place, move in enumerate(program):
        if isinstance(move, Mark) and move.word == "gradient":
            arrived[move.name] = place
        elif isinstance(move, Launch) and move.role == "bucket" and not (further and move.lane is not None):
            last = max((arrived.pop(name) for name in gradients[move.key] if name in arrived), default=place)
            names = gradients[move.key]
            size = move.gradient_bytes or gradient_bytes(manifest, names) or move.bytes
            text = label_text("bucket_ready", bucket=move.what or "", bytes=size, parameters=names)
            labels.setdefault(last, []).append(text)
        if not isinstance(move, Work):
            further = isinstance(move, Launch) and move.role == "bucket"
    return labels


def freed_labels(program: Program) -> dict[int, list[str]]:
    """The labels of units that are freed with their last use: they are gathered before they are used again."""
    sizes: dict[str, int] = {}
    last: dict[str, tuple[int, str]] = {}  # uses that are over, of units that may be held on
    freed: list[tuple[int, str]] = []
    for place, move in enumerate(program):
        match move:
            case Launch(role="gather", what=str(name)):
                sizes[unit_name(name)] = move.bytes
                freed += [last.pop(unit_name(name))] if unit_name(name) in last else []
            case Mark("use", name):
                last.pop(unit_name(name), None)
            case Mark("last_use", name) if unit_name(name) in sizes:
                last[unit_name(name)] = place, name
    labels: dict[int, list[str]] = {}
    for place, name in (*freed, *last.values()):
        text = label_text("free", **move_label_fields("gather", name), bytes=sizes[unit_name(name)])
        labels.setdefault(place, []).append(text)
    return labels


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
