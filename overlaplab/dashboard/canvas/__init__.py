"""The Timeline's canvas: every event of a run, drawn in the browser.

A run's events go to the browser once per session, packed (`packing.py`); what is said afterwards, in both directions,
is a few numbers. `timeline.js` draws and listens, `timeline.css` dresses it. Names out of a trace reach the page
through `fillText` and `textContent` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

from overlaplab.charts.theme import palette
from overlaplab.dashboard.canvas.packing import Packed, pack, part_colours
from overlaplab.timeline.marks import Timeline

__all__ = ["CanvasState", "timeline_canvas"]

_HERE = Path(__file__).parent
_SENT = "timeline_payloads_sent"
_NAME = "overlaplab_timeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanvasState:
    """What the reader sees and has chosen; times in ns from the run's zero."""

    window: tuple[int, int]
    """The visible part of the time axis, once it has rested for 0.4 s."""
    selected: tuple[int, int] | None
    """The range that was dragged."""
    mark: int | None
    """The clicked mark: its place in `Timeline.events`."""


def timeline_canvas(
    timeline: Timeline,
    *,
    window: tuple[int, int],
    event: int | None,
    dark: bool,
    key: str,
    turn: int = 0,
    rank: int | None = None,
    ranks: frozenset[int] | None = None,
    offsets: Mapping[int | None, int] | None = None,
    predicted: bool = False,
) -> CanvasState:
    """Draw the timeline and return what the reader sees of it.

    `window` (ns from the run's zero) and `event` (a place in `timeline.events`) are what is asked for: the canvas obeys
    when they change, or `turn` does, and else keeps what the reader chose. Where there is no event, the lanes of `rank`
    are scrolled into view. `ranks`: the shown ones, None for all.
    `offsets`: by how many ns each rank's clock was corrected, of those that were. `predicted`: nobody recorded the run,
    which is drawn pale, in a dashed frame.
    """
    packed = _pack_once(timeline)
    request: dict[str, Any] = {
        "id": packed.id,
        "asked": [list(window), event, turn],
        "lanes": shown_lanes(timeline, ranks),
        "rank": rank,
        "offsets": [[rank, offset] for rank, offset in (offsets or {}).items()],
        "dark": dark,
        "predicted": predicted,
        "colours": part_colours(palette(dark)),
    }
    with st.container(gap=None):
        answer = _components()[0](
            data=request, key=key, on_view_change=_ignore_change, on_missing_change=_ignore_change
        )
        _send(packed, wanted=answer.get("missing") == packed.id)
    return read_state(answer.get("view"), request, len(timeline.events))


def read_state(message: object, request: Mapping[str, Any], events: int) -> CanvasState:
    """The browser's message, if it is sound and answers what was asked about these bytes; else what was asked."""
    window, event, _ = request["asked"]
    if not isinstance(message, Mapping) or [message.get("id"), message.get("asked")] != [
        request["id"],
        request["asked"],
    ]:
        return CanvasState(window=(window[0], window[1]), selected=None, mark=event)
    mark = message.get("event")
    return CanvasState(
        window=_span(message.get("window")) or (window[0], window[1]),
        selected=_span(message.get("range")),
        mark=mark if type(mark) is int and 0 <= mark < events else None,
    )


def shown_lanes(timeline: Timeline, ranks: frozenset[int] | None) -> list[int]:
    """The lanes of these ranks (None for all), and those of no known rank."""
    lanes = timeline.lanes
    if ranks is not None:
        lanes = lanes[lanes["rank"].isin(ranks) | lanes["rank"].isna()]
    return [int(lane) for lane in lanes["lane"]]


def _span(bounds: object) -> tuple[int, int] | None:
    """Two whole numbers in order, as the browser should send them."""
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        return None
    if not all(isinstance(bound, int | float) and abs(bound) < 2**62 for bound in bounds):
        return None
    start, end = int(bounds[0]), int(bounds[1])
    return (start, end) if start < end else None


def _send(packed: Packed, *, wanted: bool) -> None:
    """Give the browser the events, unless it has them: it keeps them when this element goes away again."""
    sent: set[str] = st.session_state.setdefault(_SENT, set())
    if packed.id not in sent or wanted:
        _components()[1](data=packed.data, key=f"payload_{packed.id}")
        sent.add(packed.id)


@st.cache_resource(max_entries=8, show_spinner=False, hash_funcs={Timeline: id})
def _pack_once(timeline: Timeline) -> Packed:
    # The result holds the timeline, so that no other one can get its id while this entry lives.
    return pack(timeline)


@cache
def _components() -> tuple[Any, Any]:
    """The canvas, and what carries its events; both run one script, which keeps the events."""
    script, style, markup = ((_HERE / f"timeline.{kind}").read_text("utf-8") for kind in ("js", "css", "html"))
    return (
        st.components.v2.component(_NAME, html=markup, css=style, js=script),
        st.components.v2.component(f"{_NAME}_events", js=script),
    )


def _ignore_change() -> None:
    """Streamlit returns only values that have a callback."""
