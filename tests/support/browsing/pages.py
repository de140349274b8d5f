"""The pages' sections about one rank's step, as the dashboard's views compose them: cheaper than a browser."""

from __future__ import annotations

from collections.abc import Iterator

from overlaplab import analyses
from overlaplab.findings import Diagnosis
from overlaplab.sections.blocks import Section
from overlaplab.sections.run import buckets_section, collectives_section, gathers_section, window_section
from overlaplab.sections.run_tables import RunTables
from overlaplab.timeline.window_statistics import timeline_window


def pages(tables: RunTables, found: Diagnosis) -> Iterator[Section]:
    """Buckets, ZeRO-3 and Collectives, those that apply to the run."""
    window = {"rank": found.rank, "step": found.step}
    buckets, schedule = (analyses.rows_of(table, window) for table in (tables.buckets, tables.schedule))
    sections = (
        buckets_section(tables, buckets, found, None),
        gathers_section(tables, schedule, found, None),
        collectives_section(tables, found, None, step=found.step),
    )
    yield from filter(None, sections)


def timeline_page(tables: RunTables, found: Diagnosis) -> Section:
    """With the diagnosed step in sight."""
    steps = tables.timeline.steps
    if found.step is not None:
        steps = steps[(steps["step"] == found.step).fillna(False)]
    visible = timeline_window(tables.timeline, int(steps["start_ns"].min()), int(steps["end_ns"].max()))
    return window_section(visible, None, "", found.step, found.chosen)
