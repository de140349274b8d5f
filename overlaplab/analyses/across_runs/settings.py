"""The settings of runs, and whether several runs differ only in bucket_cap_mb."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from overlaplab.events import Run
from overlaplab.manifest import Manifest

_SAME = (
    *("strategy", "device", "backend", "world_size", "mesh", "model", "first_bucket_mb", "prefetch"),
    *("overlap_param_gather", "keep_last", "reshard_after_forward", "asynchronous", "max_staleness"),
    *("every", "background"),
    *("checkpointing", "main_grad", "param_dtype", "reduce_dtype", "accumulate", "communicators"),
    *("offload", "host_link", "unit_policy", "pipeline", "swept"),
    *("link", "link_wait", "phantom_ranks", "hardware", "predicted"),
)
"""The keys of run.json that a sweep holds fixed."""

_WORK = (
    *("world_size", "mesh", "device", "backend", "accumulate", "microbatches"),
    *("link", "link_wait", "phantom_ranks", "hardware"),
)
"""The keys of run.json that beside the model decide what work a step is, and on what machine and link it runs."""


def work_differs(first: Manifest, other: Manifest) -> list[str]:
    """The keys of run.json, the model's one by one, in which two runs did other work, or on other machines or links.

    A precision is an option, as runs are compared across precisions.
    """
    return settings_differ(work_settings(first), work_settings(other))


def same_but_batch(first: Manifest, other: Manifest) -> bool:
    """Whether both have the largest batch that fits into the same memory, and did the same work but for it."""
    fitted = first.largest_batch and other.largest_batch and first.memory_limit == other.memory_limit
    return bool(fitted) and set(work_differs(first, other)) <= {"batch"}


def work_settings(manifest: Manifest) -> dict[str, Any]:
    """What decides the work of a step, and on what machine and link it runs: the model's keys, then others; as JSON."""
    settings, model = _with_defaults(manifest), _model(manifest) or {}
    of_model = {key: value for key, value in model.items() if key not in ("dtype", "parameters")}
    decisive = of_model | {key: settings.get(key) for key in _WORK}
    plain: dict[str, Any] = json.loads(json.dumps(decisive, default=str))
    return plain


def settings_differ(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys in which two `work_settings` differ."""
    return [key for key in {**first, **other} if _setting_to_compare(first, key) != _setting_to_compare(other, key)]


def _setting_to_compare(settings: Mapping[str, Any], key: str) -> Any:
    """A setting as it is compared: a link's number of ranks is `world_size` again."""
    value = settings.get(key)
    return value | {"world_size": None} if key == "link" and isinstance(value, dict) else value


def same_but_cap(first: Manifest, other: Manifest) -> bool:
    """Whether two runs differ in nothing but bucket_cap_mb, as those of a sweep."""
    return _fixed_settings(first) == _fixed_settings(other)


def is_sweep(runs: Sequence[Run]) -> bool:
    """Whether the runs have two caps or more, and otherwise equal settings: training, link and machine.

    Runs of the same cap are repeats. Every run needs a manifest.
    """
    manifests = [run.manifest for run in runs if run.manifest is not None]
    caps = {manifest.bucket_cap_mb for manifest in manifests}
    has_caps = len(manifests) == len(runs) and len(caps) > 1 and None not in caps
    return has_caps and len({*map(_fixed_settings, manifests)}) == 1


def setting_numbers(runs: Sequence[Run]) -> list[int]:
    """The setting of each run, as the place of the first run that was recorded with the same one.

    Where all have the same settings, or nothing tells them, each run is its own.
    """
    manifests = enumerate(run.manifest for run in runs)
    keys = [(each.bucket_cap_mb, _fixed_settings(each)) if each else (place,) for place, each in manifests]
    return [keys.index(key) for key in keys] if len({*keys}) > 1 else [*range(len(runs))]


def name_differences(runs: Sequence[Run]) -> str:
    """Why these runs are not a sweep, in words."""
    manifests = [run.manifest for run in runs if run.manifest is not None]
    if len(manifests) < len(runs):
        return "some have no run.json"
    by_key = zip(_SAME, zip(*map(_fixed_settings, manifests), strict=True), strict=True)
    if differ := [key for key, values in by_key if len({*values}) > 1]:
        return f"they differ in {', '.join(differ)}"
    return "their bucket_cap_mb is the same or unknown"


def model_settings(manifest: Manifest | None) -> str | None:
    """The model and its input in a manifest, as JSON; without the precision, as runs are compared across precisions."""
    model = _model(manifest) if manifest else None
    return None if model is None else _canonical_json({key: model[key] for key in model if key != "dtype"})


def _model(manifest: Manifest) -> dict[str, Any] | None:
    model = manifest.raw.get("model")
    return model if isinstance(model, dict) else None


def is_emulated(run: Run) -> bool:
    """Whether an emulated link carried the run."""
    return run.manifest is not None and run.manifest.emulated_link is not None


def is_predicted(run: Run) -> bool:
    """Whether nobody recorded the run."""
    return run.manifest is not None and run.manifest.predicted is not None


def _fixed_settings(manifest: Manifest) -> tuple[str, ...]:
    settings = _with_defaults(manifest)
    return tuple(_canonical_json(settings.get(key)) for key in _SAME)


def _with_defaults(manifest: Manifest) -> dict[str, Any]:
    """run.json in one form for all its versions, with what older ones lack."""
    swept = {} if manifest.swept is None else manifest.swept.settings
    computed = {
        "phantom_ranks": manifest.phantom_ranks,
        "predicted": manifest.predicted is not None,
        "mesh": None if manifest.axes.dp == manifest.world_size else asdict(manifest.axes),
        "microbatches": manifest.pipeline.microbatches if manifest.pipeline else None,
        "swept": {name: value for name, value in swept.items() if name != "bucket_cap_mb"},
    }
    return {"communicators": 1} | manifest.raw | computed


def _canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
