"""The sections of a report: about one run, and about several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from msgspec.structs import replace

from overlaplab import analyses, findings
from overlaplab.report.blocks import Chapter, Shown, draw_section
from overlaplab.sections.blocks import Section
from overlaplab.sections.comparison import batches_section, costs_section, step_times_section, sweep_section
from overlaplab.sections.run import (
    buckets_section,
    collectives_section,
    gathers_section,
    pipeline_section,
    strips,
    timeline_section,
)
from overlaplab.sections.run_tables import RunTables, one_window, table_window
from overlaplab.sections.summary import summary_section
from overlaplab.timeline.timeline import timeline_view

_MOST_RANKS = 8
"""More ranks' lanes are no picture that anybody reads."""


def sections(tables: RunTables) -> Iterator[Shown]:
    """What there is to tell of a run, in the order in which one asks."""
    note, diagnosis = findings.link_note(tables.manifest), tables.diagnosis
    buckets, schedule = (one_window(table, tables.window) for table in (tables.buckets, tables.schedule))
    parts = (
        None if diagnosis is None else summary_section(tables, diagnosis, note),
        _timeline(tables, diagnosis, note),
        buckets_section(tables, buckets, _diagnose(tables, buckets), note),
        gathers_section(tables, schedule, _diagnose(tables, schedule), note, after=strips(tables)),
        pipeline_section(tables, diagnosis),
        collectives_section(tables, diagnosis, note, kinds=True),
    )
    whole = [section for section in parts if section is not None]
    head = () if diagnosis is None else (findings.what_to_do(diagnosis), *findings.why_and_what_to_do(diagnosis))
    last = max((place for place, section in enumerate(whole) if section.advice), default=0)
    for place, section in enumerate(whole):  # what the head says stands at the end once more, and nowhere between
        advice = tuple(line for line in section.advice if place == last or line not in head)
        yield draw_section(replace(section, advice=advice))


def _diagnose(tables: RunTables, table: pd.DataFrame) -> findings.Diagnosis | None:
    """The diagnosis of the table's one rank and step."""
    return tables.diagnosis if table.empty else tables.find_diagnosis(*table_window(table))


def comparison(reported: Sequence[RunTables]) -> tuple[Chapter | None, dict[int, str]]:
    """What a report says about all runs together, None where fewer than two can be compared; and, by the
    places of the runs that get a chapter, what each stands for in a sweep, empty where all get one.
    """
    good = [tables for tables in reported if not tables.summary.empty]
    if len(good) < 2:
        return None, {}
    runs, selection = [tables.run for tables in good], good[0].selection
    note = findings.comparison_note(runs)
    table = analyses.compare(runs, selection)
    costs = costs_section(table, note)
    if not analyses.is_sweep(runs):
        batches = batches_section(analyses.largest_batches(runs, selection))
        return _comparison_chapter(step_times_section(table, note), batches, costs), {}
    caps, links = analyses.sweep(runs, selection), analyses.sweep_links(runs, selection)
    roles = {_place(cap, links, reported): role for cap, role in findings.sweep_ends(caps).items()}
    roles |= {place: "" for place, tables in enumerate(reported) if tables.summary.empty}  # each says why
    left_out = len(reported) - len(roles)
    remark = findings.sweep_left_out(left_out) if left_out else None
    return _comparison_chapter(sweep_section(caps, links, note), costs, note=remark), roles if left_out else {}


def _comparison_chapter(*sections: Section | None, note: str | None = None) -> Chapter:
    shown = tuple(draw_section(section) for section in sections if section is not None)
    return Chapter(anchor="compare", title="Runs compared", sections=shown, note=note)


def _place(cap: float, links: pd.DataFrame, reported: Sequence[RunTables]) -> int:
    """The place of the run that stands for a cap: the one whose step the comparison draws, else its first."""
    drawn = links.loc[links["bucket_cap_mb"].eq(cap), "path"].unique()
    places = [
        place
        for place, tables in enumerate(reported)
        if tables.manifest is not None and tables.manifest.bucket_cap_mb == cap and not tables.summary.empty
    ]
    return next((place for place in places if reported[place].run.path in drawn), places[0])


def _timeline(tables: RunTables, diagnosis: findings.Diagnosis | None, note: str | None) -> Section | None:
    timeline = tables.timeline
    if not (timeline.lanes["kind"] == "stream").any():
        return None
    all_ranks = [trace.rank for trace in tables.run.traces if trace.rank is not None]
    ranks = [rank for rank in all_ranks if tables.selection.ranks is None or rank in tables.selection.ranks]
    steps = timeline.steps[timeline.steps["rank"].isin(ranks)] if ranks else timeline.steps
    numbers = sorted(int(step) for step in steps["step"].dropna().unique())
    start, end, where = *timeline.extent, "the whole recording"
    if numbers:
        step = diagnosis.step if diagnosis is not None and diagnosis.step in numbers else numbers[-1]
        step_rows = analyses.rows_of(steps, {"step": step})
        start, end, where = int(step_rows["start_ns"].min()), int(step_rows["end_ns"].max()), f"step {step}"
    drawn = ranks[:_MOST_RANKS]
    if diagnosis is not None and diagnosis.rank in ranks[_MOST_RANKS:]:
        drawn[-1] = diagnosis.rank
    view = timeline_view(timeline, start_ns=start, end_ns=end, ranks=frozenset(drawn) if drawn else None)
    return timeline_section(view, where, len(ranks), note, diagnosis)
