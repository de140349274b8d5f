"""The programs of a pipeline under another setting, from a recorded pipeline."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from overlaplab.costs.pipeline import PER_RANK, ranks_of_stages
from overlaplab.events import Run, step_windows
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.pipelines import find_plan, pipelines
from overlaplab.manifest import Manifest, Pipeline, Stage
from overlaplab.simulate.pipelines.moves import pipeline_moves
from overlaplab.simulate.pipelines.recorded import is_layer, recorded_shapes
from overlaplab.simulate.pipelines.shape import PLAYED_SCHEDULES
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.player import Program
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.times import retime_program
from overlaplab.words import known_names

_TAKES = {"schedule", "microbatches", "stages", "link"}
"""The fields of a `Setting` that a pipeline takes."""
_INTERLEAVED = "interleaved-1f1b"
_MAX_MICROBATCHES = 4096
"""Microbatches of a step that are played."""


def pipeline_programs(run: Run, setting: Setting) -> tuple[Program, ...]:
    """One program per rank, over all recorded steps. Raises `OverlaplabError` for what cannot be played."""
    pipeline, layers = require_change(run, setting)
    recorded, offsets = recorded_shapes(run), corrections(run)
    begins = [step_windows(trace)[0].start_ns - int(offset) for trace, offset in zip(run.traces, offsets, strict=True)]
    link = recorded[0][0].link
    other_link = setting.link and link and replace(setting.link, world_size=link.world_size)
    programs: dict[int, Program] = {}
    for places, shapes in zip(pipelines(run), recorded, strict=True):
        changed = [
            replace(shape.with_schedule(pipeline.schedule, layers), microbatches=pipeline.microbatches)
            for shape in shapes
        ]
        for rank, place in enumerate(places):
            moves = pipeline_moves(changed, rank, begins[place] - min(begins), tuple(places))
            programs[place] = retime_program(moves, link, other_link)
    return tuple(programs[place] for place in range(len(run.traces)))


def require_change(run: Run, setting: Setting) -> tuple[Pipeline, tuple[int, ...]]:
    """The pipeline under the setting, and the layers of each stage, if these change. Raises `OverlaplabError` for what
    cannot be played.
    """
    recorded_pipeline = find_plan(run)
    assert run.manifest is not None  # who calls has seen its pipeline
    assert recorded_pipeline is not None
    _require(run, run.manifest, setting)
    recorded = recorded_shapes(run)
    if setting.link is not None and recorded[0][0].link is None:
        what = "how long its messages take behind another link is not known"
        raise refusal(run, what, "Record it behind an emulated link (--link 1Gbps,200us)")
    pipeline = changed_pipeline(run, recorded_pipeline, setting)
    layers = _layers(pipeline)
    if layers == _layers(recorded_pipeline):
        layers = ()
    elif not recorded[0][0].layers:
        raise refusal(run, "its traces do not show what a layer of each stage takes")
    if recorded[0][0].buckets and pipeline.stages != recorded_pipeline.stages:
        what = "beside data parallelism the ranks keep their stages, as other buckets of gradients are not predicted"
        raise refusal(run, what)
    return pipeline, layers


def _layers(pipeline: Pipeline) -> tuple[int, ...]:
    """The number of layers of each stage."""
    return tuple(sum(map(is_layer, stage.units)) for stage in pipeline.stages)


def is_pipelined(run: Run, setting: Setting) -> bool:
    """Whether the setting is one of a pipeline, as run.json or the order of its actions tells."""
    changes_it = setting.schedule is not None or setting.microbatches is not None or setting.stages is not None
    if run.manifest is None:
        return False
    return run.manifest.pipeline is not None or (changes_it and find_plan(run) is not None)


def changed_pipeline(run: Run, recorded_pipeline: Pipeline, setting: Setting) -> Pipeline:
    """What run.json says of the pipeline under the setting. Raises `OverlaplabError` for what no pipeline can be."""
    schedule = setting.schedule or recorded_pipeline.schedule
    microbatches = setting.microbatches or recorded_pipeline.microbatches
    ranks = 1 + max(stage.rank for stage in recorded_pipeline.stages)
    _require_microbatches(run, schedule, microbatches, ranks)
    units = [unit for stage in recorded_pipeline.stages for unit in stage.units]
    layers = [unit for unit in units if is_layer(unit)]
    if not layers:
        keeps = schedule == recorded_pipeline.schedule or PER_RANK[schedule] * ranks == len(recorded_pipeline.stages)
        if setting.stages or not keeps:
            raise refusal(run, "no run.json names the layers of its stages, which would be shared out otherwise")
        return replace(recorded_pipeline, schedule=schedule, microbatches=microbatches)
    counts = setting.stages or _counts(run, recorded_pipeline, schedule, ranks, len(layers))
    least = PER_RANK[schedule] * ranks
    fits = len(counts) == least or (schedule == _INTERLEAVED and len(counts) > least and len(counts) % ranks == 0)
    if not fits or min(counts) < 1 or sum(counts) != len(layers):
        text = ",".join(map(str, counts))
        raise refusal(run, f"--stages {text} does not share {len(layers)} layers out among {least} stages")
    first, last = units.index(layers[0]), units.index(layers[-1]) + 1
    cut = [layers[sum(counts[:stage]) : sum(counts[: stage + 1])] for stage in range(len(counts))]
    cut[0] = [*units[:first], *cut[0]]
    cut[-1] = [*cut[-1], *units[last:]]
    holders = ranks_of_stages(schedule, ranks, len(counts))
    stages = tuple(Stage(rank=rank, units=tuple(stage_units)) for rank, stage_units in zip(holders, cut, strict=True))
    return Pipeline(schedule=schedule, microbatches=microbatches, stages=stages)


def _counts(run: Run, recorded_pipeline: Pipeline, schedule: str, ranks: int, layers: int) -> tuple[int, ...]:
    """The layers of each stage where nobody says: as recorded, or, in another number of stages, as many in each."""
    number = len(recorded_pipeline.stages)
    if number == PER_RANK[schedule] * ranks or (schedule == recorded_pipeline.schedule == _INTERLEAVED):
        return _layers(recorded_pipeline)
    number = PER_RANK[schedule] * ranks
    if layers % number:
        raise refusal(run, f"{number} stages do not divide {layers} layers", "Say with --stages how many each has")
    return (layers // number,) * number


def _require_microbatches(run: Run, schedule: str, microbatches: int, ranks: int) -> None:
    if schedule == "1f1b" and microbatches < ranks:
        what = f"1f1b takes as many microbatches as stages or more: {microbatches} is less than {ranks}"
        raise refusal(run, what)
    if schedule == _INTERLEAVED and microbatches % max(1, microbatches // ranks):
        what = f"{schedule} takes rounds of {ranks} microbatches, which {microbatches} are not"
        raise refusal(run, what)


def _require(run: Run, manifest: Manifest, setting: Setting) -> None:
    for name, unchanged in asdict(Setting()).items():
        if name not in _TAKES and getattr(setting, name) != unchanged:
            raise refusal(run, f"of a pipeline schedule, microbatches, stages and link are predicted, not {name}")
    if set(manifest.axes.axes) > {"pp", "dp", "tp"} or manifest.axes.axes["tp"] > 1:
        raise refusal(run, f"pipelines on such a mesh are not predicted: {manifest.axes}")
    if setting.schedule is not None and setting.schedule not in PLAYED_SCHEDULES:
        raise refusal(
            run, f"the schedule {setting.schedule} is not predicted", known_names(setting.schedule, PLAYED_SCHEDULES)
        )
    if setting.microbatches is not None and not 0 < setting.microbatches <= _MAX_MICROBATCHES:
        raise refusal(run, f"microbatches must be from 1 to {_MAX_MICROBATCHES}, not {setting.microbatches}")
