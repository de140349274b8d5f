"""The Timeline's canvas: every event of a run, drawn in the browser.

A run's events go to the browser once per session, packed (`packing.py`), and the threads of a rank's host when the
reader unfolds them; what is said afterwards, in both directions, is a few numbers. `timeline.js` draws and listens,
with what stands in the other scripts; `timeline.css` dresses it. Names out of a trace reach the page through `fillText`
and `textContent` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st
from msgspec import Struct

from overlaplab.charts.theme import palette
from overlaplab.dashboard.canvas.packing import Packed, pack, pack_host, part_colours
from overlaplab.timeline.host_lanes import HostLanes
from overlaplab.timeline.marks import Timeline
from overlaplab.timeline.window_statistics import chosen_rows

Mark = int | tuple[int, int]
"""A mark's place in `Timeline.events`; in a host's lane the place of its trace, and its own in `HostLanes.events`."""

_HERE = Path(__file__).parent
_SENT = "timeline_payloads_sent"
_NAME = "overlaplab_timeline"
_SCRIPTS = ("events", "hosts", "painting", "words", "stretches", "timeline")
"""Streamlit takes one script: these are one module."""


class CanvasState(Struct, frozen=True, kw_only=True):
    """What the reader sees and has chosen; times in ns from the run's zero."""

    window: tuple[int, int]
    """The visible part of the time axis, once it has rested for 0.4 s."""
    selected: tuple[int, int] | None = None
    """The range that was dragged."""
    mark: Mark | None = None
    """The chosen mark."""
    hosts: tuple[int, ...] = ()
    """The places in `run.traces` of those whose hosts are unfolded."""


def timeline_canvas(
    timeline: Timeline,
    target: CanvasState,
    *,
    find_host: Callable[[int], HostLanes],
    dark: bool,
    key: str,
    turn: int = 0,
    rank: int | None = None,
    ranks: frozenset[int] | None = None,
    predicted: bool = False,
) -> CanvasState:
    """Draw the timeline and return what the reader sees of it.

    The canvas goes to the `target` when that changes, or `turn` does, and else keeps what the reader chose. Where the
    target has no mark, the lanes of `rank` are scrolled into view. `ranks`: the shown ones, None for all. `find_host`
    makes a host's lanes. `predicted`: nobody recorded the run, which is drawn pale, in a dashed frame.
    """
    packed = _pack_once(timeline)
    mark, span = (list(each) if isinstance(each, tuple) else each for each in (target.mark, target.selected))
    request: dict[str, Any] = {
        "id": packed.id,
        "asked": [list(target.window), mark, turn, list(target.hosts), span],
        "lanes": shown_lanes(timeline, ranks),
        "rank": rank,
        "offsets": [*map(list, timeline.offsets)],
        "dark": dark,
        "predicted": predicted,
        "colours": part_colours(palette(dark)),
    }
    # Streamlit returns only values that have a callback.
    callbacks = {f"on_{name}_change": _ignore_change for name in ("view", "missing", "host")}
    with st.container(gap=None):
        answer = _components()[0](data=request, key=key, **callbacks)
        _send(packed, wanted=answer.get("missing") == packed.id)
        _send_host(packed, answer.get("host"), find_host)
    return read_state(answer.get("view"), request, len(timeline.events), timeline.hosts)


def read_state(message: object, request: Mapping[str, Any], events: int, traces: tuple[int, ...] = ()) -> CanvasState:
    """The browser's message, if it is sound and answers what was asked about these bytes; else what was asked."""
    window, event, _, hosts, dragged = request["asked"]
    if not isinstance(message, Mapping) or any(message.get(name) != request[name] for name in ("id", "asked")):
        mark = tuple(event) if isinstance(event, list) else event
        return CanvasState(window=(window[0], window[1]), selected=_span(dragged), mark=mark, hosts=tuple(hosts))
    unfolded = message.get("hosts")
    return CanvasState(
        window=_span(message.get("window")) or (window[0], window[1]),
        selected=_span(message.get("range")),
        mark=_mark(message.get("event"), events, traces),
        hosts=tuple(place for place in traces if place in unfolded) if isinstance(unfolded, list) else (),
    )


def _mark(mark: object, events: int, traces: tuple[int, ...]) -> Mark | None:
    """A mark, as the browser should name it."""
    if type(mark) is int:
        return mark if 0 <= mark < events else None
    if not isinstance(mark, list | tuple) or len(mark) != 2 or not all(type(number) is int for number in mark):
        return None
    place, event = mark
    return (place, event) if place in traces and event >= 0 else None


def shown_lanes(timeline: Timeline, ranks: frozenset[int] | None) -> list[int]:
    """The lanes of these ranks (None for all), and those of no known rank."""
    return [int(lane) for lane in chosen_rows(timeline.lanes, ranks)["lane"]]


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


def _send_host(packed: Packed, wanted: object, find_host: Callable[[int], HostLanes]) -> None:
    """Give the browser the host that it asks for, if the run has it."""
    if not isinstance(wanted, list | tuple) or len(wanted) != 2 or wanted[0] != packed.id:
        return
    place = wanted[1]
    if type(place) is int and place in packed.timeline.hosts:
        host = _pack_host_once(packed.timeline, place, packed, find_host)
        _components()[1](data=host.data, key=f"payload_{host.id}")


@st.cache_resource(max_entries=32, show_spinner=False, hash_funcs={Timeline: id})
def _pack_host_once(timeline: Timeline, place: int, _packed: Packed, _find_host: Callable[[int], HostLanes]) -> Packed:
    return pack_host(_packed, place, _find_host(place))


@st.cache_resource(max_entries=8, show_spinner=False, hash_funcs={Timeline: id})
def _pack_once(timeline: Timeline) -> Packed:
    # The result holds the timeline, so that no other one can get its id while this entry lives.
    return pack(timeline)


@cache
def _components() -> tuple[Any, Any]:
    """The canvas, and what carries its events; both run one script, which keeps the events."""
    script = read_script()
    style, markup = ((_HERE / f"timeline.{kind}").read_text("utf-8") for kind in ("css", "html"))
    return (
        st.components.v2.component(_NAME, html=markup, css=style, js=script),
        st.components.v2.component(f"{_NAME}_events", js=script),
    )


def read_script() -> str:
    """The canvas' scripts as one module."""
    return "\n".join((_HERE / f"{name}.js").read_text("utf-8") for name in _SCRIPTS)


def _ignore_change() -> None:
    pass
