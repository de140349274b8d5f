"""The Compare page: several runs' step time, and what it is made of."""

from __future__ import annotations

from pathlib import PurePath

import streamlit as st

import overlaplab
from overlaplab import charts
from overlaplab.charts.theme import shorten
from overlaplab.dashboard.data import Opened, open_run
from overlaplab.dashboard.folder import HERE
from overlaplab.dashboard.widgets import dark, error_line, milliseconds, show_chart, show_table
from overlaplab.errors import OverlaplabError

_MOST = 12  # runs compared unless the user chooses more
_COLUMNS = {
    "path": "run",
    "strategy": "strategy",
    "bucket_cap_mb": "cap MB",
    "ranks": "ranks",
    "steps": "steps",
    "step_ms_median": "step ms",
    "step_ms_iqr": "step IQR ms",
    "compute_ms_median": "compute ms",
    "comm_ms_median": "comm. ms",
    "exposed_ms_median": "exposed ms",
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
    rows["hidden, % of comm."] = 100 * table["overlap_ratio"]
    st.subheader("Medians over all ranks' steps", anchor=False)
    show_table(rows, "compare_table")


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
