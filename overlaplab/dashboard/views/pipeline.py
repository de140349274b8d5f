"""The Pipeline page: what each stage does with which microbatch, and what of its time is bubble."""

from __future__ import annotations

from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import nothing_to_show, one_window, open_page, show_page
from overlaplab.sections.run import pipeline_section
from overlaplab.sections.run_tables import pipeline_of, window_of


def page() -> None:
    """Draw the page."""
    opened = open_page(
        "Pipeline",
        "Which stage works on which microbatch, what it waits for, and how much of that is the schedule's own.",
    )
    if opened.pipeline.empty:
        nothing_to_show(
            opened,
            "This run has no pipeline. The page shows runs of `overlaplab record --strategy pipeline`.",
        )
        return
    rank, step = window_of(one_window(opened.pipeline, opened.window))
    chosen, found = pipeline_of(opened, rank, step), opened.diagnosis_of(rank, step)
    section = pipeline_section(*chosen, opened.pipeline_remedies, opened.manifest, found)
    assert section is not None, "a rank is chosen among those that have a stage"
    row = show_page(opened, section, choose="pipeline_table")
    if row is not None:
        show_spot(opened, row["begun_ns"], row["begun_ns"] + row["took_ns"], row["rank"], marked=False)


page()
