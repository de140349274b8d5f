"""The Summary page: the verdict, one bar per rank, and the figures behind them."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from overlaplab import charts
from overlaplab.charts.theme import ms, percent, rank_word
from overlaplab.dashboard.costs import costs_beside_theory
from overlaplab.dashboard.widgets import (
    chosen_rows,
    dark,
    lead,
    milliseconds,
    nothing_counts,
    pick_ranks,
    pick_step,
    run_or_stop,
    show_chart,
    show_table,
    show_warnings,
)

_COLUMNS = {
    "rank": "rank",
    "step": "step",
    "span_ns": "step time ms",
    "compute_only_ns": "compute only ms",
    "overlapped_ns": "hidden comm. ms",
    "exposed_comm_ns": "exposed comm. ms",
    "memory_only_ns": "memory only ms",
    "idle_ns": "idle ms",
}


def page() -> None:
    """Draw the page."""
    st.title("Summary")
    opened = run_or_stop()
    table = opened.summary
    table = chosen_rows(table, pick_ranks(opened.run), pick_step(table))
    manifest = opened.run.manifest
    lead(charts.verdict(table, manifest), charts.note(manifest))
    show_warnings(opened)
    if table.empty:
        nothing_counts(opened.run)
        return
    _metrics(table)
    show_chart(charts.summary(table, dark=dark(), note=charts.note(manifest)), "summary_chart")
    st.subheader("Per rank and step", anchor=False)
    shown = milliseconds(table, _COLUMNS)
    shown["hidden, % of comm."] = 100 * table["overlap_ratio"]
    show_table(shown, "summary_table")
    costs_beside_theory(opened, table)


def _metrics(table: pd.DataFrame) -> None:
    """The headline figures: numbers only, each with its denominator."""
    means = table.groupby("rank", dropna=False)[["span_ns", "comm_ns", "exposed_comm_ns"]].mean()
    worst = int(means["exposed_comm_ns"].astype("float64").argmax())
    comm, exposed = int(table["comm_ns"].sum()), int(table["exposed_comm_ns"].sum())
    figures = [
        ("Step time", ms(table["span_ns"].median()), "Median over the ranks' steps."),
        ("Communication", ms(table["comm_ns"].mean()), "Mean per rank and step."),
        ("Hidden", percent(comm - exposed, comm), "Of the communication time, over all ranks and steps."),
        (
            "Exposed",
            ms(table["exposed_comm_ns"].mean()),
            "Mean per rank and step: nothing computes then.",
        ),
        (
            "Worst rank",
            "–" if pd.isna(means.index[worst]) else rank_word(means.index[worst]),
            "The most exposed time per step. A rank that waits for others has most: the late one may have least.",
        ),
    ]
    for column, (label, value, text) in zip(st.columns(len(figures)), figures, strict=True):
        column.metric(label, value, help=text, border=True)


page()
