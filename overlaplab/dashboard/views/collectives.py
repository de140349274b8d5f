"""The Collectives page: how fast each moved its data, how long ranks waited in it, and for whom."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from overlaplab import charts, findings
from overlaplab.analyses import each_collective, stragglers_of
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.spots import show_collective
from overlaplab.dashboard.widgets import (
    chosen_rows,
    dark,
    lead,
    milliseconds,
    nothing_to_show,
    page_head,
    pick_step,
    run_or_stop,
    show_chart,
    show_table,
    show_warnings,
    what_to_do,
)
from overlaplab.findings.advice import collectives_advice
from overlaplab.findings.collectives import collectives_seen
from overlaplab.words import rank_word, shorten

_MOST = 5000  # rows of the table: more do not come to the browser at ease
_LATE = {
    "rank": "rank",
    "collectives": "collectives",
    "last": "came last in",
    "late_median_ns": "late, median ms",
    "late_max_ns": "late, at most ms",
    "cost_ns": "others waited for it ms",
    "alone_ns": "of that, gone if it came with the last but one ms",
}
_TIMES = {
    "start_ns": "start ms",
    "longest_ns": "longest ms",
    "wait_ns": "longest wait ms",
    "transfer_ns": "transfer ms",
    "exposed_ns": "most exposed ms",
    "skew_ns": "skew ms",
}
_ORDER = (
    *("number", "step", "kind", "size kB", "start ms", "longest ms", "longest wait ms", "transfer ms", "bus GB/s"),
    *("bandwidth is", "skew ms", "came last", "most exposed ms", "ranks here", "group", "dtype", "not matched"),
)


def page() -> None:
    """Draw the page."""
    page_head(
        "Collectives",
        "How fast each collective moved its data, how long ranks waited in it for the last one, and who that was.",
    )
    opened = run_or_stop()
    if opened.collectives.empty:
        nothing_to_show(
            opened.run, "This run has no collectives: nothing in its traces counts as communication between ranks."
        )
        show_warnings(opened)
        return
    table = chosen_rows(opened.collectives, None, pick_step(opened.collectives))
    rows, late = each_collective(table), stragglers_of(table)
    manifest = opened.run.manifest
    note = findings.note(manifest)
    lead(collectives_seen(table, late), note)
    show_warnings(opened)
    link = manifest.link if manifest else None
    show_chart(charts.bus_bandwidth(rows, link=link, dark=dark(), note=note), "bus_bandwidth", rows)
    if rows["wait_ns"].notna().any():
        show_chart(charts.waits(rows, dark=dark(), note=note), "waits", rows)
    if late["last"].any():
        show_chart(charts.late_ranks(late, dark=dark(), note=note), "late_ranks", late)
        show_table(milliseconds(late, _LATE), "late_table")
    _each(opened, rows)
    what_to_do([collectives_advice(late, table)])


def _each(opened: Opened, rows: pd.DataFrame) -> None:
    """The table of all collectives; a click on one shows it on the timeline."""
    st.subheader("Each collective, times from the run's start", anchor=False)
    if len(rows) > _MOST:
        st.text(f"The {_MOST:,} in which a rank spent most, of {len(rows):,}. The charts' CSV has all.")
        rows = rows.loc[rows["longest_ns"].fillna(0).nlargest(_MOST).index.sort_values()]
    st.text("Choose a row to see it on the timeline.")
    chosen = show_table(_shown(rows), "collectives_table", select=True)
    if chosen is not None:
        show_collective(opened, rows.iloc[[chosen]].to_dict("records")[0])


def _shown(rows: pd.DataFrame) -> pd.DataFrame:
    """The table's columns, what is asked for most on the left."""
    found = milliseconds(rows, _TIMES)
    found["number"], found["step"], found["ranks here"] = rows["index"], rows["step"], rows["ranks"]
    found["kind"] = [charts.kind_word(kind) for kind in rows["kind"]]
    found["size kB"] = rows["bytes"].astype("Float64") / 1e3
    found["bus GB/s"] = rows["bus_gb_per_s"]
    told = zip(rows["bus_gb_per_s"].notna(), rows["bus_is_lower_bound"], strict=True)
    found["bandwidth is"] = [_bound(known, bound) for known, bound in told]
    found["came last"] = [_last(row) for row in rows.to_dict("records")]
    groups = zip(rows["group_description"], rows["group"], strict=True)
    found["group"] = [_text(description) or _text(group) for description, group in groups]
    found["dtype"] = [_text(dtype) for dtype in rows["dtype"]]
    found["not matched"] = [_text(reason) for reason in rows["unmatched"]]
    return found[list(_ORDER)]


def _text(value: object) -> str | None:
    return shorten(value, 80) if isinstance(value, str) and value else None


def _bound(known: bool, bound: bool) -> str | None:
    return None if not known else "a lower bound" if bound else "measured"


def _last(row: dict[Any, Any]) -> str | None:
    """Which rank came last; nobody where the skew is within what clocks may differ by."""
    if not pd.isna(row["within_clock_error"]) and row["within_clock_error"]:
        return "within clock error"
    return None if pd.isna(row["last_rank"]) else f"rank {rank_word(row['last_rank'])}"


page()
