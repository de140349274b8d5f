"""The Collectives page: how fast each moved its data, how long ranks waited in it, and for whom."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from overlaplab import charts, findings
from overlaplab.analyses import each_collective, stragglers_of
from overlaplab.columns import columns
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.spots import show_collective
from overlaplab.dashboard.widgets import (
    chosen_rows,
    lead,
    nothing_to_show,
    page_head,
    pick_step,
    run_or_stop,
    show_blocks,
    show_table,
    show_warnings,
    what_to_do,
)
from overlaplab.sections.run import collectives_section
from overlaplab.words import rank_word, shorten

_MOST = 5000  # rows of the table: more do not come to the browser at ease
_EACH = columns(  # what is asked for most stands on the left
    "each_collective",
    *("index", "step", "kind", "bytes", "start_ns", "longest_ns", "wait_ns", "transfer_ns", "bus_gb_per_s"),
    *("bus_is_lower_bound", "skew_ns", "last_rank", "exposed_ns", "ranks", "group", "dtype", "unmatched"),
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
    manifest = opened.run.manifest
    note, link = findings.note(manifest), manifest.link if manifest else None
    section = collectives_section(table, stragglers_of(table), link, note)
    assert section is not None, "a step is chosen among those that have collectives"
    lead(section.lead, note)
    show_warnings(opened)
    show_blocks(block for block in section.blocks if block.key != "collectives_table")
    _each(opened, each_collective(table), any(block.key in ("bus_bandwidth", "waits") for block in section.blocks))
    what_to_do(section.advice)


def _each(opened: Opened, rows: pd.DataFrame, drawn: bool) -> None:
    """The table of all collectives; a click on one shows it on the timeline. `drawn`: whether a chart has them all."""
    st.subheader("Each collective, times from the run's start", anchor=False)
    if len(rows) > _MOST:
        everything = " The charts' CSV has all." if drawn else ""
        st.text(f"The {_MOST:,} in which a rank spent most, of {len(rows):,}.{everything}")
        rows = rows.loc[rows["longest_ns"].fillna(0).nlargest(_MOST).index.sort_values()]
    st.text("Choose a row to see it on the timeline.")
    chosen = show_table(_shown(rows), _EACH, "collectives_table", select=True)
    if chosen is not None:
        show_collective(opened, rows.iloc[[chosen]].to_dict("records")[0])


def _shown(rows: pd.DataFrame) -> pd.DataFrame:
    """With words for what is no number."""
    bounds = zip(rows["bus_gb_per_s"].notna(), rows["bus_is_lower_bound"], strict=True)
    groups = zip(rows["group_description"], rows["group"], strict=True)
    found = rows.copy()
    found["kind"] = [charts.kind_word(kind) for kind in rows["kind"]]
    found["bus_is_lower_bound"] = [_bound(known, bound) for known, bound in bounds]
    found["last_rank"] = [_last(row) for row in rows.to_dict("records")]
    found["group"] = [_text(description) or _text(group) for description, group in groups]
    found["dtype"] = [_text(dtype) for dtype in rows["dtype"]]
    found["unmatched"] = [_text(reason) for reason in rows["unmatched"]]
    return found


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
