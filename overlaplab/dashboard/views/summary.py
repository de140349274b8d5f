"""The Summary page: the verdict, one bar per rank, where the exposed time went, and the figures behind them."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from overlaplab import findings
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.spots import show_spot
from overlaplab.dashboard.widgets import (
    chosen_rows,
    lead,
    nothing_counts,
    open_page,
    pick_ranks,
    pick_step,
    show_block,
    show_section,
    show_table,
    show_warnings,
    what_to_do,
)
from overlaplab.sections.run import exposed_section, summary_section
from overlaplab.sections.tables import held_rows, sent_rows


def page() -> None:
    """Draw the page."""
    opened = open_page("Summary", "How each rank's step time was spent, and why communication was exposed.")
    ranks, step = pick_ranks(opened.run), pick_step(opened.summary)
    table, causes, idle = (chosen_rows(rows, ranks, step) for rows in (opened.summary, opened.exposed, opened.idle))
    note = findings.note(opened.manifest)
    section = summary_section(table, note)
    if section is None:
        nothing_counts(opened)
        return
    bound = opened.step_bound(table)
    lead(findings.verdict(table, opened.manifest, causes, idle, opened.unseen, bound), note)
    show_warnings(opened)
    chart, rows = section.blocks
    show_block(chart)
    over = "all ranks and steps" if ranks is None and step is None else "the chosen ranks and steps"
    exposed = exposed_section(table, causes, idle, over, opened.unseen, bound)
    row = None if exposed is None else show_section(exposed, choose="exposed_table")
    if row is not None:
        show_spot(opened, row["start_ns"], row["end_ns"], row["rank"], room=0.2, least_ns=50_000)
    st.header("In figures", anchor=False)
    show_block(rows)
    _costs(opened, table)
    what_to_do([findings.exposed_advice(table, causes, idle, opened.unseen, bound)])


def _costs(opened: Opened, windows: pd.DataFrame) -> None:
    """Bytes sent and memory held beside theory, where a run tells them, for the ranks and steps of `windows`."""
    volume = opened.volume.merge(windows[["rank", "step"]].drop_duplicates(), on=["rank", "step"])
    memory, peaks = (rows[rows["rank"].isin(windows["rank"])] for rows in (opened.memory, opened.peaks))
    sent, held = sent_rows(volume, len(windows)), held_rows(memory, peaks)
    unknown = findings.unknown_sizes(volume)
    if sent is None and held is None and not unknown:
        return
    left, right = st.columns(2, gap="medium")
    with left:
        if sent is not None or unknown:
            st.subheader("Sent per rank and step", anchor=False)
        if sent is not None:
            measured = sent.frame["sent_bytes"].iloc[-1]
            st.text(f"{findings.sent_lead(measured, opened.theory)}\n{findings.sent_notes(opened.manifest)}")
            show_table(sent)
        elif unknown:
            st.text(unknown)
    if held is not None:
        with right:
            st.subheader(held.caption, anchor=False)
            st.text(f"{findings.held_lead(memory)}\n{findings.held_notes(opened.manifest, peaks)}")
            show_table(held)


page()
