"""The Summary page: on a laptop's first screen the verdict, what to try, and the figures behind both."""

from __future__ import annotations

from typing import Any

import streamlit as st

from overlaplab import findings
from overlaplab.dashboard.head import open_page
from overlaplab.dashboard.pickers import pick_one, shown_diagnosis
from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import show_blocks, show_nothing_counts, show_warnings
from overlaplab.sections.run_tables import one_window
from overlaplab.sections.summary import summary_section


def page() -> None:
    head = open_page("Summary")
    opened = head.opened
    if len(opened.summary):
        one_window(opened.summary, opened.window, pick=pick_one)
    diagnosis = shown_diagnosis(opened)
    if diagnosis is None:
        head.show(None)
        show_nothing_counts(opened)
        return
    section = opened.get_or_make(
        ("summary", diagnosis.rank, diagnosis.step, diagnosis.chosen),
        lambda: summary_section(opened, diagnosis, findings.link_note(opened.manifest)),
    )
    head.show_whole(diagnosis)
    with st.container(key="screen", gap="xsmall"):
        chosen = show_blocks(section.blocks, choose="exposed_table", run=opened.title)
        show_warnings(opened)
    if chosen is not None:
        span = chosen["start_ns"], chosen["end_ns"]
        about: dict[str, Any] = {name: chosen.get(name) for name in ("cause", "carried", "late_rank")}
        show_spot(opened, *span, chosen["rank"], room=0.2, least_ns=50_000, **about)


page()
