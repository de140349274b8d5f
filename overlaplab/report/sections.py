"""The sections of a report: about one run, and about several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from overlaplab import analyses, findings
from overlaplab.report.blocks import Shown, shown
from overlaplab.report.cells import MOST_ROWS
from overlaplab.sections.blocks import Section
from overlaplab.sections.comparison import costs_section, step_times_section, sweep_section
from overlaplab.sections.run import (
    buckets_section,
    collectives_section,
    exposed_section,
    gathers_section,
    summary_section,
    timeline_section,
)
from overlaplab.sections.run_tables import RunTables, one_window
from overlaplab.timeline.timeline import timeline_view

__all__ = ["comparison", "sections"]

_MOST_RANKS = 8
"""More ranks' lanes are no picture that anybody reads."""


def sections(tables: RunTables) -> Iterator[Shown]:
    """What there is to tell of a run, in the order in which one asks."""
    table, manifest = tables.summary, tables.manifest
    note = findings.link_note(manifest)
    worst = analyses.worst_step(table) if len(table) else {}
    found = (
        summary_section(table, note, tables.totals if len(table) > MOST_ROWS else None),
        exposed_section(table, tables.exposed, tables.idle, unseen=tables.unseen, bound=tables.bound),
        _timeline(tables, worst, note),
        buckets_section(one_window(tables.buckets, worst), note),
        gathers_section(one_window(tables.schedule, worst), tables.scatters, table, manifest, note),
        collectives_section(
            tables.collectives,
            tables.stragglers,
            manifest.link if manifest else None,
            note,
            tables.communication_by,
            tables.unseen,
        ),
    )
    return (shown(section) for section in found if section is not None)


def comparison(reported: Sequence[RunTables]) -> tuple[Shown, ...]:
    """The sections about all runs; none where fewer than two can be compared."""
    good = [tables for tables in reported if not tables.summary.empty]
    if len(good) < 2:
        return ()
    runs, selection = [tables.run for tables in good], good[0].selection
    note = findings.links_note([run.manifest for run in runs])
    table = analyses.compare(runs, selection)
    if analyses.is_sweep(runs):
        first = sweep_section(analyses.sweep(runs, selection), analyses.sweep_links(runs, selection), note)
    else:
        first = step_times_section(table, note)
    return tuple(shown(section) for section in (first, costs_section(table, note)) if section is not None)


def _timeline(tables: RunTables, worst: dict[str, Any], note: str | None) -> Section | None:
    timeline = tables.timeline
    if not (timeline.lanes["kind"] == "stream").any():
        return None
    known = [trace.rank for trace in tables.run.traces if trace.rank is not None]
    ranks = [rank for rank in known if tables.selection.ranks is None or rank in tables.selection.ranks]
    steps = timeline.steps[timeline.steps["rank"].isin(ranks)] if ranks else timeline.steps
    numbers = sorted(int(step) for step in steps["step"].dropna().unique())
    start, end, where = *timeline.extent, "the whole recording"
    if numbers:
        step = int(worst["step"]) if worst.get("step") in numbers else numbers[-1]
        own = steps[(steps["step"] == step).fillna(False)]
        start, end, where = int(own["start_ns"].min()), int(own["end_ns"].max()), f"step {step}"
    view = timeline_view(timeline, start_ns=start, end_ns=end, ranks=frozenset(ranks[:_MOST_RANKS]) if ranks else None)
    return timeline_section(view, where, len(ranks), note)
