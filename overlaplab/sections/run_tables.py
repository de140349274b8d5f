"""A run and its tables, each computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd
from msgspec import Struct
from msgspec.structs import replace

from overlaplab import analyses, findings, simulate
from overlaplab.analyses.delays import busy_share, without_busy_steps
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.evidence.arrays import int_or_none
from overlaplab.findings import Diagnosis, Loop
from overlaplab.findings.thresholds import LITTLE_GAIN
from overlaplab.manifest import Manifest
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.timeline.marks import Timeline
from overlaplab.timeline.timeline import View, timeline_events, timeline_view

T = TypeVar("T")


def _selection_property(analysis: Callable[[Run, Selection], pd.DataFrame]) -> cached_property[pd.DataFrame]:
    return cached_property(lambda tables: analysis(tables.run, tables.selection))


def _run_property(analysis: Callable[[Run], T]) -> cached_property[T]:
    return cached_property(lambda tables: analysis(tables.run))


class RunTables(Struct, frozen=True, kw_only=True, dict=True):
    """A run's tables of the selected ranks and steps, each under its analysis' name."""

    run: Run
    selection: Selection = EVERYTHING

    summary = _selection_property(analyses.summary)
    totals = _selection_property(analyses.totals)
    exposed = _selection_property(analyses.exposed)
    moments = _selection_property(analyses.exposed_moments)
    idle = _selection_property(analyses.idle)
    blocking = _selection_property(analyses.blocking)
    buckets = _selection_property(analyses.buckets)
    schedule = _selection_property(analyses.schedule)
    scatters = _selection_property(analyses.scatters)
    hops = _selection_property(analyses.hops)
    best_buckets = _selection_property(simulate.best_buckets)
    collectives = _selection_property(analyses.collectives)
    stragglers = _selection_property(analyses.stragglers)
    communication_by = _selection_property(analyses.communication_by)
    copies = _selection_property(analyses.copies)
    staleness = _selection_property(analyses.staleness)
    volume = _selection_property(analyses.volume)
    pipeline = _selection_property(analyses.pipeline)
    pipeline_ranks = _selection_property(analyses.pipeline_ranks)
    pipeline_steps = _selection_property(analyses.pipeline_steps)
    pipeline_waits = _selection_property(analyses.pipeline_waits)
    replays = _run_property(simulate.remedies)
    gains = _run_property(simulate.gains)
    advice = _run_property(simulate.advise)
    pipeline_remedies = _run_property(simulate.pipeline_remedies)
    theory = _run_property(analyses.volume_theory)
    transfer_lines = _run_property(analyses.transfer_lines)
    slowdowns = _run_property(analyses.slowdowns)
    memory = _run_property(analyses.memory)
    peaks = _run_property(analyses.peaks)
    warnings = _run_property(findings.run_warnings)
    unseen = _run_property(findings.unseen)
    not_predicted = _run_property(findings.not_predicted)

    @cached_property
    def pipelined(self) -> pd.DataFrame:
        """What is known of a pipeline: `pipeline` where stages are labelled, else `pipeline_waits`."""
        return self.pipeline_waits if self.pipeline.empty else self.pipeline

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """What is said of the rank and step that speak for the selected ones; None where nothing was measured."""
        return self.find_diagnosis()

    def find_diagnosis(self, rank: int | None = None, step: int | None = None) -> Diagnosis | None:
        """The diagnosis of this rank and step; None stands for the rank or step that speaks for the run.

        Each is computed once; `chosen` of the one that speaks for the run is the same however it is asked for.
        """
        if self.summary.empty:
            return None
        if (rank, step) not in self._diagnoses:
            window = analyses.worst_step(self._quiet_steps if step is None else self.summary, rank, step)
            window_rank, window_step = _window_place(window)
            diagnosis = None if (rank, step) == (None, None) else self.diagnosis
            if diagnosis is None or (window_rank, window_step) != (diagnosis.rank, diagnosis.step):
                chosen = findings.why_chosen(self._quiet_steps, rank, step, window_rank, window_step)
                diagnosis = self._diagnose(window, window_rank, window_step, chosen)
            self._diagnoses[rank, step] = diagnosis
        return self._diagnoses[rank, step]

    def _diagnose(self, window: Mapping[str, Any], rank: int | None, step: int | None, chosen: str) -> Diagnosis:
        selection = _select_window(rank, step)
        bounds = simulate.bound(self.run, selection).to_dict("records")
        speaks_for_run = (rank, step) == self._speaking_window
        return findings.diagnose(
            self._quiet_steps,
            window,
            self.moments,
            self.idle,
            chosen=chosen,
            unseen=self.unseen,
            bound={str(name): value for name, value in bounds[0].items()} if bounds else None,
            loop=self._loop_in(selection),
            buckets=analyses.buckets(self.run, selection),
            gains=self.gains if findings.find_disturbance(self.run) is None else None,
            actions=None if speaks_for_run or self.diagnosis is None else self.diagnosis.actions,
            ahead=findings.deeper_prefetch(analyses.rows_of(self.replays, window), int(window["span_ns"])),
            late_reason=self.late_reason,
            kinds=self.kinds,
            busy=busy_share(self.run, step),
            blocking=analyses.blocking(self.run, selection),
        )

    @cached_property
    def late_reason(self) -> str | None:
        """What the late rank does for longer than the others, where evening that out would gain much; else None."""
        balance = self.gains[self.gains["remedy"].isin(["balance", "even_work"])]
        if balance.empty or int(balance["gain_ns"].iloc[0]) <= LITTLE_GAIN * int(balance["step_ns"].iloc[0]):
            return None
        late = analyses.late_steps(self.run)
        rank, steps = analyses.latest_rank(late), analyses.summary(self.run)
        if rank is None:
            return None
        phases = analyses.late_rank_phases(self.run, rank)
        names = analyses.late_rank_names(self.run, rank, phases["phase"].iloc[0]) if len(phases) else None
        recorded, step_ns = steps["step"].nunique(), float(steps["span_ns"].mean())
        return findings.late_reason(late, phases, recorded, step_ns, names, ranks=len(self.run.traces))

    @cached_property
    def kinds(self) -> str | None:
        """What kinds of steps there are, and what takes longer in some; None where there is one kind."""
        several = "step_kind" in self.summary and self.summary["step_kind"].nunique() > 1
        return findings.kinds_finding(self.summary, analyses.step_phases(self.run)) if several else None

    @cached_property
    def _speaking_window(self) -> tuple[int | None, int | None]:
        """The rank and step that speak for the run; None for both where nothing was measured."""
        return (None, None) if self.summary.empty else _window_place(analyses.worst_step(self._quiet_steps))

    @cached_property
    def why_chosen(self) -> str:
        """Why the step that speaks for the run does."""
        return findings.why_chosen(self._quiet_steps, None, None, *self._speaking_window)

    @cached_property
    def _quiet_steps(self) -> pd.DataFrame:
        """The steps among which one speaks for the run."""
        return without_busy_steps(self.run, self.summary)

    @cached_property
    def timeline(self) -> Timeline:
        """All ranks' lanes and marks, with exposed time by the causes of the diagnoses."""
        moments = self.moments if self.selection.is_everything else analyses.exposed_moments(self.run)
        moments_by_cause = findings.split_unhideable(moments, simulate.bound(self.run))
        return timeline_events(self.run, moments_by_cause, findings.exposed_name)

    @cached_property
    def loop(self) -> Loop:
        """What the training loop does, as the step that speaks for the run shows it."""
        return self._loop_in(_select_window(*self._speaking_window))

    def _loop_in(self, selection: Selection) -> Loop:
        """What the loop does, as the selected steps show it; that some steps send nothing shows accumulation, too."""
        gathers = analyses.schedule(self.run, selection)
        of_all_steps = analyses.buckets(self.run, replace(selection, steps=None))
        buckets = of_all_steps[of_all_steps["step"].isin(selection.steps)] if selection.steps else of_all_steps
        sources = frozenset((*buckets["source"], *gathers["source"]))
        sources |= {"by hand"} if analyses.averages_by_hand(self.run) else set()
        loop = findings.loop_of(self.manifest, sources, gathers["unit"].unique())
        some_send_nothing = 0 < of_all_steps["step"].nunique() < self.summary["step"].nunique()
        averages = loop.traits is not None and loop.traits.averages_parameters
        accumulates = bool((buckets["passes"] > 1).any()) or some_send_nothing or averages
        return replace(
            loop,
            host=analyses.host_role(self.run),
            accumulates=loop.accumulates or accumulates,
            sends_halves=analyses.sends_halves(self.run),
            loads_in_workers=analyses.loads_in_workers(self.run),
        )

    @cached_property
    def _diagnoses(self) -> dict[tuple[int | None, int | None], Diagnosis]:
        return {}

    @cached_property
    def verdict(self) -> str:
        """The verdict on the selected ranks and steps, or why there is none."""
        if self.diagnosis is None:
            return findings.not_recorded(self.run) or findings.why_no_breakdown(self.run)
        return findings.verdict(self.summary, self.manifest, self.diagnosis, self.unseen)

    @property
    def window(self) -> dict[str, int | None]:
        """The `rank` and `step` that speak for the run: every page's default. Empty where nothing was measured."""
        return {} if self.summary.empty else dict(zip(("rank", "step"), self._speaking_window, strict=True))

    @property
    def manifest(self) -> Manifest | None:
        """The run's manifest."""
        return self.run.manifest


def diagnosis(run: Run) -> Diagnosis | None:
    """Why communication was exposed in the step that every page is about, and what to try.

    That is the median step of the most exposed rank; its `rank` and `step` select the same rows of other analyses.
    `headline` and `advice` are sentences, `causes` has the exposed time in ns by cause. None where nothing was
    measured.
    """
    return RunTables(run=run).diagnosis


def step_timeline(run: Run, step: int | None = None) -> View:
    """All ranks' lanes in one step, by one clock, for `charts.timeline`; without `step` the last one, or all of a trace
    without steps.

    Raises `OverlaplabError` where the run has no such step.
    """
    lanes = RunTables(run=run).timeline
    numbers = lanes.steps["step"].dropna()
    number = numbers.max() if step is None and len(numbers) else step
    rows = lanes.steps if number is None else analyses.rows_of(lanes.steps, {"step": number})
    if rows.empty:
        raise OverlaplabError("it has no such step", path=run.path, remedy="Name one that `summary` shows.")
    return timeline_view(lanes, start_ns=int(rows["start_ns"].min()), end_ns=int(rows["end_ns"].max()))


def _window_place(window: Mapping[str, Any] | pd.Series) -> tuple[int | None, int | None]:
    """The rank and step of a row of `summary`."""
    return int_or_none(window["rank"]), int_or_none(window["step"])


def _select_window(rank: int | None, step: int | None) -> Selection:
    return Selection(ranks=None if rank is None else [rank], steps=None if step is None else [step])


def table_window(table: pd.DataFrame) -> tuple[int | None, int | None]:
    """The rank and step of a table whose rows all have the same ones."""
    return _window_place(table.iloc[0])


def one_window(
    table: pd.DataFrame, *wanted: Mapping[str, Any], pick: Callable[[str, list[int], int], int] | None = None
) -> pd.DataFrame:
    """The rows of one rank and step: the first of the `wanted` that the table has, else its lowest rank and last step.

    `pick(column, options, default)` chooses among several options; without it the default is taken.
    """
    for column, place in (("rank", 0), ("step", -1)):
        options = sorted(int(value) for value in table[column].dropna().unique())
        if options:
            default = next((each[column] for each in wanted if each.get(column) in options), options[place])
            chosen = pick(column, options, default) if pick else default
            if pick is None or len(options) > 1:
                table = table[(table[column] == chosen).fillna(False)]
    return table


def diagnosed_pipeline_waits(tables: RunTables) -> pd.DataFrame:
    """The rows of `pipeline_waits` of the step that speaks for the run, or of the last one that has any."""
    table = tables.pipeline_waits
    if table.empty:
        return table
    _, step = table_window(one_window(table, tables.window))
    return analyses.rows_of(table, {"step": step})


def pipeline_tables(
    tables: RunTables, window: tuple[int | None, int | None] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The rows of `pipeline`, `pipeline_ranks` and `pipeline_steps` of the pipeline that a rank is in, in a step.

    `window`: the rank and step, where they are not those that speak for the run.
    """
    rank, step = window or table_window(one_window(tables.pipeline, tables.window))
    number = analyses.rows_of(tables.pipeline, {"rank": rank})["pipeline"].iloc[0]
    every = (tables.pipeline, tables.pipeline_ranks, tables.pipeline_steps)
    actions, ranks, steps = (analyses.rows_of(each[each["pipeline"] == number], {"step": step}) for each in every)
    return actions, ranks, steps
