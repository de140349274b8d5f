"""The Buckets page: when each bucket was ready, what it waited for, and which parameter held it."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from overlaplab import charts, findings
from overlaplab.analyses import last_gap_ns, late_buckets, launched_after_backward
from overlaplab.columns import columns
from overlaplab.dashboard.spots import show_in_step
from overlaplab.dashboard.widgets import (
    dark,
    lead,
    nothing_to_show,
    one_window,
    page_head,
    run_or_stop,
    show_chart,
    show_table,
    show_warnings,
    what_to_do,
)
from overlaplab.formats import as_held
from overlaplab.words import last_gradient

_COLUMNS = columns(
    "buckets",
    *("index", "bytes", "last_parameter", "gap_ns", "ready_ns", "launch_ns", "start_ns", "end_ns"),
    *("exposed_ns", "held_ns"),
)


def page() -> None:
    """Draw the page."""
    page_head(
        "Buckets",
        "When each bucket's gradients were ready, what it then waited for, and what of its communication shows.",
    )
    opened = run_or_stop()
    table = opened.buckets
    manifest = opened.run.manifest
    if table.empty:
        nothing_to_show(
            opened.run,
            "This run has no buckets. They come from the engine's labels (`engine::bucket_ready` and its kin), and"
            " from torch's DistributedDataParallel, whose all-reduces are launched as gradients are accumulated.",
        )
        show_warnings(opened)
        return
    table = one_window(table)
    late = late_buckets(table)
    lead(findings.buckets_lead(table, late), findings.note(manifest))
    for note in findings.bucket_notes(table):
        st.text(f"Note: {note}.")
    if len(late) and not launched_after_backward(table):
        st.subheader("Which parameter held each late bucket", anchor=False)
        with st.container(key="late", gap=None):
            for line in findings.late_sentences(late):
                st.text(line)
    chart = charts.buckets(table, dark=dark(), note=findings.note(manifest))
    show_chart(chart, "buckets_chart", as_held(table, "buckets"))
    st.subheader("Per bucket, times from the step's start", anchor=False)
    st.text("Gap: from the gradient before to the last one. Held: how long a ready bucket waited for this one.")
    st.text("Choose a row to see it on the timeline.")
    chosen = show_table(_shown(table, late), _COLUMNS, "buckets_table", select=True)
    if chosen is not None:
        row = table.iloc[[chosen]].to_dict("records")[0]
        first = row["launch_ns"] if pd.isna(row["ready_ns"]) else row["ready_ns"]
        show_in_step(opened, row, first, row["end_ns"])
    what_to_do([findings.buckets_advice(table, late)])


def _shown(table: pd.DataFrame, late: pd.DataFrame) -> pd.DataFrame:
    shown = table.merge(late[["index", "held_ns"]], on="index", how="left")
    shown["held_ns"] = shown["held_ns"].fillna(0)
    shown["last_parameter"] = [last_gradient(row) for row in shown.to_dict("records")]
    shown["gap_ns"] = [last_gap_ns(times) for times in shown["gradient_ready_ns"]]
    return shown


page()
