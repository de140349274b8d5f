"""The Pipeline page: what each stage does with which microbatch, and what of its time is bubble."""

from __future__ import annotations

from overlaplab.dashboard.head import open_page
from overlaplab.dashboard.pickers import pick_one, shown_diagnosis
from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import show_page
from overlaplab.sections.run import pipeline_section
from overlaplab.sections.run_tables import diagnosed_pipeline_waits, one_window, table_window

_NOTHING = (
    "This run has no pipeline. The page shows runs of `overlaplab record --strategy pipeline`, others whose messages"
    " tell what each stage does, such as torch's GPipe and 1F1B, and messages of groups that are described as a"
    " pipeline's."
)


def page() -> None:
    head = open_page("Pipeline")
    opened = head.opened
    table = diagnosed_pipeline_waits(opened) if opened.pipeline.empty else opened.pipeline
    window = table_window(one_window(table, opened.window, pick=pick_one)) if len(table) else (None, None)
    diagnosis = opened.find_diagnosis(*window) if len(table) else shown_diagnosis(opened)
    row = show_page(head, pipeline_section(opened, diagnosis, window), diagnosis, "pipeline_table", _NOTHING)
    if row is not None:
        show_spot(opened, row["begun_ns"], row["begun_ns"] + row["took_ns"], row["rank"], marked=False)


page()
