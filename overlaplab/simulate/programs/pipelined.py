"""The programs of a pipeline under another setting, from a recorded pipeline."""

from __future__ import annotations

from dataclasses import fields, replace

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, step_windows
from overlaplab.evidence.clocks import corrections
from overlaplab.manifest import Manifest, Pipeline
from overlaplab.simulate.pipelines import PLAYED, pipeline_moves
from overlaplab.simulate.player import Program
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.recorded_pipelines import is_layer, recorded_shapes

__all__ = ["pipeline_of", "pipeline_programs"]

_TAKES = {"schedule", "microbatches", "stages", "link"}
"""The changes that a pipeline has."""
_MOST = 4096
"""Microbatches of a step that are played."""


def pipeline_programs(run: Run, setting: Setting) -> tuple[Program, ...]:
    """One program per rank, over all recorded steps. Raises `OverlaplabError` for what cannot be played."""
    assert run.manifest is not None  # who calls has seen its pipeline
    _require(run, run.manifest, setting)
    shapes = recorded_shapes(run)
    told = pipeline_of(run, run.manifest, setting)
    if setting.stages is not None and not shapes[0].layers:
        raise OverlaplabError("its traces do not tell what a layer of each stage takes", path=run.path)
    changed = []
    for shape in shapes:
        own = shape if setting.stages is None else shape.with_layers(setting.stages)
        own = own if setting.link is None else own.with_link(setting.link)
        changed.append(replace(own, schedule=told.schedule, microbatches=told.microbatches))
    offsets = corrections(run)
    begins = [step_windows(trace)[0].start_ns - int(offset) for trace, offset in zip(run.traces, offsets, strict=True)]
    return tuple(pipeline_moves(changed, rank, begin - min(begins)) for rank, begin in enumerate(begins))


def pipeline_of(run: Run, manifest: Manifest, setting: Setting) -> Pipeline:
    """What run.json says of the pipeline under the setting. Raises `OverlaplabError` for what no pipeline can be."""
    assert manifest.pipeline is not None
    known = manifest.pipeline
    schedule, microbatches = setting.schedule or known.schedule, setting.microbatches or known.microbatches
    if schedule == "1f1b" and microbatches < len(known.stages):
        what = f"1f1b takes as many microbatches as stages or more: {microbatches} is less than {len(known.stages)}"
        raise OverlaplabError(what, path=run.path)
    stages = known.stages
    if setting.stages is not None:
        layers = [unit for stage in known.stages for unit in stage.units if is_layer(unit)]
        fits = len(setting.stages) == len(stages) and min(setting.stages) > 0 and sum(setting.stages) == len(layers)
        if not fits:
            told = ",".join(map(str, setting.stages))
            raise OverlaplabError(
                f"--stages {told} does not share {len(layers)} layers out among {len(stages)} stages", path=run.path
            )
        rest = iter(layers)
        stages = tuple(
            replace(
                stage,
                units=(
                    *(unit for unit in stage.units if place == 0 and not is_layer(unit)),
                    *(next(rest) for _ in range(count)),
                    *(unit for unit in stage.units if place > 0 and not is_layer(unit)),
                ),
            )
            for place, (stage, count) in enumerate(zip(known.stages, setting.stages, strict=True))
        )
    return Pipeline(schedule=schedule, microbatches=microbatches, stages=stages)


def _require(run: Run, manifest: Manifest, setting: Setting) -> None:
    for field in fields(setting):
        value = getattr(setting, field.name)
        if field.name not in _TAKES and value != field.default:
            raise OverlaplabError(
                f"of a pipeline schedule, microbatches, stages and link are predicted, not {field.name}", path=run.path
            )
    if manifest.axes.pp != manifest.world_size:
        raise OverlaplabError(f"pipelines beside data parallelism are not predicted: {manifest.axes}", path=run.path)
    if setting.schedule is not None and setting.schedule not in PLAYED:
        raise OverlaplabError(
            f"the schedule {setting.schedule} is not predicted", path=run.path, remedy=f"Known: {', '.join(PLAYED)}"
        )
    if setting.microbatches is not None and not 0 < setting.microbatches <= _MOST:
        raise OverlaplabError(f"microbatches must be from 1 to {_MOST}, not {setting.microbatches}", path=run.path)
