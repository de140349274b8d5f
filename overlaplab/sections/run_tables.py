"""A run and its tables, each computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from overlaplab import analyses, findings, simulate
from overlaplab.events import Run
from overlaplab.evidence.fields import int_or_none
from overlaplab.findings import Diagnosis, Loop
from overlaplab.findings.thresholds import LITTLE_GAIN
from overlaplab.manifest import Manifest
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.timeline.marks import Timeline
from overlaplab.timeline.timeline import timeline_events

T = TypeVar("T")


def _selected(analysis: Callable[[Run, Selection], pd.DataFrame]) -> cached_property[pd.DataFrame]:
    return cached_property(lambda tables: analysis(tables.run, tables.selection))


def _whole(analysis: Callable[[Run], T]) -> cached_property[T]:
    return cached_property(lambda tables: analysis(tables.run))


@dataclass(frozen=True, kw_only=True)
class RunTables:
    """A run's tables of the selected ranks and steps, each under its analysis' name."""

    run: Run
    selection: Selection = EVERYTHING

    summary = _selected(analyses.summary)
    totals = _selected(analyses.totals)
    exposed = _selected(analyses.exposed)
    moments = _selected(analyses.exposed_moments)
    idle = _selected(analyses.idle)
    blocking = _selected(analyses.blocking)
    buckets = _selected(analyses.buckets)
    schedule = _selected(analyses.schedule)
    scatters = _selected(analyses.scatters)
    hops = _selected(analyses.hops)
    best_buckets = _selected(simulate.best_buckets)
    collectives = _selected(analyses.collectives)
    stragglers = _selected(analyses.stragglers)
    communication_by = _selected(analyses.communication_by)
    copies = _selected(analyses.copies)
    staleness = _selected(analyses.staleness)
    volume = _selected(analyses.volume)
    pipeline = _selected(analyses.pipeline)
    pipeline_ranks = _selected(analyses.pipeline_ranks)
    pipeline_steps = _selected(analyses.pipeline_steps)
    pipeline_waits = _selected(analyses.pipeline_waits)
    replays = _whole(simulate.remedies)
    gains = _whole(simulate.gains)
    advice = _whole(simulate.advise)
    pipeline_remedies = _whole(simulate.pipeline_remedies)
    theory = _whole(analyses.volume_theory)
    transfer_lines = _whole(analyses.transfer_lines)
    slowdowns = _whole(analyses.slowdowns)
    memory = _whole(analyses.memory)
    peaks = _whole(analyses.peaks)
    warnings = _whole(findings.run_warnings)
    unseen = _whole(findings.unseen)
    not_predicted = _whole(findings.not_predicted)

    @cached_property
    def pipelined(self) -> pd.DataFrame:
        """What is known of a pipeline: `pipeline` where stages are labelled, else `pipeline_waits`."""
        return self.pipeline_waits if self.pipeline.empty else self.pipeline

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """What is said of the rank and step that speak for the selected ones; None where nothing was measured."""
        return self.diagnosis_of()

    def diagnosis_of(self, rank: int | None = None, step: int | None = None) -> Diagnosis | None:
        """The diagnosis of this rank and step; of one that is not given, the one that speaks for the run.

        Each is computed once, and that which speaks for the run says so however it is asked for.
        """
        if (rank, step) not in self._asked:
            self._asked[rank, step] = self._found(rank, step)
        return self._asked[rank, step]

    def _found(self, rank: int | None, step: int | None) -> Diagnosis | None:
        if self.summary.empty:
            return None
        window = analyses.worst_step(self.summary, rank, step)
        at, on = _place_of(window)
        if (rank, step) != (None, None) and self.diagnosis and (at, on) == (self.diagnosis.rank, self.diagnosis.step):
            return self.diagnosis
        chosen = findings.where_chosen(self.summary, rank, step, on)
        if (at, on, chosen) not in self._diagnoses:
            self._diagnoses[at, on, chosen] = self._diagnose(window, at, on, chosen)
        return self._diagnoses[at, on, chosen]

    def _diagnose(self, window: Mapping[str, Any], rank: int | None, step: int | None, chosen: str) -> Diagnosis:
        own = _only(rank, step)
        bounds = simulate.bound(self.run, own).to_dict("records")
        speaks = (rank, step) == self._speaks
        return findings.diagnose(
            self.summary,
            window,
            self.moments,
            self.idle,
            chosen=chosen,
            unseen=self.unseen,
            bound={str(name): value for name, value in bounds[0].items()} if bounds else None,
            loop=self._loop_in(own),
            buckets=analyses.buckets(self.run, own),
            gains=self.gains,
            actions=None if speaks or self.diagnosis is None else self.diagnosis.actions,
            ahead=findings.gathered_ahead(analyses.rows_of(self.replays, window), int(window["span_ns"])),
            late_reason=self.late_reason,
            busy=findings.busy_share(self.run, step),
            blocking=analyses.blocking(self.run, own),
        )

    @cached_property
    def late_reason(self) -> str | None:
        """Why the rank is late that others wait for, where the wait for it matters."""
        balance = self.gains[self.gains["remedy"].isin(["balance", "even_work"])]
        if balance.empty or int(balance["gain_ns"].iloc[0]) <= LITTLE_GAIN * int(balance["step_ns"].iloc[0]):
            return None
        late = analyses.late_steps(self.run)
        rank = analyses.latest_rank(late)
        phases = analyses.late_rank_phases(self.run, -1 if rank is None else rank)
        steps = analyses.summary(self.run)
        return findings.late_reason(late, phases, steps["step"].nunique(), float(steps["span_ns"].mean()))

    @cached_property
    def _speaks(self) -> tuple[int | None, int | None]:
        """The rank and step that speak for the run."""
        return _place_of(analyses.worst_step(self.summary))

    @cached_property
    def timeline(self) -> Timeline:
        """All ranks' lanes and marks, with exposed time by the causes of the diagnoses."""
        moments = self.moments if self.selection.is_everything else analyses.exposed_moments(self.run)
        told = findings.told_causes(moments, simulate.bound(self.run))
        return timeline_events(self.run, told, findings.exposed_name)

    @cached_property
    def loop(self) -> Loop:
        """What the training loop does, as the step that speaks for the run shows it."""
        rank, step = (self.window.get(name) for name in ("rank", "step"))
        return self._loop_in(_only(rank, step))

    def _loop_in(self, own: Selection) -> Loop:
        gathers = analyses.schedule(self.run, own)
        buckets = analyses.buckets(self.run, own)
        sources = frozenset((*buckets["source"], *gathers["source"]))
        loop = findings.loop_of(self.manifest, sources, gathers["unit"].unique())
        several = bool((buckets["passes"] > 1).any()) or self.summary["step_kind"].nunique() > 1
        return replace(loop, host=analyses.host_role(self.run), accumulates=loop.accumulates or several)

    @cached_property
    def _asked(self) -> dict[tuple[int | None, int | None], Diagnosis | None]:
        return {}

    @cached_property
    def _diagnoses(self) -> dict[tuple[Any, ...], Diagnosis]:
        return {}

    @cached_property
    def verdict(self) -> str:
        """The verdict on the selected ranks and steps, or why there is none."""
        if self.diagnosis is None:
            return findings.not_recorded(self.run) or findings.NOTHING_COUNTS
        return findings.verdict(self.summary, self.manifest, self.diagnosis, self.unseen)

    @property
    def window(self) -> dict[str, int | None]:
        """The `rank` and `step` that speak for the run: every page's default. Empty where nothing was measured."""
        return {} if self.diagnosis is None else {"rank": self.diagnosis.rank, "step": self.diagnosis.step}

    @property
    def manifest(self) -> Manifest | None:
        """The run's manifest."""
        return self.run.manifest


def _place_of(window: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The rank and step of a row of `summary`."""
    rank, step = (int_or_none(window[name]) for name in ("rank", "step"))
    return rank, step


def _only(rank: int | None, step: int | None) -> Selection:
    return Selection(ranks=None if rank is None else [rank], steps=None if step is None else [step])


def window_of(table: pd.DataFrame) -> tuple[int | None, int | None]:
    """The rank and step of a table whose rows all have the same ones."""
    rank, step = (int_or_none(table[name].iloc[0]) for name in ("rank", "step"))
    return rank, step


def one_window(table: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of the wanted rank and step where the table has them, else of its lowest rank and last step."""
    for column, place in (("rank", 0), ("step", -1)):
        known = sorted(int(value) for value in table[column].dropna().unique())
        if known:
            chosen = wanted.get(column)
            table = table[(table[column] == (chosen if chosen in known else known[place])).fillna(False)]
    return table


def pipeline_waits_of(found: RunTables) -> pd.DataFrame:
    """The rows of `pipeline_waits` of the step that speaks for the run, or of the last one that has any."""
    table = found.pipeline_waits
    if table.empty:
        return table
    _, step = window_of(one_window(table, found.window))
    return table[(table["step"] == step).fillna(step is None)]


def pipeline_of(
    found: RunTables, rank: int | None, step: int | None
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The rows of `pipeline`, `pipeline_ranks` and `pipeline_steps` of the pipeline that a rank is in, in a step."""
    number = found.pipeline.loc[(found.pipeline["rank"] == rank).fillna(rank is None), "pipeline"].iloc[0]
    every = (found.pipeline, found.pipeline_ranks, found.pipeline_steps)
    chosen = [of[(of["pipeline"] == number) & (of["step"] == step).fillna(step is None)] for of in every]
    return chosen[0], chosen[1], chosen[2]
