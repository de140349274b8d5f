"""The Summary page: on a laptop's first screen the verdict, what to try, and the figures behind both."""

from __future__ import annotations

import streamlit as st

from overlaplab import findings
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.pickers import one_window
from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import (
    first_sentences,
    nothing_counts,
    run_or_stop,
    show_blocks,
    show_warnings,
    small_head,
)
from overlaplab.findings import Diagnosis
from overlaplab.sections.run_tables import table_window
from overlaplab.sections.summary import summary_section


def page() -> None:
    """Draw the page."""
    head = small_head("Summary")
    opened = run_or_stop()
    verdict = opened.diagnosis
    if verdict is None:
        nothing_counts(opened)
        return
    diagnosis = _chosen_diagnosis(opened, verdict)
    section = opened.get_or_make(
        ("summary", diagnosis.rank, diagnosis.step, diagnosis.chosen),
        lambda: summary_section(opened, diagnosis, findings.link_note(opened.manifest)),
    )
    run = findings.about(opened.manifest, len(opened.run.traces))
    head.text(f"{run} · {findings.place_name(diagnosis)}", width="stretch")
    with st.container(key="screen", gap="xsmall"):
        first_sentences(diagnosis.headline, (diagnosis.advice, *diagnosis.remarks))
        chosen = show_blocks(section.blocks, choose="exposed_table")
        show_warnings(opened)
    if chosen is not None:
        span = chosen["start_ns"], chosen["end_ns"]
        show_spot(opened, *span, chosen["rank"], room=0.2, least_ns=50_000, cause=chosen.get("cause"))


def _chosen_diagnosis(opened: Opened, verdict: Diagnosis) -> Diagnosis:
    """The diagnosis of the rank and step that the side bar names, at first the verdict's."""
    window = one_window(opened.summary, opened.window)
    return opened.find_diagnosis(*table_window(window)) or verdict


page()
