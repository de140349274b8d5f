"""The Pipeline page: what each stage does with which microbatch, and what of its time is bubble."""

from __future__ import annotations

from overlaplab.dashboard.head import open_page
from overlaplab.dashboard.pickers import one_window, shown_diagnosis
from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import nothing_to_show, show_page
from overlaplab.sections.run import pipeline_section, pipeline_waits_section
from overlaplab.sections.run_tables import diagnosed_pipeline_waits, pipeline_tables, table_window


def page() -> None:
    head = open_page("Pipeline")
    opened = head.opened
    if opened.pipelined.empty:
        head.show(shown_diagnosis(opened))
        nothing_to_show(
            opened,
            "This run has no pipeline. The page shows runs of `overlaplab record --strategy pipeline`, and messages of"
            " groups that are described as a pipeline's, such as Megatron-LM's.",
        )
        return
    waits = None if not opened.pipeline.empty else diagnosed_pipeline_waits(opened)
    rank, step = table_window(one_window(opened.pipeline if waits is None else waits, opened.window))
    diagnosis = opened.find_diagnosis(rank, step)
    if waits is None:
        chosen = pipeline_tables(opened, rank, step)
        section = pipeline_section(*chosen, opened.pipeline_remedies, opened.manifest, diagnosis)
    else:
        section = pipeline_waits_section(waits, diagnosis)
    assert section is not None, "a rank is chosen among those that have a stage, or messages"
    head.show(diagnosis)
    row = show_page(opened, section, diagnosis, choose="pipeline_table")
    if row is not None:
        show_spot(opened, row["begun_ns"], row["begun_ns"] + row["took_ns"], row["rank"], marked=False)


page()
