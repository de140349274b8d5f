"""The page What if: what a run's step would take with another setting, beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import pandas as pd

from overlaplab import charts, findings, simulate
from overlaplab.costs import Algorithm
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, missing_ranks
from overlaplab.formats import as_held
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.sections.blocks import Chart
from overlaplab.simulate.assign import CAP_MB, MIB
from overlaplab.simulate.further import Skew
from overlaplab.simulate.predictions import device_what_if, what_if
from overlaplab.simulate.predictions.device import device_manifest
from overlaplab.simulate.predictions.error import Interval, gain_half_ns
from overlaplab.simulate.programs.buckets import find_recutting
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import mean_step_ns, recorded_spans_ns
from overlaplab.simulate.wide import WidePlayed, WideProgram
from overlaplab.traits import TRAITS

_RANKS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a reader wants to know of a run."""

    setting: Setting
    algorithm: Algorithm = "ring"
    skew: Skew = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the page consists of."""

    headline: str
    notes: Sequence[str]
    over: Sequence[Chart]
    """The step over the cap, where there are buckets, and over the ranks."""
    lanes: Chart
    growing: Sequence[Chart]
    """What becomes of throughput and memory as there are more ranks."""
    advice: str


def caps_tried(run: Run) -> list[float]:
    """Caps in MiB: the least that can be played, doubled until one makes a single bucket, and the recorded one.

    Where all recorded buckets are of one size only those whose T is known.
    """
    manifest, cut = run.manifest, find_recutting(run)
    parameters = manifest.parameters if manifest else ()
    sizes = [each.bytes for each in parameters] or (cut and cut.sizes.values()) or [device_what_if.whole_bytes(run)]
    whole = sum(sizes) / MIB
    caps = [device_what_if.least_cap_mb(run)]
    while caps[-1] < min(whole, max(caps[0], 64)):
        caps.append(caps[-1] * 2)
    if cut is not None and cut.measured is not None and len({*cut.measured}) == 1:  # of one size: see `Recutting.knows`
        caps = [cap for cap in caps if cut.knows(cut.cut(int(cap * MIB)))]
    recorded_cap = manifest.bucket_cap_mb if manifest else None
    return sorted({*caps, *([recorded_cap] if recorded_cap else [])})


def what_if_parts(run: Run, question: Asked, recorded: pd.DataFrame, note: str | None) -> Parts:
    """`recorded`: rows of `recorded_caps` of this run and of others that differ from it in the cap alone.

    Raises `OverlaplabError` where the run cannot tell of the setting; of others, notes say so.
    """
    answer = _answer(run, question, recorded)
    advised_mb = advised_cap_mb(run, question.setting)
    caps, no_caps = _table_or_reason(run, partial(_caps_table, run, question, advised_mb))
    ranks, no_ranks = _table_or_reason(run, partial(_ranks_table, run, question, answer.program.ranks))
    doubt_ns = gain_half_ns(answer.measured_ns, answer.sure)
    all_ranks = not missing_ranks(run)
    algorithm = question.algorithm if answer.manifest.link and all_ranks else None
    notes = findings.what_if_notes(answer.sure, doubt_ns, answer.far, algorithm, all_ranks=all_ranks)
    hops = findings.hops_unknown(answer.manifest, question.setting.strategy)
    return Parts(
        headline=findings.what_if_headline(
            question.setting, answer.step_ns, answer.measured_ns, answer.sure.half_ns, doubt_ns
        ),
        notes=[*notes, *dict.fromkeys(filter(None, (hops, no_caps, no_ranks)))],
        over=[*_over_caps(answer, question, caps, recorded, note, advised_mb), *_over_ranks(answer, ranks, note)],
        lanes=_lanes(answer, note),
        growing=[*_growth_charts(answer, ranks, note)],
        advice=findings.what_if_advice(
            caps,
            answer.step_ns if answer.changes_but("bucket_cap_mb") else answer.measured_ns,
            doubt_ns,
            advised_mb,
            others=findings.setting_words(replace(question.setting, bucket_cap_mb=None)),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The setting that was asked for, played."""

    run: Run
    manifest: Manifest
    setting: Setting
    program: WideProgram
    played: WidePlayed
    measured_ns: int
    """The mean step, as recorded."""
    step_ns: int
    far: dict[str, float]
    """What is extrapolated."""
    sure: Interval
    """Around `step_ns`."""

    def changes_but(self, part: Literal["bucket_cap_mb", "ranks"]) -> bool:
        """Whether anything is changed beside this part of the setting."""
        return replace(self.setting, **{part: getattr(Setting(), part)}) != Setting()


def _answer(run: Run, question: Asked, recorded: pd.DataFrame) -> _Answer:
    program, played = what_if.play_setting(run, question.setting, algorithm=question.algorithm, skew=question.skew)
    step_ns, far = what_if.mean_step_ns(run, played), what_if.setting_extrapolations(run, question.setting, program)
    return _Answer(
        run=run,
        manifest=device_manifest(run),
        setting=question.setting,
        program=program,
        played=played,
        measured_ns=round(mean_step_ns(run, recorded_spans_ns(run))),
        step_ns=step_ns,
        far=far,
        sure=what_if.interval(run, step_ns, recorded, far),
    )


def advised_cap_mb(run: Run, setting: Setting) -> float | None:
    """The cap that `advise` finds best; None where more than the cap is asked for, or nothing can be advised."""
    if replace(setting, bucket_cap_mb=None) != Setting() or findings.advice_refused(run) is not None:
        return None
    return simulate.best_cap_mb(run)


def _over_caps(
    answer: _Answer,
    question: Asked,
    caps: pd.DataFrame,
    recorded: pd.DataFrame,
    note: str | None,
    advised_mb: float | None,
) -> Iterator[Chart]:
    if len(caps):
        cap = answer.setting.bucket_cap_mb or answer.manifest.bucket_cap_mb
        if cap is None and answer.manifest.strategy is not None:
            cap = CAP_MB
        measured_ns = answer.measured_ns if cap is None else None
        seen = recorded.head(0) if answer.changes_but("bucket_cap_mb") else recorded.dropna()
        found_ns = what_if.best_found_ns(answer.run, question.setting, algorithm=question.algorithm, skew=question.skew)
        if found_ns is not None:
            found_ns = min(found_ns, int(caps["step_ns"].min()))
        draw = partial(
            charts.caps_predicted,
            caps,
            seen,
            cap,
            answer.sure.half_ns,
            advised_mb,
            measured_ns=measured_ns,
            found_ns=found_ns,
        )
        yield Chart(key="caps_predicted", draw=draw, note=note, table=as_held(caps, "by_cap"))


def _over_ranks(answer: _Answer, ranks: pd.DataFrame, note: str | None) -> Iterator[Chart]:
    if len(ranks):
        draw = partial(
            charts.ranks_predicted,
            ranks,
            recorded=answer.manifest.world_size,
            measured_ns=None if answer.changes_but("ranks") else answer.measured_ns,
            chosen=answer.program.ranks,
            half=answer.sure.half_ns / answer.step_ns,
        )
        yield Chart(key="ranks_predicted", draw=draw, note=note, table=as_held(ranks, "by_ranks"))


def _growth_charts(answer: _Answer, ranks: pd.DataFrame, note: str | None) -> Iterator[Chart]:
    chosen = answer.program.ranks
    if len(ranks):
        draw = partial(charts.throughput_predicted, ranks, recorded=answer.manifest.world_size, chosen=chosen)
        yield Chart(key="throughput_predicted", draw=draw, note=note, table=as_held(ranks, "by_ranks"))
    if "held_bytes" in ranks and ranks["held_bytes"].notna().any():
        draw = partial(charts.held_predicted, ranks, chosen=chosen)
        yield Chart(key="held_predicted", draw=draw, note=None, table=as_held(ranks, "by_ranks"))


def _lanes(answer: _Answer, note: str | None) -> Chart:
    measured, step = what_if.measured_step(answer.run), what_if.typical_step(answer.played)
    before = what_if.lanes(*what_if.play_setting(answer.run, Setting()), measured)
    after = what_if.lanes(answer.program, answer.played, step)
    both = pd.concat([before.assign(which="measured"), after.assign(which="predicted")])
    draw = partial(charts.step_lanes, before, after, (measured.span_ns, step.span_ns))
    return Chart(key="step_lanes", draw=draw, note=note, table=as_held(both, "lanes"))


def _table_or_reason(run: Run, table: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame, str | None]:
    """The table, or an empty one and why the run cannot tell."""
    try:
        return table(), None
    except OverlaplabError as error:
        return pd.DataFrame(), findings.not_told(what_if.message_without_path(run, error))


def _caps_table(run: Run, question: Asked, advised_mb: float | None) -> pd.DataFrame:
    """The setting with other caps; empty where its strategy sends no buckets."""
    strategy = question.setting.strategy
    traits = TRAITS.get(strategy) if strategy else strategy_traits(run.manifest)
    is_recut = traits.buckets if traits is not None else find_recutting(run) is not None
    caps = sorted({*caps_tried(run), *([advised_mb] if advised_mb is not None else [])}) if is_recut else []
    return what_if.steps_by_cap(run, question.setting, caps, algorithm=question.algorithm, skew=question.skew)


def _ranks_table(run: Run, question: Asked, chosen: int) -> pd.DataFrame:
    counts = sorted({*_RANKS, len(run.traces), chosen})
    return what_if.steps_by_ranks(run, question.setting, counts, algorithm=question.algorithm, skew=question.skew)
