"""The page What if: what a run's step would take with another setting, beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab import charts, findings, simulate
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, is_on_gpus, missing_ranks
from overlaplab.formats import as_held
from overlaplab.manifest import Manifest, strategy_traits
from overlaplab.sections.blocks import Chart
from overlaplab.simulate.fill_buckets import CAP_MB, MIB
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.answer import DEPTHS, Answer, Question, interval
from overlaplab.simulate.predictions.cpu_answers import best_found_ns, is_wide
from overlaplab.simulate.predictions.device import device_manifest
from overlaplab.simulate.predictions.device_answers import (
    Option,
    device_least_ns,
    least_cap_mb,
    option_or_why,
    whole_bytes,
)
from overlaplab.simulate.predictions.error import Interval, gain_half_ns
from overlaplab.simulate.programs.buckets import find_recutting
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.undisturbed import mean_step_ns, recorded_spans_ns
from overlaplab.traits import TRAITS

_RANKS = (2, 4, 8, 16, 32, 64, 128)
_Part: TypeAlias = Literal["bucket_cap_mb", "prefetch", "ranks"]
"""The parts of a setting over which charts are drawn."""


class Parts(Struct, frozen=True, kw_only=True):
    """What the page consists of."""

    headline: str
    notes: Sequence[str]
    option_charts: Sequence[Chart]
    """The step over the cap or the prefetch depth, and over the ranks."""
    lanes: Chart
    growth_charts: Sequence[Chart]
    """What becomes of throughput and memory as there are more ranks."""
    advice: str


def caps_tried(run: Run) -> list[float]:
    """Caps in MiB: the least that can be played, doubled until one makes a single bucket, and the recorded one.

    Where all recorded buckets are of one size, only caps whose buckets' T is known.
    """
    manifest, cut = run.manifest, find_recutting(run)
    parameters = manifest.parameters if manifest else ()
    sizes = [each.bytes for each in parameters] or (cut and cut.sizes.values()) or [whole_bytes(run)]
    whole = sum(sizes) / MIB
    caps = [least_cap_mb(run)]
    while caps[-1] < min(whole, max(caps[0], 64)):
        caps.append(caps[-1] * 2)
    if cut is not None and cut.measured is not None and len({*cut.measured}) == 1:  # of one size: see `Recutting.knows`
        caps = [cap for cap in caps if cut.knows(cut.cut(int(cap * MIB)))]
    recorded_cap = manifest.bucket_cap_mb if manifest else None
    return sorted({*caps, *([recorded_cap] if recorded_cap else [])})


def what_if_parts(run: Run, question: Question, recorded: pd.DataFrame, note: str | None) -> Parts:
    """The page's parts for this question.

    `recorded`: rows of `recorded_caps` of this run and of others that differ from it in the cap alone.

    Raises `OverlaplabError` where the run cannot tell of the setting; of others, notes say so.
    """
    answer = what_if.answer(run, question)
    played = _ShownAnswer(
        run=run,
        question=question,
        manifest=device_manifest(run),
        answer=answer,
        interval=interval(run, answer, recorded),
        measured_ns=round(mean_step_ns(run, recorded_spans_ns(run))),
        note=note,
    )
    advised_mb = advised_cap_mb(run, question.setting)
    tried, no_tried = _table_or_reason(run, partial(_option_table, played, _option(run, question.setting), advised_mb))
    ranks, no_ranks = _table_or_reason(run, partial(_ranks_table, played))
    all_ranks, alike = not missing_ranks(run), is_on_gpus(run) or is_wide(run)
    is_modelled = alike and all_ranks and played.manifest.link and not is_on_gpus(run)
    notes = findings.what_if_notes(
        played.interval,
        played.doubt_ns,
        answer.times_as_far,
        question.algorithm if is_modelled else None,
        all_ranks=all_ranks,
        alike=alike,
    )
    hops = findings.hops_unknown(played.manifest, question.setting.strategy)
    smaller = findings.SMALLER_MICROBATCHES if _are_smaller_played(run, question.setting) else None
    return Parts(
        headline=findings.what_if_headline(
            question.setting,
            answer.step_ns,
            played.measured_ns,
            played.interval.half_ns,
            played.doubt_ns,
            findings.microbatches_of(run),
            question.algorithm,
        ),
        notes=[*notes, *dict.fromkeys(filter(None, (smaller, hops, no_tried, no_ranks)))],
        option_charts=[*_over_option(played, tried, recorded, advised_mb), *_over_ranks(played, ranks)],
        lanes=_lanes(played),
        growth_charts=[*_growth_charts(played, ranks)],
        advice=_advice(played, tried, advised_mb),
    )


def _are_smaller_played(run: Run, setting: Setting) -> bool:
    """Whether more microbatches are asked for of a pipeline, for which `pipeline_remedies` plays smaller ones."""
    more = (setting.microbatches or 0) > findings.microbatches_of(run)
    return more and "microbatches" in set(simulate.pipeline_remedies(run)["remedy"])


class _ShownAnswer(Struct, frozen=True, kw_only=True):
    """The answer to the question, with what its charts need."""

    run: Run
    question: Question
    manifest: Manifest
    answer: Answer
    interval: Interval
    """Around the answer's mean step."""
    measured_ns: int
    """The mean step, as recorded."""
    note: str | None
    """The run's note for its charts."""

    @property
    def doubt_ns(self) -> int:
        """What a gain must exceed."""
        return gain_half_ns(self.measured_ns, self.answer.mean_ns, self.interval)

    @property
    def ranks(self) -> int:
        """How many ranks were played."""
        return self.question.setting.ranks or len(self.run.traces)

    @property
    def depth(self) -> int | None:
        """Units gathered ahead: those asked for, or else those recorded."""
        asked_depth, recorded_depth = self.question.setting.prefetch, self.manifest.prefetch
        return recorded_depth if asked_depth is None else asked_depth

    def changes_but(self, part: _Part) -> bool:
        """Whether anything is changed beside this part of the setting."""
        return self.question.algorithm != "ring" or _setting_without(self.question.setting, part) != Setting()


def _setting_without(setting: Setting, part: _Part) -> Setting:
    """The setting with this part as recorded."""
    return replace(setting, **{part: getattr(Setting(), part)})


def _option(run: Run, setting: Setting) -> Option | None:
    """Find the option that is played with other values; None where the strategy has none, or none is known."""
    if is_on_gpus(run):
        option = option_or_why(run)
        return None if isinstance(option, OverlaplabError) else option
    if not is_wide(run):
        return None
    traits = TRAITS.get(setting.strategy) if setting.strategy else strategy_traits(run.manifest)
    if traits is not None and traits.gathers == "units" and traits.is_played:
        return "prefetch"
    is_recut = traits.buckets if traits is not None else find_recutting(run) is not None
    return "bucket_cap_mb" if is_recut else None


def _advice(played: _ShownAnswer, tried: pd.DataFrame, advised_mb: float | None) -> str:
    """What to do about the option's values; gains are over the setting shown, if it changes more, else as measured."""
    option: Option = "prefetch" if "prefetch" in tried else "bucket_cap_mb"
    baseline_ns = played.answer.step_ns if played.changes_but(option) else played.measured_ns
    manifest = played.run.manifest
    by_engine = manifest is not None and not manifest.by_recorder
    others = findings.question_words(_setting_without(played.question.setting, option), played.question.algorithm)
    recorded = None if manifest is None or played.changes_but(option) else getattr(manifest, option)
    words: dict[str, Any] = {"recorded": recorded, "by_engine": by_engine, "others": others}
    if option == "prefetch":
        return findings.depths_advice(tried, baseline_ns, played.doubt_ns, **words)
    return findings.what_if_advice(tried, baseline_ns, played.doubt_ns, advised_mb, **words)


def advised_cap_mb(run: Run, setting: Setting) -> float | None:
    """The cap that `advise` finds best; None where more than the cap is asked for, or nothing can be advised."""
    if _setting_without(setting, "bucket_cap_mb") != Setting() or findings.advice_refused(run) is not None:
        return None
    return simulate.best_cap_mb(run)


def _over_option(
    played: _ShownAnswer, tried: pd.DataFrame, recorded: pd.DataFrame, advised_mb: float | None
) -> list[Chart]:
    """The step with each of the option's values, which are caps or depths."""
    if tried.empty:
        return []
    if "prefetch" in tried:
        draw = partial(
            charts.depths_predicted,
            tried,
            chosen=played.depth,
            measured_ns=None if played.changes_but("prefetch") or played.depth is not None else played.measured_ns,
            half_ns=played.interval.half_ns,
        )
        return [Chart("depths_predicted", draw, played.note, as_held(tried, "by_depth"))]
    cap = played.question.setting.bucket_cap_mb or played.manifest.bucket_cap_mb
    if cap is None and played.manifest.strategy is not None and not is_on_gpus(played.run):
        cap = CAP_MB
    found_ns = best_found_ns(played.run, played.question)
    draw = partial(
        charts.caps_predicted,
        tried,
        recorded.head(0) if played.changes_but("bucket_cap_mb") else recorded.dropna(),
        cap,
        played.interval.half_ns,
        advised_mb,
        measured_ns=played.measured_ns if cap is None else None,
        found_ns=None if found_ns is None else min(found_ns, int(tried["step_ns"].min())),
        least_ns=device_least_ns(played.run) if is_on_gpus(played.run) else None,
    )
    return [Chart("caps_predicted", draw, played.note, as_held(tried, "by_cap"))]


def _over_ranks(played: _ShownAnswer, ranks: pd.DataFrame) -> Iterator[Chart]:
    if len(ranks):
        draw = partial(
            charts.ranks_predicted,
            ranks,
            recorded=played.manifest.world_size,
            measured_ns=None if played.changes_but("ranks") else played.measured_ns,
            chosen=played.ranks,
            half=played.interval.half_ns / played.answer.step_ns,
        )
        yield Chart("ranks_predicted", draw, played.note, as_held(ranks, "by_ranks"))


def _growth_charts(played: _ShownAnswer, ranks: pd.DataFrame) -> Iterator[Chart]:
    if len(ranks):
        draw = partial(charts.throughput_predicted, ranks, recorded=played.manifest.world_size, chosen=played.ranks)
        yield Chart("throughput_predicted", draw, played.note, as_held(ranks, "by_ranks"))
    if "held_bytes" in ranks and ranks["held_bytes"].notna().any():
        draw = partial(charts.held_predicted, ranks, chosen=played.ranks)
        yield Chart("held_predicted", draw, None, as_held(ranks, "by_ranks"))


def _lanes(played: _ShownAnswer) -> Chart:
    before, after = what_if.answer(played.run, Question(setting=Setting())).lanes, played.answer.lanes
    both = pd.concat([before.assign(which="recorded"), after.assign(which="predicted")])
    spans = (what_if.measured_span_ns(played.run), played.answer.median_span_ns)
    return Chart("step_lanes", partial(charts.step_lanes, before, after, spans), played.note, as_held(both, "lanes"))


def _table_or_reason(run: Run, table: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame, str | None]:
    """The table, or an empty one and why the run cannot tell."""
    try:
        return table(), None
    except OverlaplabError as error:
        return pd.DataFrame(), findings.not_told(what_if.message_without_path(run, error))


def _option_table(played: _ShownAnswer, option: Option | None, advised_mb: float | None) -> pd.DataFrame:
    """The setting with other caps or prefetch depths; empty where its strategy has neither option."""
    if option == "bucket_cap_mb":
        caps = {*caps_tried(played.run), *([advised_mb] if advised_mb is not None else [])}
        return what_if.steps_by_cap(played.run, played.question, sorted(caps))
    if option == "prefetch":
        depths = {*DEPTHS, *([played.depth] if played.depth is not None else [])}
        return what_if.steps_by_depth(played.run, played.question, sorted(depths))
    return pd.DataFrame()


def _ranks_table(played: _ShownAnswer) -> pd.DataFrame:
    """The setting with other numbers of ranks; empty on GPUs, and where ranks are played by themselves."""
    if is_on_gpus(played.run) or not is_wide(played.run):
        return pd.DataFrame()
    return what_if.steps_by_ranks(played.run, played.question, sorted({*_RANKS, len(played.run.traces), played.ranks}))
