"""The Summary page: the verdict, one bar per rank, where the exposed time went, and the figures behind them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from overlaplab import charts, findings
from overlaplab.analyses import rows_of, worst_step
from overlaplab.analyses.exposed import Cause
from overlaplab.columns import columns
from overlaplab.dashboard.costs import costs_beside_theory
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.links import go_to_timeline
from overlaplab.dashboard.widgets import (
    chosen_rows,
    dark,
    lead,
    nothing_counts,
    page_head,
    pick_ranks,
    pick_step,
    run_or_stop,
    show_chart,
    show_table,
    show_warnings,
    what_to_do,
)
from overlaplab.formats import as_shown
from overlaplab.words import count, ms

_COLUMNS = columns(
    "summary",
    *("rank", "step", "span_ns", "compute_only_ns", "overlapped_ns", "exposed_comm_ns", "exposed_wait_ns"),
    *("exposed_transfer_ns", "memory_only_ns", "idle_ns", "overlap_ratio"),
)
_SPOTS = columns("exposed", "cause", "moved", "exposed_ns", "of_exposed", "start_ns", "end_ns")
_CAUSES = columns("exposed", "cause", "exposed_ns", "of_exposed", "of_step", "meaning")
_ROOM = 0.2  # of a spot's length, shown on both sides of it
_LEAST_ROOM_NS = 50_000


def page() -> None:
    """Draw the page."""
    page_head("Summary", "How each rank's step time was spent, and why communication was exposed.")
    opened = run_or_stop()
    ranks, step = pick_ranks(opened.run), pick_step(opened.summary)
    table, causes, idled = (chosen_rows(one, ranks, step) for one in (opened.summary, opened.exposed, opened.idle))
    manifest = opened.run.manifest
    if table.empty:
        nothing_counts(opened.run)
        show_warnings(opened)
        return
    lead(findings.verdict(table, manifest, causes, idled), findings.note(manifest))
    show_warnings(opened)
    chart = charts.summary(table, dark=dark(), note=findings.note(manifest))
    show_chart(chart, "summary_chart", as_shown(table, _COLUMNS))
    if len(causes):
        _where_it_went(opened, table, causes)
        _by_cause(table, causes)
    st.subheader("Per rank and step", anchor=False)
    show_table(table, _COLUMNS, "summary_table")
    costs_beside_theory(opened, table)
    what_to_do([findings.exposed_advice(table, causes, idled)])


def _where_it_went(opened: Opened, table: pd.DataFrame, causes: pd.DataFrame) -> None:
    """The worst rank's median step: each cause and collective; a chosen row is shown on the timeline."""
    window = worst_step(table)
    rows = rows_of(causes, window)
    if rows.empty:
        return
    st.subheader(f"Where the {ms(int(rows['exposed_ns'].sum()))} went", anchor=False)
    st.text(f"{findings.exposed_in_median_step(rows, window, table)} Choose a row to see it on the timeline.")
    records = rows.to_dict("records")
    shown = rows.assign(
        cause=[findings.cause_label(row) for row in records],
        moved=[findings.collective_label(row) for row in records],
        of_exposed=rows["exposed_ns"] / rows["exposed_ns"].sum(),
    )
    chosen = show_table(shown, _SPOTS, "exposed_table", select=True)
    if chosen is not None:
        _go_to(opened, records[chosen])


def _go_to(opened: Opened, row: dict[Any, Any]) -> None:
    room = max(int(_ROOM * (row["end_ns"] - row["start_ns"])), _LEAST_ROOM_NS)
    rank = None if pd.isna(row["rank"]) else int(row["rank"])
    go_to_timeline(opened.name, start_ns=row["start_ns"] - room, end_ns=row["end_ns"] + room, rank=rank)


def _by_cause(table: pd.DataFrame, causes: pd.DataFrame) -> None:
    """All chosen ranks and steps together."""
    over = f"{count(table['rank'].nunique(dropna=False), 'rank')} and {count(table['step'].nunique(), 'step')}"
    sums = causes.groupby("cause")["exposed_ns"].sum().sort_values(ascending=False, kind="stable")
    st.subheader(f"By cause, the mean of {over if table['step'].notna().any() else 'all ranks'}", anchor=False)
    shown = pd.DataFrame(
        {
            "cause": sums.index,
            "exposed_ns": sums.to_numpy() / len(table),
            "of_exposed": sums.to_numpy() / sums.sum(),
            "of_step": sums.to_numpy() / table["span_ns"].sum(),
            "meaning": [findings.CAUSE_MEANINGS[Cause(str(cause))] for cause in sums.index],
        }
    )
    show_table(shown, _CAUSES, "causes_table")


page()
