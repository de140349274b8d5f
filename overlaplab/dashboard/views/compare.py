"""The Compare page: several runs' step time, and what it is made of."""

from __future__ import annotations

from pathlib import PurePath

import pandas as pd
import streamlit as st

import overlaplab
from overlaplab import charts
from overlaplab.dashboard.data import Opened, open_run
from overlaplab.dashboard.folder import HERE
from overlaplab.dashboard.widgets import dark, error_line, milliseconds, show_chart, show_table
from overlaplab.errors import OverlaplabError
from overlaplab.words import shorten

_MOST = 12  # runs compared unless the user chooses more
_COLUMNS = {
    "path": "run",
    "strategy": "strategy",
    "ranks": "ranks",
    "steps": "steps",
    "step_ms_median": "step ms",
    "step_ms_iqr": "IQR ms",
    "compute_ms_median": "compute ms",
    "comm_ms_median": "comm. ms",
    "exposed_ms_median": "exposed ms",
}
_COSTS = {
    "sent_bytes": "sent per rank and step MB",
    "theory_sent_bytes": "theory sent MB",
    "memory_bytes": "largest rank's memory MB",
    "theory_memory_bytes": "theory memory MB",
}


def page() -> None:
    """Draw the page."""
    st.title("Compare")
    names: list[str] = st.session_state["names"]
    chosen = st.multiselect(
        "Runs",
        names,
        default=names[:_MOST],
        format_func=lambda name: "(this folder)" if name == HERE else shorten(name, 60),
    )
    good, bad = _open_all(chosen)
    if bad:
        st.warning("Left out, because they cannot be read:")
        for name, error in bad:
            error_line(error, name)
    if not good:
        st.info("Choose runs to compare: their step times appear here side by side.")
        return
    table = overlaplab.compare([opened.run for opened in good])
    show_chart(charts.compare(table, dark=dark(), note=_note(good)), "compare_chart")
    rows = milliseconds(table, _COLUMNS)
    rows["run"] = [shorten(PurePath(str(path)).name, 80) for path in table["path"]]
    rows.insert(2, "setting", [_setting(opened) for opened in good])
    rows["hidden, % of comm."] = 100 * table["overlap_ratio"]
    st.subheader("Medians over all ranks' steps", anchor=False)
    show_table(rows, "compare_table")
    _costs(table, _note(good))


def _setting(opened: Opened) -> str:
    """What the run's strategy was told, in words; empty where nothing tells."""
    manifest = opened.run.manifest
    if manifest is None:
        return ""
    if manifest.prefetch is not None:
        return f"prefetch {manifest.prefetch}"
    return "" if manifest.bucket_cap_mb is None else f"cap {manifest.bucket_cap_mb:g} MiB"


def _costs(table: pd.DataFrame, note: str | None) -> None:
    """Bytes sent and memory held against theory, where the runs tell them."""
    told = [column for column in _COSTS if table[column].notna().any()]
    if not told:
        return
    st.subheader("Against theory", anchor=False)
    if "sent_bytes" in told:
        show_chart(charts.sent_compared(table, dark=dark(), note=note), "sent_chart")
    if "memory_bytes" in told:
        show_chart(charts.memory_compared(table, dark=dark(), note=note), "memory_chart")
    rows = pd.DataFrame({_COSTS[column]: table[column].astype("Float64") / 1e6 for column in told})
    rows.insert(0, "run", [shorten(PurePath(str(path)).name, 80) for path in table["path"]])
    show_table(rows[table[told].notna().any(axis="columns")], "costs_table")


def _open_all(names: list[str]) -> tuple[list[Opened], list[tuple[str, OverlaplabError]]]:
    """Those runs that can be compared, and what is wrong with the others."""
    good: list[Opened] = []
    bad: list[tuple[str, OverlaplabError]] = []
    for name in names:
        opened = open_run(st.session_state["folder"], name)
        if isinstance(opened, OverlaplabError):
            bad.append((name, opened))
        elif opened.summary.empty:
            bad.append((name, OverlaplabError("nothing in this run counts as compute or communication")))
        else:
            good.append(opened)
    return good, bad


def _note(runs: list[Opened]) -> str | None:
    """The emulated links among the runs, in words."""
    manifests = [opened.run.manifest for opened in runs]
    links = {str(one.link) for one in manifests if one is not None and one.link is not None and one.link.emulated}
    if not links:
        return None
    missed = any(one is not None and one.link_attained is False for one in manifests)
    return f"emulated link {' or '.join(sorted(links))}" + (", link not attained in some runs" if missed else "")


page()
