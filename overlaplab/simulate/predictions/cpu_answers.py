"""What a step of a run on CPUs would take with another setting.

Ranks that do the same are played as one, fast enough to answer a slider; those that launch different collectives
(stages of a pipeline, groups beside each other, a parameter server) each by itself. docs/design/plays.md, The page What
if.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from msgspec.structs import replace

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, is_on_gpus, once_per_run
from overlaplab.evidence.pipelines import find_plan
from overlaplab.intervals import Intervals, union
from overlaplab.manifest import Pipeline, strategy_traits
from overlaplab.simulate import undisturbed
from overlaplab.simulate.buckets.search import bucket_search
from overlaplab.simulate.further import draw_ranks
from overlaplab.simulate.pipelines.shape import PLAYED_SCHEDULES
from overlaplab.simulate.play_errors import play_or_refuse, refusal
from overlaplab.simulate.player import End, Program, StuckError, Work, find_launches
from overlaplab.simulate.predictions.answer import (
    Answer,
    Question,
    SettingPrediction,
    lane_table,
    lane_word,
    median_step,
)
from overlaplab.simulate.predictions.device import device_manifest
from overlaplab.simulate.predictions.error import extrapolations
from overlaplab.simulate.programs import all_programs, made_programs
from overlaplab.simulate.programs.edits import move_into_the_next
from overlaplab.simulate.programs.pipelined import require_change
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.times import elsewhere_ns
from overlaplab.simulate.programs.uncertainty import transfers_miss_ns
from overlaplab.simulate.vector_player import (
    WidePlayed,
    WideProgram,
    play_wide,
    retime_collectives,
    widen,
    working_times,
)
from overlaplab.traits import TRAITS

AS_RECORDED = Question(setting=Setting())


@once_per_run
def is_wide(run: Run) -> bool:
    """Whether its ranks can be played as one; of others see `predict_ranks`."""
    try:
        setting_program(run, Setting())
    except OverlaplabError:
        return False
    return True


def wide_answer(run: Run, question: Question) -> Answer:
    """The question, played. Raises `OverlaplabError` where the run cannot tell."""
    program, played = play_question(run, question)
    rank, step, span_ns = median_step(played.spans_ns.T)
    return Answer(
        spans_ns=played.spans_ns.T,
        mean_ns=wide_mean_step_ns(run, played, question.setting),
        replayed_ns=play_question(run, AS_RECORDED)[1].spans_ns.mean(axis=1).tolist(),
        transfers_ns=transfers_miss_ns(run, question.setting.edits, question.setting.link),
        times_as_far=extrapolations(
            device_manifest(run), question.setting, setting_program(run, Setting()).moves, program.moves
        ),
        median_span_ns=span_ns,
        lanes=lanes(program, played, rank, step),
    )


def play_question(run: Run, question: Question) -> tuple[WideProgram, WidePlayed]:
    """The run with another setting and further ranks (`draw_ranks`). Raises `OverlaplabError` where it cannot tell."""
    return _play_recorded(run) if question == AS_RECORDED else _play(run, question)


@once_per_run
def _play_recorded(run: Run) -> tuple[WideProgram, WidePlayed]:
    """The run as it was recorded, with which each answer is compared."""
    return _play(run, AS_RECORDED)


def _play(run: Run, question: Question) -> tuple[WideProgram, WidePlayed]:
    setting, algorithm = question.setting, question.algorithm
    ranks = setting.ranks or len(run.traces)
    program_ranks = _program_ranks(run, setting)
    recorded = run.manifest.link if run.manifest else None
    program = setting_program(
        run, replace(setting, link=setting.link if recorded is None else None, ranks=program_ranks)
    )
    link = setting.link or recorded
    if link is not None:
        before = recorded and replace(recorded, world_size=program_ranks or len(run.traces))
        after = replace(link, world_size=ranks)
        if after != before or algorithm != "ring":
            program = retime_collectives(program, lambda launch: elsewhere_ns(launch, before, after, algorithm))
    elif setting.ranks is not None:
        raise refusal(run, "without a link no other number of ranks can be played", "Choose one")
    if ranks != program.ranks:
        program = draw_ranks(program, ranks, skew=question.skew)
    return program, play_wide(program)


def _program_ranks(run: Run, setting: Setting) -> int | None:
    """Among how many ranks programs are made: as recorded, but where ranks own parts, whose sizes depend on it."""
    traits = TRAITS.get(setting.strategy) if setting.strategy else strategy_traits(run.manifest)
    return setting.ranks if traits is not None and traits.sharded else None


def wide_mean_step_ns(run: Run, played: WidePlayed, setting: Setting) -> int:
    """The mean of all ranks' steps that nothing disturbed, as `predict` tells it."""
    into_the_next = move_into_the_next(setting.edits)
    return round(undisturbed.mean_step_after_ns(run, played.spans_ns.T, into_the_next=into_the_next))


def best_found_ns(run: Run, question: Question) -> int | None:
    """The mean step with the best buckets found; None without any, as on GPUs, or where more than caps, link and ranks
    change.
    """
    setting = question.setting
    changeable = ("bucket_cap_mb", "first_bucket_mb", "link", "ranks")
    recorded = run.manifest.link if run.manifest else None
    others = replace(setting, **{name: getattr(Setting(), name) for name in changeable})
    if others != Setting() or question.algorithm != "ring":
        return None
    link = setting.link or recorded
    search = bucket_search(run, link and replace(link, world_size=setting.ranks or link.world_size))
    if search is None or search.best_found is None:
        return None
    program = widen(search.cut.programs(search.best_found.buckets))
    if setting.ranks is not None and setting.ranks != program.ranks:
        program = draw_ranks(program, setting.ranks, skew=question.skew)
    return wide_mean_step_ns(run, play_wide(program), setting)


def count_buckets(program: WideProgram) -> int:
    """How many buckets a step sends."""
    ends = sum(isinstance(move, End) for move in program.moves)
    return len(find_launches(program.moves, "bucket")) // max(ends - 1, 1)


def lanes(program: WideProgram, played: WidePlayed, rank: int, step: int) -> pd.DataFrame:
    """What one rank and the link did in a step: see `lane_table`."""
    begin, end = played.ends_ns[step : step + 2, rank].tolist()
    names = [lane_word(launch) for launch in find_launches(program.moves)]
    carried = ((name, *span) for name, span in zip(names, played.carried_ns.tolist(), strict=True))
    return lane_table(working_times(program, played, rank), carried, begin, end)


@once_per_run
def setting_program(run: Run, setting: Setting) -> WideProgram:
    """The recorded ranks' programs under the setting. Raises `OverlaplabError` where the run cannot tell."""
    try:
        return widen(made_programs(run, setting))
    except StuckError as error:
        raise refusal(run, str(error)) from None


class RankPrediction(SettingPrediction, frozen=True, kw_only=True):
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
    return plan if _can_change(run, Setting(schedule=plan.schedule)) else None


def playable_schedules(run: Run, microbatches: int | None = None) -> list[str]:
    """The schedules that the stages of a playable pipeline can have, with as many microbatches (None: as recorded)."""
    return [
        schedule
        for schedule in PLAYED_SCHEDULES
        if _can_change(run, Setting(schedule=schedule, microbatches=microbatches))
    ]


def _can_change(run: Run, setting: Setting) -> bool:
    try:
        require_change(_with_manifest(run), setting)
    except OverlaplabError:
        return False
    return True


def _with_manifest(run: Run) -> Run:
    return run if run.manifest else _with_manifest_of_traces(run)


@once_per_run
def _with_manifest_of_traces(run: Run) -> Run:
    """The run with what its traces tell in place of run.json; kept, as its programs are."""
    return replace(run, manifest=device_manifest(run))


def _working_times(program: Program, over_ns: tuple[int, ...]) -> Intervals:
    ends = np.array(over_ns, dtype=np.int64)
    took = np.array([move.ns if isinstance(move, Work) else 0 for move in program], dtype=np.int64)
    return union(ends - took, ends)
