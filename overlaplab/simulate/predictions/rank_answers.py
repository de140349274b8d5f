"""What a step would take with another setting, of ranks that launch different collectives: each is played by itself.

Stages of a pipeline, groups of ranks beside each other, a parameter server. Of others see `wide_answers`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, is_on_gpus, once_per_run
from overlaplab.evidence.pipelines import find_plan
from overlaplab.intervals import Intervals, union
from overlaplab.manifest import Pipeline
from overlaplab.simulate.pipelines.shape import PLAYED_SCHEDULES
from overlaplab.simulate.play_errors import play_or_refuse
from overlaplab.simulate.player import Program, Work, find_launches
from overlaplab.simulate.predictions.answer import SettingPrediction, lane_table, lane_word
from overlaplab.simulate.predictions.device import device_manifest
from overlaplab.simulate.programs import all_programs
from overlaplab.simulate.programs.pipelined import require_change
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.uncertainty import transfers_miss_ns


class RankPrediction(SettingPrediction):
    """A setting of a run on CPUs, each rank played by itself."""

    def lanes(self, rank: int, step: int) -> pd.DataFrame:
        program, played = self.programs[1][rank], self.played
        carried = ((lane_word(launch), *played.carried[launch.key]) for launch in find_launches(program))
        works = _working_times(program, played.over_ns[rank])
        return lane_table(works, carried, *played.ends_ns[rank][step : step + 2])


def predict_ranks(run: Run, setting: Setting) -> RankPrediction:
    """Play the run under the setting. Raises `OverlaplabError` where the run cannot tell."""
    run = _with_manifest(run)
    recorded, changed = all_programs(run, Setting()), all_programs(run, setting)
    before, after = play_or_refuse(run, recorded), play_or_refuse(run, changed)
    return RankPrediction(
        run=run,
        manifest=device_manifest(run),
        setting=setting,
        programs=(recorded, changed),
        recorded_ns=before.all_spans_ns(),
        predicted_ns=after.all_spans_ns(),
        transfers_ns=transfers_miss_ns(run, setting.edits, setting.link),
        played=after,
    )


@once_per_run
def playable_plan(run: Run) -> Pipeline | None:
    """The pipeline whose schedule and microbatches can be changed; None without one."""
    if is_on_gpus(run) or (plan := find_plan(run)) is None:
        return None
    return plan if _can_be(run, Setting(schedule=plan.schedule)) else None


def playable_schedules(run: Run, microbatches: int | None = None) -> list[str]:
    """The schedules that the stages of a playable pipeline can have, with as many microbatches (None: as recorded)."""
    return [
        schedule for schedule in PLAYED_SCHEDULES if _can_be(run, Setting(schedule=schedule, microbatches=microbatches))
    ]


def _can_be(run: Run, setting: Setting) -> bool:
    try:
        require_change(_with_manifest(run), setting)
    except OverlaplabError:
        return False
    return True


def _with_manifest(run: Run) -> Run:
    return run if run.manifest else _with_device_manifest(run)


@once_per_run
def _with_device_manifest(run: Run) -> Run:
    """The run with what its traces tell in place of run.json; kept, as its programs are."""
    return replace(run, manifest=device_manifest(run))


def _working_times(program: Program, over_ns: tuple[int, ...]) -> Intervals:
    ends = np.array(over_ns, dtype=np.int64)
    took = np.array([move.ns if isinstance(move, Work) else 0 for move in program], dtype=np.int64)
    return union(ends - took, ends)
