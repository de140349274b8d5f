"""What a step would take with another setting, fast enough to answer a slider.

A setting's programs are made once and kept. Another link, and more ranks, then only change how long collectives take,
and who does what was recorded; the wide player plays all ranks at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.costs import Algorithm
from overlaplab.costs.memory import formula
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, once_per_run, rule_of, step_windows
from overlaplab.intervals import clip, intersect, subtract, union
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.simulate import undisturbed
from overlaplab.simulate.buckets.search import bucket_search
from overlaplab.simulate.further import Skew, draw_ranks
from overlaplab.simulate.player import End, Launch, StuckError
from overlaplab.simulate.predictions.device import device_manifest, require_device
from overlaplab.simulate.predictions.error import Interval, extrapolations, mean_steps, prediction_interval
from overlaplab.simulate.programs import made_programs
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.programs.times import elsewhere_ns
from overlaplab.simulate.wide import Times, WidePlayed, WideProgram, play_wide, retime_collectives, widen, working_times
from overlaplab.traits import TRAITS
from overlaplab.vocabulary import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    """A step of a rank, by their places, and how long it took."""

    rank: int
    step: int
    span_ns: int


def why_not(run: Run) -> str | None:
    """Why nothing can be said of other settings of this run; None where something can."""
    try:
        if any(rule_of(trace) is Rule.GPU for trace in run.traces):
            require_device(run)  # actions can be played, whatever else
            return None
        if run.manifest is not None and run.manifest.phantom_ranks:
            return "its other ranks are phantoms"
        _program(run, Setting())
    except OverlaplabError as error:
        return message_without_path(run, error)
    return None


def message_without_path(run: Run, error: OverlaplabError) -> str:
    """What an error says, without the run's path."""
    return str(error).removeprefix(f"{run.path}: ")


def play_setting(
    run: Run, setting: Setting, *, algorithm: Algorithm = "ring", skew: Skew = "recorded", seed: int = 0
) -> tuple[WideProgram, WidePlayed]:
    """The run with another setting; ranks that were not recorded do what `draw_ranks` says.

    Of a collective's T what it took beyond the recorded link's model is kept. Raises `OverlaplabError` where the run
    cannot tell.
    """
    ranks = setting.ranks or len(run.traces)
    program_ranks = _program_ranks(run, setting)
    program = _program(run, replace(setting, link=None, ranks=program_ranks))
    link = run.manifest.link if run.manifest else None
    if link is not None:
        recorded_ranks = program_ranks or len(run.traces)
        before, after = (
            replace(link, world_size=n) for link, n in ((link, recorded_ranks), (setting.link or link, ranks))
        )
        if after != before or algorithm != "ring":
            program = retime_collectives(program, lambda launch: elsewhere_ns(launch, before, after, algorithm))
    elif setting.link is not None or setting.ranks is not None:
        raise OverlaplabError("without a link no other link or number of ranks can be played", path=run.path)
    if ranks != program.ranks:
        program = draw_ranks(program, ranks, skew=skew, seed=seed)
    return program, play_wide(program)


def _program_ranks(run: Run, setting: Setting) -> int | None:
    """Among how many ranks programs are made: as recorded, but where ranks own parts, whose sizes depend on it."""
    traits = TRAITS.get(setting.strategy) if setting.strategy else strategy_traits(run.manifest)
    return setting.ranks if traits is not None and traits.sharded else None


def setting_extrapolations(run: Run, setting: Setting, program: WideProgram) -> dict[str, float]:
    """What is extrapolated of a setting that was played as this program: see `error.extrapolations`."""
    return extrapolations(device_manifest(run), setting, _program(run, Setting()).moves, program.moves)


def interval(
    run: Run, step_ns: int, caps: pd.DataFrame, beyond: Mapping[str, float] = MappingProxyType({})
) -> Interval:
    """The interval of a mean step predicted from this run.

    `caps` has rows of `recorded_caps`, `beyond` is what `setting_extrapolations` says.
    """
    return prediction_interval(
        run, step_ns, mean_steps(play_setting(run, Setting())[1].spans_ns.T.tolist()), caps, beyond
    )


def mean_step_ns(run: Run, result: WidePlayed) -> int:
    """The mean of all ranks' steps that nothing disturbed, as `predict` tells it."""
    return round(undisturbed.mean_step_ns(run, result.spans_ns.T))


def typical_step(result: WidePlayed) -> StepPlace:
    """The median of all ranks' steps, the lower of two."""
    return _median_step(result.spans_ns)


def measured_step(run: Run) -> StepPlace:
    """The median of all ranks' recorded steps, the lower of two."""
    windows = [step_windows(trace) for trace in run.traces]
    spans = [[window.end_ns - window.start_ns for window in step] for step in zip(*windows, strict=True)]
    return _median_step(np.array(spans, dtype=np.int64))


def _median_step(spans_ns: Times) -> StepPlace:
    place = int(np.argsort(spans_ns, axis=None, kind="stable")[(spans_ns.size - 1) // 2])
    step, rank = divmod(place, spans_ns.shape[1])
    return StepPlace(rank=rank, step=step, span_ns=int(spans_ns[step, rank]))


def steps_by_cap(run: Run, setting: Setting, caps: Sequence[float], **how: Any) -> pd.DataFrame:
    """The setting with each of these caps, in MiB; `how` is what `play_setting` takes.

    Columns: `bucket_cap_mb` (float64), `step_ns` (the mean of all ranks' steps), `buckets` (how many; both int64).
    """
    rows = []
    for cap in caps:
        program, result = play_setting(run, replace(setting, bucket_cap_mb=cap), **how)
        rows.append((cap, mean_step_ns(run, result), _buckets(program)))
    return pd.DataFrame(rows, columns=["bucket_cap_mb", "step_ns", "buckets"]).astype({"bucket_cap_mb": "float64"})


def best_found_ns(
    run: Run, setting: Setting, *, algorithm: Algorithm = "ring", skew: Skew = "recorded", seed: int = 0
) -> int | None:
    """The mean step with the best buckets found behind the setting's link and ranks; the rest is as of `play_setting`.

    None where none are found (`bucket_search`), and for settings that change more than caps, the link and the ranks.
    """
    changeable = ("bucket_cap_mb", "first_bucket_mb", "link", "ranks")
    recorded = run.manifest.link if run.manifest else None
    if replace(setting, **{name: getattr(Setting(), name) for name in changeable}) != Setting() or algorithm != "ring":
        return None
    link = setting.link or recorded
    search = bucket_search(run, link and replace(link, world_size=setting.ranks or link.world_size))
    if search is None or search.best_found is None:
        return None
    program = widen(search.cut.programs(search.best_found.buckets))
    if setting.ranks is not None and setting.ranks != program.ranks:
        program = draw_ranks(program, setting.ranks, skew=skew, seed=seed)
    return mean_step_ns(run, play_wide(program))


def _buckets(program: WideProgram) -> int:
    """How many a step has."""
    ends = sum(isinstance(move, End) for move in program.moves)
    return sum(isinstance(move, Launch) and move.role == "bucket" for move in program.moves) // max(ends - 1, 1)


def steps_by_ranks(run: Run, setting: Setting, counts: Sequence[int], **how: Any) -> pd.DataFrame:
    """The setting with each of these numbers of ranks; `how` is what `play_setting` takes.

    Columns: `ranks`, `step_ns` (the mean of all ranks' steps; both int64), `throughput` (float64: a rank's, as a share
    of that with the fewest ranks), `held_bytes` (Int64: see `held_bytes`).
    """
    rows = [(count, mean_step_ns(run, play_setting(run, replace(setting, ranks=count), **how)[1])) for count in counts]
    table = pd.DataFrame(rows, columns=["ranks", "step_ns"])
    table["throughput"] = table["step_ns"].iloc[0] / table["step_ns"] if len(table) else pd.Series(dtype="float64")
    held = [held_bytes(run.manifest, setting.strategy, count) for count in counts]
    return table.assign(held_bytes=pd.array(held, dtype="Int64"))


def held_bytes(manifest: Manifest | None, strategy: str | None, ranks: int) -> int | None:
    """What each rank holds of parameters, gradients and optimizer states by ZeRO's formulas; None where unknown."""
    if manifest is None:
        return None
    traits = TRAITS.get(strategy) if strategy else strategy_traits(manifest)
    parts = ("parameters", "gradients", "optimizer")
    sizes = [formula(replace(manifest, world_size=ranks, mesh=None), traits, part)[0] for part in parts]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def lanes(program: WideProgram, result: WidePlayed, at: StepPlace) -> pd.DataFrame:
    """What one rank and the link did in a step: rows of stretches, in ns from the step's start.

    Columns: `lane` (`rank`: it works; `link`: a collective is on it), `what` (the bucket, unit or kind), `exposed`
    (bool: the rank does not work meanwhile), `start_ns`, `end_ns` (int64).
    """
    begin, end = (int(result.ends_ns[place, at.rank]) for place in (at.step, at.step + 1))
    works = clip(working_times(program, result, at.rank), begin, end)
    rows = [("rank", "", False, *stretch) for stretch in works.tolist()]
    launches = [move for move in program.moves if isinstance(move, Launch)]
    for launch, (start, stop) in zip(launches, result.carried_ns.tolist(), strict=True):
        carried = clip(union([start], [stop]), begin, end)
        if not len(carried):
            continue  # another step's
        for exposed, stretches in ((False, intersect(carried, works)), (True, subtract(carried, works))):
            what = launch.what if launch.what is not None else launch.kind
            rows += [("link", f"{launch.role} {what}".strip(), exposed, *stretch) for stretch in stretches.tolist()]
    table = pd.DataFrame(rows, columns=["lane", "what", "exposed", "start_ns", "end_ns"])
    table[["start_ns", "end_ns"]] -= begin
    return table.astype({"exposed": "bool", "start_ns": "int64", "end_ns": "int64"})


@once_per_run
def _programs_by_setting(run: Run) -> dict[Setting, WideProgram]:
    """The programs of settings that were asked for."""
    return {}


def _program(run: Run, setting: Setting) -> WideProgram:
    programs = _programs_by_setting(run)
    if setting not in programs:
        try:
            programs[setting] = widen(made_programs(run, setting))
        except StuckError as error:
            raise OverlaplabError(str(error), path=run.path) from None
    return programs[setting]
