"""The Timeline page: every event of the run on a canvas, and in words and tables what is seen or selected there."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from overlaplab import findings
from overlaplab.columns import column, columns
from overlaplab.dashboard import links
from overlaplab.dashboard.canvas import CanvasState, timeline_canvas
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.downloads import csv_button
from overlaplab.dashboard.folder import run_title
from overlaplab.dashboard.head import open_page
from overlaplab.dashboard.pickers import pick_ranks, pick_step, shown_diagnosis
from overlaplab.dashboard.widgets import is_dark, lead, nothing_counts, show_table, show_warnings
from overlaplab.formats import as_shown, texts
from overlaplab.sections.blocks import TableBlock
from overlaplab.sections.run import window_section
from overlaplab.timeline.event_details import event_details
from overlaplab.timeline.marks import Timeline
from overlaplab.timeline.window_statistics import timeline_window
from overlaplab.words import shorten

Spot = tuple[tuple[int, int], int | None]  # a window in ns from the run's zero; a mark's place in `Timeline.events`
Linked = tuple[tuple[int, int] | None, tuple[int, int] | None]  # what a query string says of window and event

_KEY = "timeline_canvas"
_ASKED = "timeline_asked"
_WRITTEN = "timeline_written"
_PEERS = columns("collectives", "rank", "launch_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns")
_PEERS_BESIDE = columns("collectives", "rank", "start_ns", "wait_ns", "exposed_ns")


def page() -> None:
    """Draw the page."""
    head = open_page("Timeline")
    opened = head.opened
    ranks = pick_ranks(opened.run)
    first = None if opened.diagnosis is None else opened.diagnosis.step
    step = pick_step(opened.timeline.steps, findings.first_shown(first))
    head.show(shown_diagnosis(opened))
    if opened.timeline.events.empty or opened.summary.empty:
        nothing_counts(opened)
        return
    show_warnings(opened)
    window, event = links.window_of_query(), links.event_of_query()
    links.warn_of_spot(
        has_window=_within_run(opened.timeline, window) is not None,
        has_event=event is not None and _place_of_mark(opened.timeline, event) is not None,
    )
    _timeline(opened, ranks, _requested_spot(opened, ranks, step))


def _requested_spot(opened: Opened, ranks: frozenset[int] | None, step: int | None) -> Spot:
    """What the canvas is to show: a link's spot, else the chosen step, else the run; the same until that changes."""
    of_run = (opened.name, id(opened.run))
    chosen = (*of_run, step)
    before: tuple[object, Spot | None, int] = st.session_state.get(_ASKED, (None, None, 0))
    of_written, written = _written_spots()
    linked = links.window_of_query(), links.event_of_query()
    # A rerun may bring an address that this page has replaced meanwhile. Other pages and the browser's arrows may not.
    stays = _KEY in st.session_state and not _goes_back()
    followed = _spot(opened.timeline, linked) if linked not in (written if stays else written[-1:]) else None
    spot = before[1]
    if followed is not None:
        spot = followed
    elif before[0] != chosen:
        spot = None
    elif not stays and written and of_written == of_run:
        spot = _spot(opened.timeline, written[-1])  # the reader comes back from another page
    spot = spot or (_whole_window(opened, ranks, step), None)
    st.session_state[_ASKED] = chosen, spot, before[2] + (spot is not before[1])
    return spot


def _goes_back() -> bool:
    """Whether the browser's arrows brought the reader to this address."""
    return bool(getattr(get_script_run_ctx(), "is_history_navigation", False))


def _written_spots() -> tuple[object, list[Linked]]:
    """The run that this page last wrote into the address, and the windows and events of late, the last one last."""
    spots: tuple[object, list[Linked]] = st.session_state.get(_WRITTEN, (None, []))
    return spots


def _spot(timeline: Timeline, linked: Linked) -> Spot | None:
    """What a link asks for, as far as this run has it."""
    window, event = _within_run(timeline, linked[0]), linked[1]
    mark = None if event is None else _place_of_mark(timeline, event)
    if window is None and mark is not None:
        start, end = _extent(timeline, mark)
        room = max(3 * (end - start), 1000)
        window = start - room, end + room
    return None if window is None else (window, mark)


def _within_run(timeline: Timeline, window: tuple[int, int] | None) -> tuple[int, int] | None:
    """A link's window, no wider than the run and as much on both sides; None where it lies beside the run."""
    start, end = timeline.extent
    if window is None or window[0] >= end or window[1] <= start:
        return None
    return max(window[0], 2 * start - end), min(window[1], 2 * end - start)


def _is_event(timeline: Timeline, mark: int) -> bool:
    return int(timeline.events["event"].to_numpy()[mark]) >= 0


def _extent(timeline: Timeline, mark: int) -> tuple[int, int]:
    event = timeline.events.iloc[mark]
    return int(event["start_ns"]), int(event["end_ns"])


def _place_of_mark(timeline: Timeline, event: tuple[int, int]) -> int | None:
    """The place of an event's mark."""
    here = (timeline.events["event"] == event[1]) & (timeline.events["trace"] == event[0])
    places = np.flatnonzero(here.to_numpy())
    return int(places[-1]) if len(places) else None  # the lanes of streams come last


def _whole_window(opened: Opened, ranks: frozenset[int] | None, step: int | None) -> tuple[int, int]:
    """From the first start to the last end of the step on these ranks; for None of the step that speaks for the run."""
    steps = opened.timeline.steps
    diagnosis = opened.diagnosis
    if step is None and diagnosis is not None:
        step = diagnosis.step
    if step is not None:
        steps = steps[(steps["step"] == step).fillna(False)]
    if ranks is not None:
        steps = steps[steps["rank"].isin(ranks)]
    return (int(steps["start_ns"].min()), int(steps["end_ns"].max())) if len(steps) else opened.timeline.extent


@st.fragment
def _timeline(opened: Opened, ranks: frozenset[int] | None, spot: Spot) -> None:
    """The canvas and all that depends on it; only this runs again when the reader has moved."""
    above = st.container()
    with st.container(key="timeline_beside"):
        left, right = st.columns([65, 35], gap="small")
    with left:
        state = timeline_canvas(
            opened.timeline,
            window=spot[0],
            event=spot[1],
            dark=is_dark(),
            key=_KEY,
            turn=st.session_state[_ASKED][2],
            rank=None if opened.diagnosis is None else opened.diagnosis.rank,
            ranks=ranks,
            offsets=dict(opened.timeline.offsets),
            predicted=opened.run.manifest is not None and opened.run.manifest.predicted is not None,
        )
    _keep(opened, state)
    visible = timeline_window(opened.timeline, *state.window, ranks)
    selected, what = _selection(opened.timeline, state)
    chosen = None if selected is None else timeline_window(opened.timeline, *selected, ranks)
    section = window_section(
        visible, chosen, what, opened.diagnosis, whole=state.window == _whole_window(opened, ranks, None)
    )
    with above:
        lead(section.lead)
    with right, st.container(gap="xsmall"):
        if state.mark is not None and _is_event(opened.timeline, state.mark):
            _event(opened, state.mark)
        *tables, kernels = (cast(TableBlock, block) for block in section.blocks)
        for block in tables:
            _table(block)
        _kernels(kernels)


def _selection(timeline: Timeline, state: CanvasState) -> tuple[tuple[int, int] | None, str]:
    """The dragged range; else the extent of a clicked mark that is no event (a step, an exposed stretch); and words."""
    if state.selected is not None or state.mark is None or _is_event(timeline, state.mark):
        return state.selected, "Drag over the timeline to select a range, or click a step or an exposed stretch."
    start, end = _extent(timeline, state.mark)
    event = timeline.events.iloc[state.mark]
    lane = timeline.lanes.iloc[int(event["lane"])]
    where = "" if pd.isna(lane["rank"]) else f" of rank {lane['rank']}"
    return (start, max(end, start + 1)), f"This is {shorten(str(event['name']), 80)}{where}."


def _keep(opened: Opened, state: CanvasState) -> None:
    """Write what is seen and selected into the query string, so that the address is a link to it."""
    event = None
    if state.mark is not None:
        event_row = opened.timeline.events.iloc[state.mark]
        event = (int(event_row["trace"]), int(event_row["event"])) if event_row["event"] >= 0 else None
    spot = st.session_state[_ASKED][1]
    if _WRITTEN not in st.session_state and (state.window, state.mark) == spot and links.window_of_query() is None:
        return  # nothing was moved: the plain address says as much
    links.keep_spot(state.window, event)
    st.session_state[_WRITTEN] = (opened.name, id(opened.run)), [*_written_spots()[1][-20:], (state.window, event)]


def _event(opened: Opened, mark: int) -> None:
    """The clicked event, and the collective that it is part of."""
    row = opened.timeline.events.iloc[mark]
    details = event_details(opened.run, int(row["trace"]), int(row["event"]))
    facts, collective = pd.DataFrame(findings.event_facts(details), columns=["what", "value"]), details["collective"]
    _facts(facts)
    if collective is not None:
        peers = pd.DataFrame(collective["peers"]).astype("Int64")
        _table(
            TableBlock(
                key="timeline_peers",
                caption="Its collective by rank",
                frame=peers,
                columns=_PEERS,
                narrow=_PEERS_BESIDE,
            )
        )


def _facts(facts: pd.DataFrame) -> None:
    """What is known of one event, all of it to be seen at once: a table would cut long names."""
    _headline("Selected event", facts, "timeline_event")
    with st.container(key="timeline_facts", gap=None):
        for what, value in facts.itertuples(index=False):
            st.text(f"{what}: {value}")


def _table(block: TableBlock) -> None:
    """A headline, a table, and the same as CSV."""
    _headline(block.caption, as_shown(block.frame, block.wide or block.columns), block.key)
    show_table(block, narrow=True)


def _kernels(block: TableBlock) -> None:
    """A line each: kernels of templates have names that no column is wide enough for. See main.py for their look."""
    _headline(block.caption, as_shown(block.frame, block.columns), block.key)
    with st.container(key=block.key, gap=None):
        busy = texts(block.frame["busy_ns"], column("kernels", "busy_ns"))
        for took, name in zip(busy, block.frame["name"], strict=True):
            st.text(f"{took} ms  {name}")


def _headline(title: str, table: pd.DataFrame, key: str) -> None:
    """What a table shows, and at the right the table as CSV."""
    look: dict[str, Any] = {"horizontal_alignment": "distribute", "vertical_alignment": "bottom"}
    with st.container(horizontal=True, key=f"headline_{key}", **look):
        st.subheader(title, anchor=False, width="content")
        csv_button("CSV", table, key, run_title(st.session_state["folder"], st.session_state["run"]))


page()
