"""The Pipeline page: what each stage does with which microbatch, and what of its time is bubble."""

from __future__ import annotations

from typing import Any

import streamlit as st

from overlaplab import findings
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.pickers import one_window
from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import (
    first_sentences,
    nothing_to_show,
    run_or_stop,
    show_blocks,
    show_warnings,
    small_head,
    what_to_do,
)
from overlaplab.sections.blocks import Section
from overlaplab.sections.run import pipeline_section, pipeline_waits_section
from overlaplab.sections.run_tables import diagnosed_pipeline_waits, pipeline_tables, table_window


def page() -> None:
    """Draw the page."""
    head = small_head("Pipeline")
    opened = run_or_stop()
    if opened.pipelined.empty:
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
    about = findings.about(opened.manifest, len(opened.run.traces))
    head.text(about if step is None else f"{about} · step {step}", width="stretch")
    row = _show(opened, section)
    if row is not None:
        show_spot(opened, row["begun_ns"], row["begun_ns"] + row["took_ns"], row["rank"], marked=False)


def _show(opened: Opened, section: Section) -> dict[Any, Any] | None:
    """The section, verdict and advice first; the action that was chosen in its table."""
    tried, others = section.advice[:1], section.advice[1:]
    with st.container(key="screen", gap="xsmall"):
        first_sentences(section.lead, tried)
        show_warnings(opened)
        row = show_blocks(section.blocks, choose="pipeline_table")
    if others:
        what_to_do(others)
    return row


page()
