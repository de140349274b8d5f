"""The Pipeline page: what each stage does with which microbatch, and what of its time is bubble."""

from __future__ import annotations

import streamlit as st

from overlaplab import findings
from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import (
    first_sentences,
    nothing_to_show,
    one_window,
    run_or_stop,
    show_blocks,
    show_warnings,
    small_head,
    what_to_do,
)
from overlaplab.sections.run import pipeline_section
from overlaplab.sections.run_tables import pipeline_of, window_of


def page() -> None:
    """Draw the page."""
    head = small_head("Pipeline")
    opened = run_or_stop()
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
    about = findings.about(opened.manifest, len(opened.run.traces))
    head.text(about if step is None else f"{about} · step {step}", width="stretch")
    tried, *others = section.advice
    with st.container(key="screen", gap="xsmall"):
        first_sentences(section.lead, [tried])
        show_warnings(opened)
        row = show_blocks(section.blocks, choose="pipeline_table")
    what_to_do(others)
    if row is not None:
        show_spot(opened, row["begun_ns"], row["begun_ns"] + row["took_ns"], row["rank"], marked=False)


page()
