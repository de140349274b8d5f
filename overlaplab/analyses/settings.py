"""What runs were recorded with, and whether several differ in bucket_cap_mb alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from overlaplab.events import Run
from overlaplab.manifest import Manifest

__all__ = ["differing", "is_emulated", "is_sweep", "model_settings"]

_SAME = (
    *("strategy", "device", "backend", "world_size", "model", "first_bucket_mb", "prefetch", "overlap_param_gather"),
    *("keep_last", "checkpointing", "main_grad", "accumulate", "link", "link_wait", "phantom_ranks", "hardware"),
)
"""The keys of run.json that a sweep holds fixed."""


def is_sweep(runs: Sequence[Run]) -> bool:
    """Whether they differ in bucket_cap_mb, and in nothing else that their manifests tell of the training, the link and
    the machine: two caps or more. Runs of one cap are its repeats.
    """
    manifests = [run.manifest for run in runs if run.manifest is not None]
    caps = {manifest.bucket_cap_mb for manifest in manifests}
    if len(manifests) < len(runs) or len(caps) < 2 or None in caps:
        return False
    return len({_fixed(manifest) for manifest in manifests}) == 1


def differing(runs: Sequence[Run]) -> str:
    """What keeps these runs from being a sweep, in words."""
    manifests = [run.manifest for run in runs if run.manifest is not None]
    if len(manifests) < len(runs):
        return "some have no run.json"
    differ = [
        key for key, told in zip(_SAME, zip(*map(_fixed, manifests), strict=True), strict=True) if len({*told}) > 1
    ]
    if differ:
        return f"they differ in {', '.join(differ)}"
    return "their bucket_cap_mb is the same or unknown"


def model_settings(manifest: Manifest | None) -> str | None:
    """What a manifest tells of the model and its input, as JSON; not the precision, which runs are compared by."""
    model = manifest.raw.get("model") if manifest is not None else None
    return _plain({key: value for key, value in model.items() if key != "dtype"}) if isinstance(model, dict) else None


def is_emulated(run: Run) -> bool:
    """Whether an emulated link carried the run."""
    return run.manifest is not None and run.manifest.emulated_link is not None


def _fixed(manifest: Manifest) -> tuple[str, ...]:
    told = manifest.raw | {"phantom_ranks": manifest.phantom_ranks}  # which older runs do not tell
    return tuple(_plain(told.get(key)) for key in _SAME)


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
