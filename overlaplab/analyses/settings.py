"""What runs were told: in words, and whether several were told the same but for their bucket_cap_mb."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from overlaplab.events import Run
from overlaplab.manifest import Manifest
from overlaplab.words import count

__all__ = ["differing", "group_words", "is_emulated", "is_sweep", "link_words", "model_told", "setting_words"]

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


def model_told(manifest: Manifest | None) -> str | None:
    """What a manifest tells of the model and its input, as JSON; not the precision, which runs are compared by."""
    model = manifest.raw.get("model") if manifest is not None else None
    return _plain({key: value for key, value in model.items() if key != "dtype"}) if isinstance(model, dict) else None


def group_words(manifest: Manifest, ranks: int | None = None) -> str:
    """Who was there: `2 ranks` (so many as `ranks` says, else as the job had), or one rank whose peers are phantoms."""
    if not manifest.phantom_ranks:
        return count(manifest.world_size if ranks is None else ranks, "rank")
    meant = "" if manifest.numerics_meant else "; numerics not meant"
    return f"one rank of an emulated group of {manifest.world_size} (peers are phantoms{meant})"


def is_emulated(run: Run) -> bool:
    """Whether an emulated link carried the run."""
    return run.manifest is not None and run.manifest.emulated_link is not None


def link_words(manifest: Manifest) -> str:
    """The emulated link, and whether it was attained; empty without one."""
    link = manifest.emulated_link
    missed = ", link not attained" if manifest.link_attained is False else ""
    return f"emulated link {link}{missed}" if link else ""


def setting_words(manifest: Manifest | None) -> str:
    """What the strategy was told, where it is worth a word; empty where nothing tells."""
    if manifest is None:
        return ""
    words = []
    if manifest.bucket_cap_mb is not None:
        words.append(f"cap {manifest.bucket_cap_mb:g} MiB")
    if manifest.prefetch is not None:
        words.append(f"prefetch {manifest.prefetch}")
    if manifest.accumulate is not None and manifest.accumulate > 1:
        words.append(f"{manifest.accumulate} microbatches")
    if manifest.overlap_param_gather is not None:
        words.append("gathers in forward" if manifest.overlap_param_gather else "gathers before forward")
    if manifest.keep_last is not None:
        words.append("last layer kept" if manifest.keep_last else "last layer freed")
    if manifest.checkpointing:
        words.append("checkpointing")
    if manifest.main_grad:
        words.append("fp32 gradients")
    return ", ".join(words)


def _fixed(manifest: Manifest) -> tuple[str, ...]:
    told = manifest.raw | {"phantom_ranks": manifest.phantom_ranks}  # which older runs do not tell
    return tuple(_plain(told.get(key)) for key in _SAME)


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
