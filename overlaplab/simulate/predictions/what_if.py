"""What a step would take with another setting, of any run that can be played: the tables of the page What if, and the
mean step of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab.costs.batch import Batch
from overlaplab.costs.memory import formula
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, is_on_gpus
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.predictions import cpu_answers
from overlaplab.simulate.predictions.answer import Answer, Question, interval, median_step
from overlaplab.simulate.predictions.device import device_manifest, require_device
from overlaplab.simulate.predictions.device_answers import device_answer
from overlaplab.simulate.predictions.error import Interval
from overlaplab.simulate.predictions.predict import caps_beside
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import recorded_spans_ns
from overlaplab.traits import TRAITS

_MAX_RANKS = 100_000
"""More do not fit into memory at once."""


def why_not(run: Run) -> str | None:
    """Why nothing can be said of other settings of this run; None where something can."""
    try:
        if is_on_gpus(run):
            require_device(run)  # edits can be played, whatever else
            return None
        if run.manifest is not None and run.manifest.phantom_ranks:
            return "its other ranks are phantoms"
        if not cpu_answers.is_wide(run):
            cpu_answers.predict_ranks(run, Setting())
    except OverlaplabError as error:
        return message_without_path(run, error)
    return None


def message_without_path(run: Run, error: OverlaplabError) -> str:
    """What an error says, without the run's path."""
    return str(error).removeprefix(f"{run.path}: ")


def answer(run: Run, question: Question) -> Answer:
    """The question, played. Raises `OverlaplabError` where the run cannot tell."""
    if is_on_gpus(run):
        return device_answer(run, question.setting)
    if cpu_answers.is_wide(run):
        return cpu_answers.wide_answer(run, question)
    return cpu_answers.predict_ranks(run, question.setting).answer()


def measured_span_ns(run: Run) -> int:
    """The median of all ranks' recorded steps, the lower of two."""
    return median_step(recorded_spans_ns(run))[2]


def _steps_by(
    name: Literal["bucket_cap_mb", "prefetch", "ranks"], run: Run, question: Question, values: Sequence[float]
) -> pd.DataFrame:
    """The setting with each of these values of an option: caps in MiB, prefetch depths, or numbers of ranks.

    Columns: the option's (of caps float64), `step_ns` (the mean step of all ranks), and of caps on CPUs `buckets` (how
    many; all int64).
    """
    columns = [name, "step_ns", *(["buckets"] if name == "bucket_cap_mb" and not is_on_gpus(run) else [])]
    rows = []
    for value in values:
        options: dict[str, Any] = {name: value}
        changed = replace(question, setting=replace(question.setting, **options))
        if is_on_gpus(run):
            rows.append([value, answer(run, changed).step_ns])
        else:
            program, played = cpu_answers.play_question(run, changed)
            step_ns = cpu_answers.wide_mean_step_ns(run, played, changed.setting)
            rows.append([value, step_ns, cpu_answers.count_buckets(program)][: len(columns)])
    return pd.DataFrame(rows, columns=columns).astype({name: "float64" if name == "bucket_cap_mb" else "int64"})


steps_by_cap, steps_by_depth = partial(_steps_by, "bucket_cap_mb"), partial(_steps_by, "prefetch")


def steps_by_ranks(run: Run, question: Question, counts: Sequence[int]) -> pd.DataFrame:
    """`_steps_by` of numbers of ranks, with two more columns.

    These are `throughput` (float64: a rank's, as a share of that with the fewest ranks) and `held_bytes` (Int64).
    """
    table = _steps_by("ranks", run, question, counts)
    table["throughput"] = table["step_ns"].iloc[0] / table["step_ns"] if len(table) else pd.Series(dtype="float64")
    held = [held_bytes(run.manifest, question.setting.strategy, count) for count in counts]
    return table.assign(held_bytes=pd.array(held, dtype="Int64"))


def held_bytes(manifest: Manifest | None, strategy: str | None, ranks: int) -> int | None:
    """What each rank holds of parameters, gradients and optimizer states by ZeRO's formulas; None where unknown."""
    if manifest is None:
        return None
    traits = TRAITS.get(strategy) if strategy else strategy_traits(manifest)
    parts = ("parameters", "gradients", "optimizer")
    sizes = [formula(replace(manifest, world_size=ranks, mesh=None), traits, part)[0] for part in parts]
    return None if None in sizes else sum(size for size in sizes if size is not None)


class PlannedStep(Struct, frozen=True, kw_only=True):
    run: Run
    """The recording."""
    step_ns: int
    """The mean over all ranks' steps that nothing disturbed."""
    interval: Interval
    times_as_far: dict[str, float]
    """See `error.extrapolations`."""


def planned_step(run: Run, batch: Batch, recorded: pd.DataFrame | None = None) -> PlannedStep:
    """The step on the batch's ranks with its accumulation. Raises `OverlaplabError` where the run cannot tell.

    `recorded`: rows of `recorded_caps`; those of the recordings beside the run where not given.
    """
    if batch.ranks > _MAX_RANKS:
        raise refusal(run, f"no more than {_MAX_RANKS:,} ranks are predicted")
    recorded_accumulate = (run.manifest.accumulate if run.manifest else None) or 1
    setting = Setting(
        ranks=None if batch.ranks == device_manifest(run).world_size else batch.ranks,
        accumulate=None if batch.accumulate == recorded_accumulate else batch.accumulate,
    )
    played = answer(run, Question(setting=setting))
    return PlannedStep(
        run=run,
        step_ns=played.step_ns,
        interval=interval(run, played, caps_beside(run) if recorded is None else recorded),
        times_as_far=played.times_as_far,
    )
