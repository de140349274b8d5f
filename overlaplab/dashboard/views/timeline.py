"""The Timeline page: every event of the run on a canvas, and in words and tables what is seen or selected there."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
import streamlit as st
from msgspec.structs import replace
from streamlit.runtime.scriptrunner import get_script_run_ctx

from overlaplab import findings
from overlaplab.analyses.across_runs.settings import is_predicted
from overlaplab.columns import column, columns
from overlaplab.dashboard import links
from overlaplab.dashboard.canvas import CanvasState, Mark, timeline_canvas
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.downloads import csv_button
from overlaplab.dashboard.folder import run_title
from overlaplab.dashboard.head import begin_page
from overlaplab.dashboard.pickers import pick_ranks, pick_step, shown_diagnosis
from overlaplab.dashboard.widgets import is_dark, show_lead, show_nothing_counts, show_table, show_warnings
from overlaplab.formats import as_shown, texts
from overlaplab.sections.blocks import TableBlock
from overlaplab.sections.run import window_section
from overlaplab.timeline.event_details import event_details
from overlaplab.timeline.host_lanes import HostLanes, host_lanes
from overlaplab.timeline.marks import Timeline
from overlaplab.timeline.window_statistics import chosen_rows, timeline_window
from overlaplab.words import shorten, to_ms

_KEY = "timeline_canvas"
_ASKED = "timeline_asked"
_WRITTEN = "timeline_written"
_PEERS = columns("collectives", "rank", "launch_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns")
_PEERS_BESIDE = columns("collectives", "rank", "start_ns", "wait_ns", "exposed_ns")


def page() -> None:
    head = begin_page("Timeline")
    opened = head.opened
    with head.finding_why():  # the canvas shows exposed time by its causes
        _ = opened.timeline
    ranks = pick_ranks(opened.run)
    step = pick_step(opened.timeline.steps, findings.first_shown(opened.window.get("step")))
    if opened.timeline.events.empty or opened.summary.empty:
        head.show(shown_diagnosis(opened))
        show_nothing_counts(opened)
        return
    show_warnings(opened)
    linked = links.spot_of_query()
    if linked not in _written_spots()[1]:  # else this page wrote it, perhaps of the run before
        links.warn_of_spot(
            has_window=_within_run(opened.timeline, linked.window) is not None,
            has_event=linked.event is not None and _find_mark(opened, linked.event) is not None,
        )
    body = st.container()
    with head.finding_why(), body:  # the canvas is there before the verdict, which may take longer
        _timeline(opened, ranks, _requested_spot(opened, ranks, step))
        diagnosis = shown_diagnosis(opened)
    head.show(diagnosis)


def _requested_spot(opened: Opened, ranks: frozenset[int] | None, step: int | None) -> CanvasState:
    """What the canvas is to show: a link's spot, else the chosen step, else the one that speaks for the run.

    It is the same until one of these changes.
    """
    of_run = _identity(opened)
    chosen = (*of_run, step)
    chosen_before, spot_before, turn = st.session_state.get(_ASKED, (None, None, 0))
    of_written, written = _written_spots()
    linked = links.spot_of_query()
    # A rerun may bring an address that this page has replaced meanwhile. Other pages and the browser's arrows may not.
    stays = _KEY in st.session_state and not _goes_back()
    followed = _spot(opened, linked) if linked not in (written if stays else written[-1:]) else None
    spot: CanvasState | None = spot_before
    if followed is not None:
        spot = followed
    elif chosen_before != chosen:
        spot = None
    elif not stays and written and of_written == of_run:
        spot = _spot(opened, written[-1])  # the reader comes back from another page
    spot = spot or CanvasState(window=_whole_window(opened, ranks, step))
    st.session_state[_ASKED] = chosen, spot, turn + (spot is not spot_before)
    return spot


def _identity(opened: Opened) -> tuple[str, int]:
    return opened.name, id(opened.run)


def _goes_back() -> bool:
    """Whether the browser's arrows brought the reader to this address."""
    return bool(getattr(get_script_run_ctx(), "is_history_navigation", False))


def _written_spots() -> tuple[object, list[links.Spot]]:
    """The run that this page last wrote into the address, and the spots of late, the last one last."""
    spots: tuple[object, list[links.Spot]] = st.session_state.get(_WRITTEN, (None, []))
    return spots


def _spot(opened: Opened, linked: links.Spot) -> CanvasState | None:
    """What a link asks for, as far as this run has it."""
    window, dragged = (_within_run(opened.timeline, span) for span in (linked.window, linked.dragged))
    mark, hosts = None if linked.event is None else _find_mark(opened, linked.event), set(linked.hosts)
    if window is None and mark is not None:
        start, end = _extent(opened, mark)
        room = max(3 * (end - start), 1000)
        window = start - room, end + room
    if isinstance(mark, tuple):
        hosts.add(mark[0])
    unfolded = tuple(place for place in opened.timeline.hosts if place in hosts)
    return None if window is None else CanvasState(window=window, mark=mark, hosts=unfolded, selected=dragged)


def _within_run(timeline: Timeline, window: tuple[int, int] | None) -> tuple[int, int] | None:
    """A link's window, cut to the run and as much again on either side; None where it lies beside the run."""
    start, end = timeline.extent
    events = timeline.events  # some may lie outside the steps, where the canvas shows them, too
    first, last = (start, end) if events.empty else (int(events["start_ns"].min()), int(events["end_ns"].max()))
    if window is None or window[0] >= max(end, last) or window[1] <= min(start, first):
        return None
    return max(window[0], min(2 * start - end, first)), min(window[1], max(2 * end - start, last))


def _find_host(opened: Opened, place: int) -> HostLanes:
    """The lanes of the host of `run.traces[place]`, made once."""
    return opened.get_or_make(("host", place), lambda: host_lanes(opened.run, place))


def _find_event(opened: Opened, mark: Mark) -> tuple[int, int] | None:
    """The trace and the row of a mark's event; None for a step or an exposed stretch, and what is not there."""
    if isinstance(mark, tuple):
        rows = _find_host(opened, mark[0]).events["event"].to_numpy()
        return (mark[0], int(rows[mark[1]])) if mark[1] < len(rows) else None
    event = opened.timeline.events.iloc[mark]
    return (int(event["trace"]), int(event["event"])) if event["event"] >= 0 else None


def _extent(opened: Opened, mark: Mark) -> tuple[int, int]:
    events = opened.timeline.events
    if isinstance(mark, tuple):
        place, mark = mark
        events = _find_host(opened, place).events
    return int(events["start_ns"].iloc[mark]), int(events["end_ns"].iloc[mark])


def _find_mark(opened: Opened, event: tuple[int, int]) -> Mark | None:
    """The mark of an event, given by its trace and row: on a stream, else of the host."""
    place, row = event
    events = opened.timeline.events
    places = np.flatnonzero(((events["event"] == row) & (events["trace"] == place)).to_numpy())
    if len(places):
        return int(places[-1])  # the lanes of streams come last
    if place not in opened.timeline.hosts:
        return None
    in_host = np.flatnonzero(_find_host(opened, place).events["event"].to_numpy() == row)
    return (place, int(in_host[0])) if len(in_host) else None


def _whole_window(opened: Opened, ranks: frozenset[int] | None, step: int | None) -> tuple[int, int]:
    """From the first start to the last end of the step on these ranks; for None of the step that speaks for the run."""
    steps = opened.timeline.steps
    step = opened.window.get("step") if step is None else step
    if step is not None:
        steps = steps[(steps["step"] == step).fillna(False)]
    if ranks is not None:
        steps = steps[steps["rank"].isin(ranks)]
    return (int(steps["start_ns"].min()), int(steps["end_ns"].max())) if len(steps) else opened.timeline.extent


def _verdict_step(opened: Opened, ranks: frozenset[int] | None) -> int | None:
    """The step that speaks for the run, where one of these ranks recorded it."""
    step, steps = opened.window.get("step"), chosen_rows(opened.timeline.steps, ranks)
    return step if step is not None and bool(steps["step"].eq(step).any()) else None


@st.fragment
def _timeline(opened: Opened, ranks: frozenset[int] | None, spot: CanvasState) -> None:
    """The canvas and all that depends on it; only this runs again when the reader has moved."""
    above = st.container()
    state = timeline_canvas(
        opened.timeline,
        spot,
        find_host=partial(_find_host, opened),
        dark=is_dark(),
        key=_KEY,
        turn=st.session_state[_ASKED][2],
        rank=opened.window.get("rank"),
        ranks=ranks,
        predicted=is_predicted(opened.run),
    )
    event = None if state.mark is None else _find_event(opened, state.mark)
    selected, what = _selection(opened.timeline, state, event)
    _keep(opened, replace(state, selected=selected), event, spot)
    visible = timeline_window(opened.timeline, *state.window, ranks)
    chosen = None if selected is None else timeline_window(opened.timeline, *selected, ranks)
    step = _verdict_step(opened, ranks) if state.window == _whole_window(opened, ranks, None) else None
    of_verdict = len(visible.ranks) == 1 and (ranks is None or opened.window.get("rank") in ranks)
    section = window_section(visible, chosen, what, step, opened.why_chosen if of_verdict else findings.OF_VERDICT)
    with above:
        show_lead(section.lead)
    with st.container(key="timeline_below", gap="small"):
        if event is not None:
            _event(opened, event)
        *tables, kernels = (cast(TableBlock, block) for block in section.blocks)
        span = selected or state.window
        beside = iter(st.columns([4, 3, 3] if len(tables) > 1 else [4, 6], gap="medium"))
        for block in tables:
            with next(beside):
                _table(block, span)
        with next(beside):
            _kernels(kernels, span)


def _selection(
    timeline: Timeline, state: CanvasState, event: tuple[int, int] | None
) -> tuple[tuple[int, int] | None, str]:
    """The dragged range; else the extent of a clicked mark that is no event (a step, an exposed stretch); and words."""
    mark = state.mark
    if state.selected is None and event is None and isinstance(mark, int):
        row = timeline.events.iloc[mark]
        start, end = int(row["start_ns"]), int(row["end_ns"])
        lane = timeline.lanes.iloc[int(row["lane"])]
        where = "" if pd.isna(lane["rank"]) else f" of rank {lane['rank']}"
        return (start, max(end, start + 1)), f"This is {shorten(str(row['name']), 80)}{where}."
    return state.selected, "Drag over the timeline to select a range, or click a step or an exposed stretch."


def _keep(opened: Opened, state: CanvasState, event: tuple[int, int] | None, spot: CanvasState) -> None:
    """Write what is seen and selected into the query string, so that the address is a link to it."""
    if _WRITTEN not in st.session_state and state == spot and links.spot_of_query().window is None:
        return  # nothing was moved: the plain address says as much
    linked = links.Spot(state.window, event, state.hosts, state.selected)
    links.keep_spot(linked)
    st.session_state[_WRITTEN] = _identity(opened), [*_written_spots()[1][-20:], linked]


def _event(opened: Opened, event: tuple[int, int]) -> None:
    """The selected event, and the collective that it is part of."""
    details = event_details(opened.run, *event)
    facts, collective = pd.DataFrame(findings.event_facts(details), columns=["what", "value"]), details["collective"]
    if collective is None:
        _facts(facts)
        return
    left, right = st.columns([63, 37], gap="medium")
    with left:
        _facts(facts)
    peers = pd.DataFrame(collective["peers"]).astype("Int64")
    with right:
        look: dict[str, Any] = {"columns": _PEERS, "narrow": _PEERS_BESIDE}
        _table(TableBlock(key="timeline_peers", caption="Its collective by rank", frame=peers, **look))


def _facts(facts: pd.DataFrame) -> None:
    """What is known of one event, all of it to be seen at once: a table would cut long names.

    The first line of each is the label: see main.py for its look.
    """
    _headline("Selected event", facts, "timeline_event")
    with st.container(key="timeline_facts", gap=None):
        for what, value in facts.itertuples(index=False):
            st.text(f"{what}\n{value}", width="stretch")


def _table(block: TableBlock, span: tuple[int, int] | None = None) -> None:
    """A headline, a table, and the same as CSV; `span` is the window that it is about."""
    _headline(block.caption, _with_span(as_shown(block.frame, block.wide or block.columns), span), block.key)
    show_table(block, narrow=True)


def _kernels(block: TableBlock, span: tuple[int, int]) -> None:
    """A line each: kernels of templates have names that no column is wide enough for. See main.py for their look."""
    _headline(block.caption, _with_span(as_shown(block.frame, block.columns), span), block.key)
    with st.container(key=block.key, gap=None):
        busy = texts(block.frame["busy_ns"], column("kernels", "busy_ns"))
        for took, name in zip(busy, block.frame["name"], strict=True):
            st.text(f"{took} ms  {name}")


def _with_span(table: pd.DataFrame, span: tuple[int, int] | None) -> pd.DataFrame:
    """The table, each row with the window that it is about: a file has no headline."""
    return table if span is None else table.assign(**dict(zip(("from (ms)", "to (ms)"), map(to_ms, span), strict=True)))


def _headline(title: str, table: pd.DataFrame, key: str) -> None:
    """What a table shows, and at the right the table as CSV."""
    look: dict[str, Any] = {"horizontal_alignment": "distribute", "vertical_alignment": "bottom"}
    with st.container(horizontal=True, key=f"headline_{key}", **look):
        st.subheader(title, anchor=False, width="content")
        csv_button("CSV", table, key, run_title(st.session_state["folder"], st.session_state["run"]))


page()
