"""The page What if: what a run's step would take with another setting, beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import pandas as pd

from overlaplab import charts, findings
from overlaplab.costs import Algorithm
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.manifest import traits_of
from overlaplab.sections.blocks import Chart
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.error import gain_half_ns, measured_steps
from overlaplab.simulate.programs.options import CAP_MB
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.wide import Skew
from overlaplab.traits import TRAITS

__all__ = ["Asked", "Parts", "caps_tried", "what_if_parts"]

_MIB = 1 << 20
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
    """Caps in MiB: powers of two from a quarter to the first that makes one bucket, and the recorded one."""
    manifest = run.manifest
    whole = sum(parameter.bytes for parameter in manifest.parameters) / _MIB if manifest else 0.0
    found = [0.25]
    while found[-1] < min(whole, 64):
        found.append(found[-1] * 2)
    own = manifest.bucket_cap_mb if manifest else None
    return sorted({*found, *([own] if own else [])})


def what_if_parts(run: Run, asked: Asked, recorded: pd.DataFrame, note: str | None) -> Parts:
    """`recorded`: rows of `recorded_caps` of this run and of others that differ from it in the cap alone.

    Raises `OverlaplabError` where the run cannot tell of the setting; of others, notes say so.
    """
    setting, manifest = asked.setting, run.manifest
    assert manifest is not None
    program, result = what_if.played(run, setting, algorithm=asked.algorithm, skew=asked.skew)
    measured_ns, step_ns = round(fmean(measured_steps(run))), what_if.mean_step_ns(result)
    sure = what_if.interval(run, step_ns, recorded)
    doubt_ns = gain_half_ns(step_ns, sure)
    caps, no_caps = _told(run, partial(_by_cap, run, asked))
    ranks, no_ranks = _told(run, partial(_by_ranks, run, asked, program.ranks))
    measured, step = what_if.measured_step(run), what_if.typical_step(result)
    both = (what_if.lanes(*what_if.played(run, Setting()), measured), what_if.lanes(program, result, step))
    lanes = partial(charts.step_lanes, *both, (measured.span_ns, step.span_ns))
    over, growing = list[Chart](), list[Chart]()
    if len(caps):
        cap = setting.bucket_cap_mb or manifest.bucket_cap_mb or CAP_MB
        seen = recorded.dropna() if replace(setting, bucket_cap_mb=None) == Setting() else recorded.head(0)
        draw = partial(charts.caps_predicted, caps, seen, cap, sure.half_ns)
        over.append(Chart(key="caps_predicted", draw=draw, note=note))
    if len(ranks):
        own, chosen = manifest.world_size, program.ranks
        seen_ns = measured_ns if replace(setting, ranks=None) == Setting() else None
        share = sure.half_ns / step_ns
        draw = partial(charts.ranks_predicted, ranks, recorded=own, measured_ns=seen_ns, chosen=chosen, half=share)
        over.append(Chart(key="ranks_predicted", draw=draw, note=note))
        draw = partial(charts.throughput_predicted, ranks, recorded=own, chosen=chosen)
        growing.append(Chart(key="throughput_predicted", draw=draw, note=note))
    if "held_bytes" in ranks and ranks["held_bytes"].notna().any():
        draw = partial(charts.held_predicted, ranks, chosen=program.ranks)
        growing.append(Chart(key="held_predicted", draw=draw, note=None))
    beyond = findings.beyond_recorded(setting, manifest)
    notes = findings.what_if_notes(sure, doubt_ns, beyond, asked.algorithm)
    return Parts(
        headline=findings.what_if_headline(setting, step_ns, measured_ns, sure.half_ns, doubt_ns),
        notes=[*notes, *dict.fromkeys(filter(None, (no_caps, no_ranks)))],
        over=over,
        lanes=Chart(key="step_lanes", draw=lanes, note=note),
        growing=growing,
        advice=findings.what_if_advice(caps, measured_ns, doubt_ns),
    )


def _told(run: Run, table: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame, str | None]:
    """The table, or an empty one and why the run cannot tell."""
    try:
        return table(), None
    except OverlaplabError as error:
        return pd.DataFrame(), findings.not_told(what_if.told(run, error))


def _by_cap(run: Run, asked: Asked) -> pd.DataFrame:
    """The setting with other caps; empty where its strategy sends no buckets."""
    strategy = asked.setting.strategy
    traits = TRAITS.get(strategy) if strategy else traits_of(run.manifest)
    caps: Sequence[float] = caps_tried(run) if traits is not None and traits.buckets else ()
    return what_if.by_cap(run, asked.setting, caps, algorithm=asked.algorithm, skew=asked.skew)


def _by_ranks(run: Run, asked: Asked, chosen: int) -> pd.DataFrame:
    counts = sorted({*_RANKS, len(run.traces), chosen})
    return what_if.by_ranks(run, asked.setting, counts, algorithm=asked.algorithm, skew=asked.skew)
