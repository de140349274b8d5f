"""The Timeline page: lanes by rank and stream or thread. What is visible is asked of the server anew, in few marks.

The chart's spec stays the same while the reader zooms with the wheel or drags; only its data is replaced, so that the
browser keeps the zoom. A button or picker sets a new first window, under a new key.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from overlaplab import charts
from overlaplab.analyses.timeline import Timeline, View, timeline_view
from overlaplab.charts.lanes import WINDOW
from overlaplab.charts.theme import MS
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.widgets import (
    dark,
    milliseconds,
    nothing_counts,
    pick_ranks,
    pick_step,
    run_or_stop,
    show_table,
    show_warnings,
)

_RANKS = 8  # shown at first: more lanes do not fit a screen
_BUTTONS = (
    ("Zoom in", "w", 0.5, 0.0),
    ("Zoom out", "s", 2.0, 0.0),
    ("Left", "a", 1.0, -0.5),
    ("Right", "d", 1.0, 0.5),
)
_COLUMNS = {
    "rank": "rank",
    "compute_ns": "compute ms",
    "comm_ns": "communication ms",
    "overlapped_ns": "hidden ms",
    "exposed_comm_ns": "exposed ms",
}


def page() -> None:
    """Draw the page."""
    st.title("Timeline")
    opened = run_or_stop()
    ranks = pick_ranks(opened.run)
    step = pick_step(opened.timeline.steps)
    show_warnings(opened)
    if opened.timeline.events.empty:
        nothing_counts(opened.run)
        return
    known = [trace.rank for trace in opened.run.traces if trace.rank is not None]
    if ranks is None and len(known) > _RANKS:
        ranks = frozenset(known[:_RANKS])
        st.info(f"The first {_RANKS} of {len(known)} ranks are shown. Choose others on the left.")
    _reset(opened, ranks, step)
    _timeline(opened, ranks)


def _reset(opened: Opened, ranks: frozenset[int] | None, step: int | None) -> None:
    """Start at the whole run, or at the chosen step, whenever something else was chosen."""
    chosen = (opened.name, id(opened.run), ranks, step, dark())
    if st.session_state.get("timeline_chosen") == chosen:
        return
    steps = opened.timeline.steps
    if step is not None:
        steps = steps[steps["step"] == step]
    if ranks is not None:
        steps = steps[steps["rank"].isin(ranks)]
    full = (int(steps["start_ns"].min()), int(steps["end_ns"].max())) if len(steps) else opened.timeline.extent
    st.session_state["timeline_chosen"] = chosen
    st.session_state["timeline_full"] = full
    _show(full)


def _show(window: tuple[int, int]) -> None:
    """Make this the chart's first window; a new key makes the browser forget its zoom."""
    st.session_state["timeline_window"] = window
    st.session_state["timeline_turn"] = st.session_state.get("timeline_turn", 0) + 1


def _key() -> str:
    return f"timeline_{st.session_state['timeline_turn']}"


def _visible() -> tuple[int, int]:
    """What the reader sees: the chart's zoom, else its first window; ns from the run's zero."""
    state: Any = st.session_state.get(_key())
    bounds = state["selection"].get(WINDOW, {}).get("begin") if state else None
    if not bounds:
        window: tuple[int, int] = st.session_state["timeline_window"]
        return window
    start, end = sorted(float(bound) for bound in bounds[:2])
    return int(start * MS), max(int(end * MS), int(start * MS) + 1)


def _move(scale: float, shift: float) -> None:
    """Zoom about the middle by a factor, or pan by a share of the window."""
    start, end = _visible()
    middle, half = (start + end) / 2 + shift * (end - start), max((end - start) * scale / 2, 50)
    _show((int(middle - half), int(middle + half)))


@st.fragment
def _timeline(opened: Opened, ranks: frozenset[int] | None) -> None:
    """The buttons, the chart and the figures of the visible window; only this reruns while zooming."""
    with st.container(horizontal=True):
        for label, shortcut, scale, shift in _BUTTONS:
            st.button(label, shortcut=shortcut, on_click=_move, args=(scale, shift))
        st.button("Fit", shortcut="f", on_click=_show, args=(st.session_state["timeline_full"],))
    timeline = opened.timeline
    first, visible = st.session_state["timeline_window"], _visible()
    chart = charts.timeline(_view(timeline, first, ranks), dark=dark(), note=charts.note(opened.run.manifest))
    spec = chart.to_dict()
    spec.pop("data")
    spec.pop("datasets", None)
    spec["usermeta"] = {"embedOptions": {"renderer": "canvas"}}
    # Half a window more on both sides, so that a drag does not run into the void.
    room = (visible[1] - visible[0]) // 2
    drawn = _view(timeline, (visible[0] - room, visible[1] + room), ranks)
    st.vega_lite_chart(
        charts.timeline_rows(drawn),
        spec,
        theme=None,
        width="stretch",
        key=_key(),
        on_select="rerun",
        selection_mode=[WINDOW],
    )
    _figures(_view(timeline, visible, ranks))


def _view(timeline: Timeline, window: tuple[int, int], ranks: frozenset[int] | None) -> View:
    return timeline_view(timeline, start_ns=window[0], end_ns=window[1], ranks=ranks)


def _figures(view: View) -> None:
    """The visible window in numbers, from the raw intervals."""
    events, marks = int(view.marks["events"].sum()), len(view.marks)
    st.subheader(f"Visible: {view.start_ns / MS:,.3f} to {view.end_ns / MS:,.3f} ms", anchor=False)
    st.text(
        f"{events:,} events, drawn as {marks:,} marks. Neighbours too close to tell apart share a mark,"
        " coloured by what takes most of its time; the tooltip counts them."
    )
    shown = milliseconds(view.totals, _COLUMNS)
    shown["exposed, % of the window"] = 100 * view.totals["exposed_comm_ns"] / view.totals["span_ns"]
    comm = view.totals["comm_ns"].astype("Float64").replace(0, None)  # a share of nothing is null
    shown["hidden, % of comm."] = 100 * view.totals["overlapped_ns"] / comm
    show_table(shown, "timeline_table")


page()
