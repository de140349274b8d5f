"""The Summary page: the verdict, one bar per rank, where the exposed time went, and the figures behind them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from overlaplab import charts, findings
from overlaplab.analyses import rows_of, worst_step
from overlaplab.analyses.exposed import Cause
from overlaplab.dashboard.costs import costs_beside_theory
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.links import go_to_timeline
from overlaplab.dashboard.widgets import (
    chosen_rows,
    dark,
    lead,
    milliseconds,
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
from overlaplab.findings.causes import MEANINGS, cause_word, exposed_advice, exposed_finding, moved_word
from overlaplab.words import MS, count, ms, rank_word

_COLUMNS = {
    "rank": "rank",
    "step": "step",
    "span_ns": "step ms",
    "compute_only_ns": "compute ms",
    "overlapped_ns": "hidden ms",
    "exposed_comm_ns": "exposed ms",
    "exposed_wait_ns": "of it wait ms",
    "exposed_transfer_ns": "transfer ms",
    "memory_only_ns": "memory ms",
    "idle_ns": "idle ms",
}
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
    shown = milliseconds(table, _COLUMNS)
    shown["hidden, % of comm."] = 100 * table["overlap_ratio"]
    show_chart(charts.summary(table, dark=dark(), note=findings.note(manifest)), "summary_chart", shown)
    if len(causes):
        _where_it_went(opened, table, causes)
        _by_cause(table, causes)
    st.subheader("Per rank and step", anchor=False)
    show_table(shown, "summary_table")
    costs_beside_theory(opened, table)
    what_to_do([exposed_advice(table, causes, idled)])


def _where_it_went(opened: Opened, table: pd.DataFrame, causes: pd.DataFrame) -> None:
    """The worst rank's median step: each cause and collective; a chosen row is shown on the timeline."""
    window = worst_step(table)
    rows = rows_of(causes, window)
    if rows.empty:
        return
    st.subheader(f"Where the {ms(int(rows['exposed_ns'].sum()))} went", anchor=False)
    several = table["rank"].nunique(dropna=False) > 1
    where = f"Rank {rank_word(window['rank'])}{' (the one most exposed)' if several else ''}"
    if pd.notna(window["step"]):
        where += f", step {window['step']}" + (" (its median one)" if table["step"].nunique() > 1 else "")
    st.text(f"{where}: {exposed_finding(rows)}. Choose a row to see it on the timeline.")
    records = rows.to_dict("records")
    shown = pd.DataFrame(
        {
            "cause": [cause_word(row) for row in records],
            "collective": [moved_word(row) for row in records],
            "exposed ms": rows["exposed_ns"].to_numpy() / MS,
            "% of exposed": 100 * rows["exposed_ns"].to_numpy() / rows["exposed_ns"].sum(),
            "from ms": rows["start_ns"].to_numpy() / MS,
            "to ms": rows["end_ns"].to_numpy() / MS,
        }
    )
    chosen = show_table(shown, "exposed_table", select=True)
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
            "exposed ms": sums.to_numpy() / MS / len(table),
            "% of exposed": 100 * sums.to_numpy() / sums.sum(),
            "% of step time": 100 * sums.to_numpy() / table["span_ns"].sum(),
            "which is": [MEANINGS[Cause(str(cause))] for cause in sums.index],
        }
    )
    show_table(shown, "causes_table")


page()
