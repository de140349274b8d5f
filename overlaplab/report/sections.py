"""The sections of a report: about one run, and about several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd

from overlaplab import analyses, findings
from overlaplab.report.blocks import Shown, shown
from overlaplab.sections.blocks import Section
from overlaplab.sections.comparison import batches_section, costs_section, step_times_section, sweep_section
from overlaplab.sections.run import (
    buckets_section,
    collectives_section,
    gathers_section,
    pipeline_section,
    pipeline_waits_section,
    strips,
    timeline_section,
)
from overlaplab.sections.run_tables import RunTables, one_window, pipeline_of, pipeline_waits_of, window_of
from overlaplab.sections.summary import summary_section
from overlaplab.timeline.timeline import timeline_view

_MOST_RANKS = 8
"""More ranks' lanes are no picture that anybody reads."""


def sections(tables: RunTables) -> Iterator[Shown]:
    """What there is to tell of a run, in the order in which one asks."""
    manifest = tables.manifest
    note = findings.link_note(manifest)
    said = tables.diagnosis
    found = (
        None if said is None else summary_section(tables, said, note),
        _timeline(tables, said, note),
        buckets_section(one_window(tables.buckets, tables.window), said, note, tables.best_buckets),
        gathers_section(
            one_window(tables.schedule, tables.window),
            tables.scatters,
            manifest,
            note,
            said,
            before=strips(tables.schedule, tables.scatters, tables.exposed),
        ),
        _pipeline(tables),
        collectives_section(
            tables.collectives,
            tables.stragglers,
            manifest.link if manifest else None,
            note,
            said,
            tables.communication_by,
            tables.staleness,
            tables.hops,
            tables.transfer_lines,
            tables.exposed,
        ),
    )
    return (shown(section) for section in found if section is not None)


def _pipeline(tables: RunTables) -> Section | None:
    if tables.pipeline.empty:
        return pipeline_waits_section(pipeline_waits_of(tables), tables.diagnosis)
    own = pipeline_of(tables, *window_of(one_window(tables.pipeline, tables.window)))
    return pipeline_section(*own, tables.pipeline_remedies, tables.manifest, tables.diagnosis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a report says about all runs together."""

    sections: tuple[Shown, ...] = ()
    note: str | None = None
    """Which runs have no chapter of their own."""
    ends: dict[int, str] = field(default_factory=dict)
    """Of a sweep, the places of the runs that have a chapter, and what each stands for; empty where all have."""


def comparison(reported: Sequence[RunTables]) -> Comparison:
    """The sections about all runs; none where fewer than two can be compared."""
    good = [tables for tables in reported if not tables.summary.empty]
    if len(good) < 2:
        return Comparison()
    runs, selection = [tables.run for tables in good], good[0].selection
    note = findings.links_note([run.manifest for run in runs])
    table = analyses.compare(runs, selection)
    costs = costs_section(table, note)
    if not analyses.is_sweep(runs):
        batches = batches_section(analyses.largest_batches(runs, selection))
        found = (step_times_section(table, note), batches, costs)
        return Comparison(sections=tuple(shown(section) for section in found if section is not None))
    caps, links = analyses.sweep(runs, selection), analyses.sweep_links(runs, selection)
    sections = (sweep_section(caps, links, note), costs)
    ends = {_place(cap, links, reported): role for cap, role in findings.sweep_ends(caps).items()}
    ends |= {place: "" for place, tables in enumerate(reported) if tables.summary.empty}  # each says why
    left_out = len(reported) - len(ends)
    return Comparison(
        sections=tuple(shown(section) for section in sections if section is not None),
        note=findings.sweep_left_out(left_out) if left_out else None,
        ends=ends if left_out else {},
    )


def _place(cap: float, links: pd.DataFrame, reported: Sequence[RunTables]) -> int:
    """The place of the run that stands for a cap: the one whose step the comparison draws, else its first."""
    drawn = links.loc[links["bucket_cap_mb"].eq(cap), "path"].unique()
    own = [
        place
        for place, tables in enumerate(reported)
        if tables.manifest is not None and tables.manifest.bucket_cap_mb == cap and not tables.summary.empty
    ]
    return next((place for place in own if reported[place].run.path in drawn), own[0])


def _timeline(tables: RunTables, said: findings.Diagnosis | None, note: str | None) -> Section | None:
    timeline = tables.timeline
    if not (timeline.lanes["kind"] == "stream").any():
        return None
    known = [trace.rank for trace in tables.run.traces if trace.rank is not None]
    ranks = [rank for rank in known if tables.selection.ranks is None or rank in tables.selection.ranks]
    steps = timeline.steps[timeline.steps["rank"].isin(ranks)] if ranks else timeline.steps
    numbers = sorted(int(step) for step in steps["step"].dropna().unique())
    start, end, where = *timeline.extent, "the whole recording"
    if numbers:
        step = said.step if said is not None and said.step in numbers else numbers[-1]
        own = steps[(steps["step"] == step).fillna(False)]
        start, end, where = int(own["start_ns"].min()), int(own["end_ns"].max()), f"step {step}"
    view = timeline_view(timeline, start_ns=start, end_ns=end, ranks=frozenset(ranks[:_MOST_RANKS]) if ranks else None)
    return timeline_section(view, where, len(ranks), note, said)
