"""The sections of one run's part of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pandas as pd

from overlaplab import analyses, charts, findings
from overlaplab.columns import columns
from overlaplab.events import Run
from overlaplab.report.blocks import Shown, shown
from overlaplab.report.cells import MOST_ROWS
from overlaplab.sections.blocks import Chart, Section, TableBlock
from overlaplab.sections.run import (
    buckets_section,
    collectives_section,
    exposed_section,
    gathers_section,
    summary_section,
)
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.timeline.timeline import timeline_events, timeline_view

__all__ = ["Reported", "sections"]

_WINDOW = columns("window", "rank", "span_ns", "compute_ns", "comm_ns", "overlapped_ns", "exposed_comm_ns")

_MOST_RANKS = 8
"""More ranks' lanes are no picture that anybody reads."""


@dataclass(frozen=True)
class Reported:
    """A run and what of it is reported."""

    run: Run
    selection: Selection = EVERYTHING

    @cached_property
    def summary(self) -> pd.DataFrame:
        """`overlaplab.summary` of what is selected."""
        return analyses.summary(self.run, self.selection)

    @cached_property
    def worst(self) -> dict[str, Any]:
        """The row of `summary` of a median step of the rank most exposed, which the other sections show, too."""
        return analyses.worst_step(self.summary)

    @cached_property
    def exposed(self) -> pd.DataFrame:
        """`overlaplab.exposed` of what is selected."""
        return analyses.exposed(self.run, self.selection)

    @cached_property
    def idle(self) -> pd.DataFrame:
        """`analyses.idle` of what is selected."""
        return analyses.idle(self.run, self.selection)

    @property
    def note(self) -> str | None:
        """The line about the run that stands under its name."""
        return findings.note(self.run.manifest)

    @property
    def link(self) -> str | None:
        """The emulated link, which stands at every chart."""
        return findings.link_note(self.run.manifest)


def sections(reported: Reported) -> Iterator[Shown]:
    """What there is to tell of a run, in the order in which one asks."""
    run, selection, note = reported.run, reported.selection, reported.link
    table, manifest = reported.summary, run.manifest
    per_rank = analyses.totals(run, selection) if len(table) > MOST_ROWS else None
    every = analyses.schedule(run, selection)
    found = (
        summary_section(table, note, per_rank),
        exposed_section(table, reported.exposed, reported.idle),
        _timeline(reported),
        buckets_section(_one_window(analyses.buckets(run, selection), reported), note),
        gathers_section(_one_window(every, reported), analyses.scatters(run, selection), table, manifest, note),
        collectives_section(
            analyses.collectives(run, selection),
            analyses.stragglers(run, selection),
            manifest.link if manifest else None,
            note,
            analyses.communication_by(run, selection),
        ),
    )
    return (shown(section) for section in found if section is not None)


def _timeline(reported: Reported) -> Section | None:
    timeline = timeline_events(reported.run)
    if not (timeline.lanes["kind"] == "stream").any():
        return None
    known = [trace.rank for trace in reported.run.traces if trace.rank is not None]
    ranks = [rank for rank in known if reported.selection.ranks is None or rank in reported.selection.ranks]
    steps = timeline.steps[timeline.steps["rank"].isin(ranks)] if ranks else timeline.steps
    numbers = sorted(int(step) for step in steps["step"].dropna().unique())
    start, end, where = *timeline.extent, "the whole recording"
    if numbers:
        worst = reported.worst["step"] if len(reported.summary) else None
        step = int(worst) if worst in numbers else numbers[-1]
        own = steps[(steps["step"] == step).fillna(False)]
        start, end, where = int(own["start_ns"].min()), int(own["end_ns"].max()), f"step {step}"
    view = timeline_view(timeline, start_ns=start, end_ns=end, ranks=frozenset(ranks[:_MOST_RANKS]) if ranks else None)
    return Section(
        title="Timeline",
        lead=findings.timeline_lead(view, where, len(ranks)),
        blocks=[
            Chart(key="timeline", draw=partial(charts.timeline, view), note=reported.link),
            TableBlock(
                key="window_table",
                caption="The same window in figures, from the raw events",
                frame=view.totals,
                columns=_WINDOW,
            ),
        ],
        advice=(findings.timeline_advice(view),),
    )


def _one_window(table: pd.DataFrame, reported: Reported) -> pd.DataFrame:
    """The rows of the worst rank and step, else of the lowest rank and the last step."""
    worst = reported.worst if len(reported.summary) else {}
    for column, place in (("rank", 0), ("step", -1)):
        known = sorted(int(value) for value in table[column].dropna().unique())
        if known:
            chosen = worst.get(column) if worst.get(column) in known else known[place]
            table = table[(table[column] == chosen).fillna(False)]
    return table
