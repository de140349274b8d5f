"""A run under another setting, from a recorded one: its run.json and its ranks' events, and how far they may be off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, is_on_gpus, step_windows
from overlaplab.evidence.pipelines import find_plan
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.waits import numbered_arrivals
from overlaplab.folders import run_folders
from overlaplab.load.run_folder import load_manifest
from overlaplab.manifest import Manifest
from overlaplab.simulate.fill_buckets import CAP_MB
from overlaplab.simulate.player import Launch, Program
from overlaplab.simulate.predictions.answer import interval
from overlaplab.simulate.predictions.cpu_answers import RankPrediction, predict_ranks
from overlaplab.simulate.predictions.device import DevicePrediction, device_manifest, predict_device
from overlaplab.simulate.predictions.error import Interval, recorded_caps
from overlaplab.simulate.predictions.events import played_events
from overlaplab.simulate.predictions.trace_event import Event
from overlaplab.simulate.programs.options import strategy_options
from overlaplab.simulate.programs.pipelined import changed_pipeline, is_pipelined
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import mean_step_ns, recorded_spans_ns
from overlaplab.traits import TRAITS

_OF_A_RECORDING = frozenset(
    {
        *("link_steps", "link_attained", "link_floor_ns", "collectives", "attempt", "attempts", "machine"),
        *("processor_counts", "calibration", "memory", "losses", "started_at", "hardware_per_rank", "trace_ranks"),
        *("sliced", "command", "memory_limit", "largest_batch"),
    }
)
"""What run.json says of a recording, and of nothing else."""


class Prediction(Struct, frozen=True, kw_only=True):
    """What `predict` found."""

    manifest: dict[str, Any]
    """run.json of the predicted run."""
    ranks: list[list[Event]]
    """Each rank's events."""
    step_ns: int
    """The mean over all ranks' steps that nothing disturbed, see `undisturbed.mean_step_ns`."""
    recorded_step_ns: int
    interval: Interval
    """Around `step_ns`."""
    times_as_far: dict[str, float]
    """What lies far outside of what was recorded, and how many times as far; see `error.extrapolations`."""


def predict(run: Run, setting: Setting, caps: pd.DataFrame | None = None) -> Prediction:
    """Play the run under the setting; `caps`: those of `caps_beside` where not given. Raises `OverlaplabError`."""
    played = predict_device(run, setting) if is_on_gpus(run) else predict_ranks(run, setting)
    fields, ranks = _gpu_recording(played) if isinstance(played, DevicePrediction) else _cpu_recording(played)
    mean_ns, sure = played.mean_ns, interval(run, played, caps_beside(run) if caps is None else caps)
    prediction = {
        "from": run.path,
        "changes": changes(setting),
        "interval_ns": [round(mean_ns) - sure.half_ns, round(mean_ns) + sure.half_ns],
        "parts": asdict(sure),
        "extrapolated": played.times_as_far,
    }
    return Prediction(
        manifest=fields | {"predicted": prediction},
        ranks=ranks,
        step_ns=round(mean_ns),
        recorded_step_ns=round(mean_step_ns(run, recorded_spans_ns(run))),
        interval=sure,
        times_as_far=played.times_as_far,
    )


def _cpu_recording(played: RankPrediction) -> tuple[dict[str, Any], list[list[Event]]]:
    """run.json of the predicted run, without the prediction's own fields, and its ranks' events."""
    run, programs = played.run, played.programs[1]
    manifest = replace(played.manifest, link=played.setting.link or played.manifest.link)
    numbers = [window.step for window in step_windows(run.traces[0])]
    events = played_events(programs, played.played, manifest, numbers, taken_ns=_taken_ns(run))
    return _manifest(run, played.setting, programs[0]), events


def _gpu_recording(played: DevicePrediction) -> tuple[dict[str, Any], list[list[Event]]]:
    """The same of a run on GPUs, whose streams are a CPU's threads in the predicted run."""
    run, manifest, setting = played.run, played.manifest, played.setting
    fields: dict[str, Any] = {"format_version": 1, "world_size": manifest.world_size}
    fields |= {key: value for key, value in manifest.raw.items() if key not in _OF_A_RECORDING}
    if caps := _asked_caps(setting):
        fields.pop("buckets", None)
    if setting.prefetch is not None:
        fields["prefetch"] = setting.prefetch
    fields |= caps
    world = setting.ranks or manifest.world_size
    if setting.ranks:
        fields |= {"world_size": world, "phantom_ranks": [*range(len(run.traces), world)], "mesh": _only_dp(world)}
    link = setting.link or manifest.link
    if link and (setting.link or setting.ranks):
        fields["link"] = asdict(replace(link, world_size=world))
    return fields | {"device": "cpu"}, [played.events(rank) for rank in range(min(len(run.traces), world))]


def changes(setting: Setting) -> dict[str, Any]:
    """What the setting changes, by name; a link and stages as the command takes them."""
    unchanged = asdict(Setting())
    changed = {name: value for name, value in asdict(setting).items() if value != unchanged[name]}
    if setting.edits:
        changed["edits"] = [name if value is None else f"{name}={value}" for name, value in setting.edits]
    stages = {"stages": ",".join(map(str, setting.stages))} if setting.stages else {}
    return changed | stages | ({"link": str(setting.link)} if setting.link else {})


def _taken_ns(run: Run) -> int:
    """How long after it could, the link's thread took a collective up, in the mean."""
    rows = numbered_arrivals(run)
    rows_of_both = rows[(rows["start_ns"] != UNKNOWN_NS) & (rows["arrived_ns"] != UNKNOWN_NS)]
    return int((rows_of_both["start_ns"] - rows_of_both["arrived_ns"]).mean()) if len(rows_of_both) else 0


def caps_beside(run: Run) -> pd.DataFrame:
    """`recorded_caps` of the recordings in the run's folder."""
    beside = _manifests_beside(run.path) if run.manifest or not is_on_gpus(run) else ()
    return recorded_caps(device_manifest(run), beside)


def _manifests_beside(path: str) -> Iterator[Manifest]:
    if "://" in path or not Path(path).is_dir():
        return
    for folder in run_folders(Path(path).absolute().parent):
        try:
            manifest = load_manifest(folder)
        except OverlaplabError:
            continue
        if manifest is not None:
            yield manifest


def _manifest(run: Run, setting: Setting, program: Program) -> dict[str, Any]:
    """run.json as a recording of the setting would have it, as far as it can be known."""
    assert run.manifest is not None
    raw: dict[str, Any] = {"format_version": 1, "world_size": run.manifest.world_size}
    raw |= {key: value for key, value in run.manifest.raw.items() if key not in _OF_A_RECORDING}
    if is_pipelined(run, setting) and (recorded_pipeline := find_plan(run)) is not None:
        link = setting.link or run.manifest.link
        raw["pipeline"] = to_builtins(changed_pipeline(run, recorded_pipeline, setting))
        return raw | {"link": asdict(link) if link else None}
    if not run.manifest.axes.is_one_axis or run.manifest.strategy is None:  # nothing but link and caps is predicted
        return raw | _asked_caps(setting) | ({"link": asdict(setting.link)} if setting.link else {})
    options = strategy_options(run, run.manifest, setting)
    traits = TRAITS.get(options.strategy)
    raw |= {"strategy": options.strategy, "world_size": options.ranks, "accumulate": options.accumulate}
    raw |= {"buckets": _buckets(program)}
    if options.strategy != run.manifest.strategy and traits is not None:
        raw["traits"] = to_builtins(traits)
    if options.strategy != run.manifest.strategy:
        raw["bucket_cap_mb"] = (run.manifest.bucket_cap_mb or CAP_MB) if options.caps else None
    raw |= _asked_caps(setting)
    if traits is not None:
        raw["prefetch"] = options.prefetch if traits.gathers == "units" else None
    if "mesh" in raw:
        raw["mesh"] = _only_dp(options.ranks)
    link = setting.link or run.manifest.link
    return raw | {"link": asdict(replace(link, world_size=options.ranks)) if link else None}


def _asked_caps(setting: Setting) -> dict[str, float | None]:
    """The cap and the first bucket's that a setting asks for, if any; None of a list that has more."""
    if (caps := setting.caps_mb) is not None:
        cap, first = caps[-1] if len(caps) < 3 else None, caps[0] if len(caps) == 2 else None
        return {"bucket_cap_mb": cap, "first_bucket_mb": first}
    changed = {"bucket_cap_mb": setting.bucket_cap_mb, "first_bucket_mb": setting.first_bucket_mb}
    return {name: cap for name, cap in changed.items() if cap is not None}


def _only_dp(ranks: int) -> dict[str, int | None]:
    """The mesh of so many ranks that are all replicas."""
    return {"dp": ranks, "pp": 1, "tp": 1, "replicate": None, "shard": None}


def _buckets(program: Program) -> list[Mapping[str, Any]]:
    """The buckets of the first step that has any, in order of launch."""
    buckets: dict[str, Mapping[str, Any]] = {}
    for move in program:
        if isinstance(move, Launch) and move.role == "bucket" and move.what not in buckets:
            size = move.gradient_bytes or move.bytes
            row = {"index": int(move.what or 0), "bytes": size, "parameters": list(move.parameters)}
            buckets[str(move.what)] = row
    return list(buckets.values())
