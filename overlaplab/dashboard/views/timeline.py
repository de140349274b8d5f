"""The Timeline page: every event of the run on a canvas, and in words and tables what is seen or selected there."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

import overlaplab
from overlaplab import charts
from overlaplab.analyses.event_details import event_details
from overlaplab.analyses.timeline import Timeline
from overlaplab.analyses.window_statistics import WindowStatistics, timeline_window
from overlaplab.charts.theme import MS, ms
from overlaplab.charts.window_words import window_advice, window_verdict
from overlaplab.dashboard import links
from overlaplab.dashboard.canvas import CanvasState, timeline_canvas
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.downloads import csv_of
from overlaplab.dashboard.event_words import event_rows, mark_rows, peer_rows
from overlaplab.dashboard.widgets import (
    dark,
    lead,
    milliseconds,
    nothing_counts,
    page_head,
    pick_ranks,
    pick_step,
    run_or_stop,
    show_table,
    show_warnings,
    what_to_do,
)
from overlaplab.words import shorten

Spot = tuple[tuple[int, int], int | None]  # a window in ns from the run's zero; a mark's place in `Timeline.events`

_KEY = "timeline_canvas"
_ASKED = "timeline_asked"
_WRITTEN = "timeline_written"
_COLUMNS = {
    "rank": "rank",
    "busy_ns": "busy ms",
    "compute_ns": "compute ms",
    "comm_ns": "comm. ms",
    "overlapped_ns": "overlapped ms",
    "exposed_comm_ns": "exposed ms",
    "idle_ns": "idle ms",
}


def page() -> None:
    """Draw the page."""
    page_head(
        "Timeline",
        "What every rank's streams did over time, all by one clock; in red, communication while nothing computes.",
    )
    opened = run_or_stop()
    ranks = pick_ranks(opened.run)
    step = pick_step(opened.timeline.steps)
    show_warnings(opened)
    if opened.timeline.events.empty:
        nothing_counts(opened.run)
        return
    _timeline(opened, ranks, _asked(opened, ranks, step))


def _asked(opened: Opened, ranks: frozenset[int] | None, step: int | None) -> Spot:
    """What the canvas is to show: a link's spot, else the chosen step, else the run; the same until that changes."""
    chosen = (opened.name, id(opened.run), step)
    kept: tuple[object, Spot | None] = st.session_state.get(_ASKED, (None, None))
    before, spot = kept
    written: tuple[object, Spot | None] = st.session_state.get(_WRITTEN, (None, None))
    link = _linked(opened)
    if link is not None and (written[0] != chosen or link != written[1]):
        spot = link
    elif before != chosen or spot is None:
        spot = _whole(opened.timeline, ranks, step), None
    elif _KEY not in st.session_state and written[0] == chosen and written[1] is not None:
        spot = written[1]  # the reader comes back from another page
    st.session_state[_ASKED] = chosen, spot
    return spot


def _linked(opened: Opened) -> Spot | None:
    """What the query string asks for, as far as this run has it."""
    window, event = links.window_of_query(), links.event_of_query()
    mark = None if event is None else _mark_of(opened.timeline, event)
    if window is None and mark is not None:
        found = opened.timeline.events.iloc[mark]
        start, end = int(found["start_ns"]), int(found["end_ns"])
        room = max(3 * (end - start), 1000)
        window = start - room, end + room
    return None if window is None else (window, mark)


def _mark_of(timeline: Timeline, event: tuple[int, int]) -> int | None:
    """The place of an event's mark."""
    here = (timeline.events["event"] == event[1]) & (timeline.events["trace"] == event[0])
    places = np.flatnonzero(here.to_numpy())
    return int(places[-1]) if len(places) else None  # the lanes of streams come last


def _whole(timeline: Timeline, ranks: frozenset[int] | None, step: int | None) -> tuple[int, int]:
    """From the first start to the last end of the step on these ranks; of all steps for None."""
    steps = timeline.steps
    if step is not None:
        steps = steps[(steps["step"] == step).fillna(False)]
    if ranks is not None:
        steps = steps[steps["rank"].isin(ranks)]
    return (int(steps["start_ns"].min()), int(steps["end_ns"].max())) if len(steps) else timeline.extent


@st.fragment
def _timeline(opened: Opened, ranks: frozenset[int] | None, asked: Spot) -> None:
    """The canvas and all that depends on it; only this runs again when the reader has moved."""
    above = st.container()
    state = timeline_canvas(
        opened.timeline,
        window=asked[0],
        event=asked[1],
        dark=dark(),
        key=_KEY,
        ranks=ranks,
        offsets=_offsets(opened),
    )
    _keep(opened, state)
    visible = timeline_window(opened.timeline, *state.window, ranks)
    with above:
        lead(window_verdict(visible), charts.note(opened.run.manifest))
    chosen = visible if state.selected is None else timeline_window(opened.timeline, *state.selected, ranks)
    if state.mark is not None:
        _event(opened, state.mark)
    _statistics(chosen, "Visible" if state.selected is None else "Selected")
    what_to_do(window_advice(chosen))


def _offsets(opened: Opened) -> dict[int | None, int]:
    """By how many ns the clocks were corrected that were."""
    table = overlaplab.clocks(opened.run)
    table = table[table["applied"]]
    return {None if pd.isna(r) else int(r): int(o) for r, o in zip(table["rank"], table["offset_ns"], strict=True)}


def _keep(opened: Opened, state: CanvasState) -> None:
    """Write what is seen and selected into the query string, so that the address is a link to it."""
    event = None
    if state.mark is not None:
        found = opened.timeline.events.iloc[state.mark]
        event = (int(found["trace"]), int(found["event"])) if found["event"] >= 0 else None
    chosen, asked = st.session_state[_ASKED]
    written = st.session_state.get(_WRITTEN)
    if written is None and (state.window, state.mark) == asked and links.window_of_query() is None:
        return  # nothing was moved: the plain address says as much
    links.keep_window(state.window)
    links.keep_event(event)
    mark = None if event is None else _mark_of(opened.timeline, event)
    st.session_state[_WRITTEN] = chosen, (state.window, mark)


def _statistics(found: WindowStatistics, word: str) -> None:
    """A window in numbers, from raw events."""
    start, end = found.start_ns, found.end_ns
    told = f"{ms(end - start)}, {found.events:,} events on streams. Drag over the timeline to select a range."
    shown = milliseconds(found.ranks, _COLUMNS)
    shown["exposed, % of window"] = 100 * found.ranks["exposed_comm_ns"] / found.ranks["span_ns"]
    comm = found.ranks["comm_ns"].astype("Float64").replace(0, None)  # a share of nothing is null
    shown["overlapped, % of comm."] = 100 * found.ranks["overlapped_ns"] / comm
    _table(f"{word}: {start / MS:,.3f} to {end / MS:,.3f} ms", told, shown, "timeline_ranks")
    kernels = pd.DataFrame(
        {
            "name": [shorten(name, 200) for name in found.kernels["name"]],
            "counts as": found.kernels["part"],
            "events": found.kernels["events"],
            "busy, sum over ranks (ms)": found.kernels["busy_ns"] / MS,
        }
    )
    _table("What took most time there", None, kernels, "timeline_kernels")


def _event(opened: Opened, mark: int) -> None:
    """The clicked event, and beside it the collective that it is part of."""
    found = opened.timeline.events.iloc[mark]
    if found["event"] < 0:
        _facts(mark_rows(str(found["name"]), found["start_ns"], found["end_ns"]))
        return
    details = event_details(opened.run, int(found["trace"]), int(found["event"]))
    if details["collective"] is None:
        _facts(event_rows(details))
        return
    left, right = st.columns(2, gap="medium")
    with left:
        _facts(event_rows(details))
    with right:
        _table("Its collective by rank", None, peer_rows(details["collective"]), "timeline_peers")


def _facts(rows: pd.DataFrame) -> None:
    """What is known of one event, all of it to be seen at once."""
    _headline("Selected event", rows, "timeline_event")
    wide = {"what": st.column_config.TextColumn(width=150), "value": st.column_config.TextColumn(width="large")}
    st.dataframe(
        rows,
        hide_index=True,
        width="stretch",
        height="content",
        row_height=28,
        column_config=wide,
        key="timeline_event_table",
    )


def _table(title: str, told: str | None, table: pd.DataFrame, key: str) -> None:
    """A headline, a table, and the same as CSV."""
    _headline(title, table, key)
    if told is not None:
        st.text(told)
    show_table(table, key)


def _headline(title: str, table: pd.DataFrame, key: str) -> None:
    """What a table shows, and at the right the table as CSV."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.subheader(title, anchor=False, width="content")
        st.download_button(
            "CSV", partial(csv_of, table), f"{key}.csv", "text/csv", f"{key}_csv", on_click="ignore", type="tertiary"
        )


page()
