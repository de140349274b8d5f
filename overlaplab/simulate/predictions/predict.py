"""A run under another setting, from a recorded one: its run.json and its ranks' events, and how far they may be off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, is_on_gpus, step_windows
from overlaplab.evidence.pipelines import find_plan
from overlaplab.evidence.recorded import UNKNOWN_NS
from overlaplab.evidence.waits import numbered_arrivals
from overlaplab.folders import run_folders
from overlaplab.load.run_folder import load_manifest
from overlaplab.manifest import Manifest
from overlaplab.simulate.fill_buckets import MIB
from overlaplab.simulate.play_errors import play_or_refuse
from overlaplab.simulate.player import Launch, Move, Program
from overlaplab.simulate.predictions.device import device_manifest, predict_device
from overlaplab.simulate.predictions.error import Interval, extrapolations, prediction_interval, recorded_caps
from overlaplab.simulate.predictions.events import played_events
from overlaplab.simulate.predictions.trace_event import Event
from overlaplab.simulate.programs import all_programs
from overlaplab.simulate.programs.edits import move_into_the_next
from overlaplab.simulate.programs.options import strategy_options
from overlaplab.simulate.programs.pipelined import changed_pipeline, is_pipelined
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.uncertainty import transfers_miss_ns
from overlaplab.simulate.undisturbed import mean_step_after_ns, mean_step_ns, recorded_spans_ns
from overlaplab.traits import TRAITS

_OF_A_RECORDING = frozenset(
    {
        *("link_steps", "link_attained", "link_floor_ns", "collectives", "attempt", "attempts", "machine"),
        *("processor_counts", "calibration", "memory", "losses", "started_at", "hardware_per_rank", "trace_ranks"),
        *("sliced", "command", "memory_limit", "largest_batch"),
    }
)
"""What run.json says of a recording, and of nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
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
    extrapolated: dict[str, float]
    """What lies far outside of what was recorded, and how many times as far; see `error.extrapolations`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Play:
    """A run under a setting, and as it is; steps in ns, of shape (ranks, steps)."""

    manifest: dict[str, Any]
    """run.json of the predicted run, without the prediction's own fields."""
    ranks: list[list[Event]]
    predicted_ns: NDArray[np.int64]
    replayed_ns: NDArray[np.int64]
    moves: tuple[Iterable[Move], Iterable[Move]]
    """All ranks' moves, as recorded and as predicted."""
    transfers_ns: int = 0
    """How much the mean step may be off because T of other sizes is."""


def predict(run: Run, setting: Setting, caps: pd.DataFrame | None = None) -> Prediction:
    """Play the run under the setting; `caps`: of `caps_beside`, if not given. Raises `OverlaplabError`."""
    manifest = device_manifest(run)
    played = (
        _play_on_gpus(run, setting)
        if is_on_gpus(run)
        else _play_on_cpus(run if run.manifest else replace(run, manifest=manifest), setting)
    )
    into_the_next = move_into_the_next(setting.edits)
    step_ns = mean_step_after_ns(run, played.predicted_ns, into_the_next=into_the_next)
    caps = caps_beside(run) if caps is None else caps
    far = extrapolations(manifest, setting, *played.moves)
    sure = prediction_interval(run, step_ns, played.replayed_ns.mean(axis=0).tolist(), caps, far, played.transfers_ns)
    prediction = {
        "from": run.path,
        "changes": changes(setting),
        "interval_ns": [round(step_ns) - sure.half_ns, round(step_ns) + sure.half_ns],
        "parts": asdict(sure),
        "extrapolated": far,
    }
    return Prediction(
        manifest=played.manifest | {"predicted": prediction},
        ranks=played.ranks,
        step_ns=round(step_ns),
        recorded_step_ns=round(mean_step_ns(run, recorded_spans_ns(run))),
        interval=sure,
        extrapolated=far,
    )


def _play_on_cpus(run: Run, setting: Setting) -> _Play:
    recorded, programs = all_programs(run, Setting()), all_programs(run, setting)
    before, after = play_or_refuse(run, recorded), play_or_refuse(run, programs)
    assert run.manifest is not None
    manifest = replace(run.manifest, link=setting.link or run.manifest.link)
    numbers = [window.step for window in step_windows(run.traces[0])]
    return _Play(
        manifest=_manifest(run, setting, programs[0]),
        ranks=played_events(programs, after, manifest, numbers, taken_ns=_taken_ns(run)),
        predicted_ns=after.all_spans_ns(),
        replayed_ns=before.all_spans_ns(),
        moves=(chain.from_iterable(recorded), chain.from_iterable(programs)),
        transfers_ns=transfers_miss_ns(run, setting.edits, setting.link),
    )


def _play_on_gpus(run: Run, setting: Setting) -> _Play:
    """Anybody's run behind another link, on other ranks, with other buckets of torch's DDP, or FSDP2's prefetching."""
    prediction = predict_device(run, setting)
    raw = {} if run.manifest is None else run.manifest.raw
    fields: dict[str, Any] = {"format_version": 1, "world_size": device_manifest(run).world_size}
    fields |= {key: value for key, value in raw.items() if key not in _OF_A_RECORDING}
    if setting.bucket_cap_mb is not None:
        fields.pop("buckets", None)
        fields["bucket_cap_mb"] = setting.bucket_cap_mb
    world = setting.ranks or device_manifest(run).world_size
    if setting.ranks:
        fields |= {"world_size": world, "phantom_ranks": [*range(len(run.traces), world)], "mesh": _only_dp(world)}
    link = setting.link or (run.manifest.link if run.manifest else None)
    if link and (setting.link or setting.ranks):
        fields["link"] = asdict(replace(link, world_size=world))
    return _Play(
        manifest=fields | {"device": "cpu"},
        ranks=[prediction.events(rank) for rank in range(min(len(run.traces), world))],
        predicted_ns=prediction.predicted_ns,
        replayed_ns=prediction.recorded_ns,
        moves=prediction.moves,
        transfers_ns=prediction.transfers_ns,
    )


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
        raw["pipeline"] = asdict(changed_pipeline(run, recorded_pipeline, setting))
        return raw | {"link": asdict(link) if link else None}
    if not run.manifest.axes.is_one_axis or run.manifest.strategy is None:  # nothing but its link is predicted
        return raw | ({"link": asdict(setting.link)} if setting.link else {})
    options = strategy_options(run, run.manifest, setting)
    traits = TRAITS.get(options.strategy)
    raw |= {"strategy": options.strategy, "world_size": options.ranks, "accumulate": options.accumulate}
    raw |= {"buckets": _buckets(program)}
    if options.strategy != run.manifest.strategy and traits is not None:
        raw["traits"] = asdict(traits)
    if setting.bucket_cap_mb is not None or options.strategy != run.manifest.strategy:
        raw["bucket_cap_mb"] = options.caps[-1] / MIB if options.caps else None
    if setting.first_bucket_mb is not None:
        raw["first_bucket_mb"] = setting.first_bucket_mb
    if traits is not None:
        raw["prefetch"] = options.prefetch if traits.gathers == "units" else None
    if "mesh" in raw:
        raw["mesh"] = _only_dp(options.ranks)
    link = setting.link or run.manifest.link
    return raw | {"link": asdict(replace(link, world_size=options.ranks)) if link else None}


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
