"""Permalinks: what the reader has chosen stands in the query string, and what stands there is chosen.

A page's path is the page. `run` is a run's name below the opened folder, `rank` one rank, `ranks` several (`0,3`),
`step` a `ProfilerStep`'s number, `from` and `to` the Timeline's window in ns from the run's zero, `event` its selected
event.
Whatever stands in a query string is a stranger's: it is checked, and never drawn.

The browser drops the query string when the reader turns to another page, and Streamlit forgets what a page's controls
said. So choices are kept in the session too: a value in the query string that the session has not put there wins, else
the control, else what was kept.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import streamlit as st

__all__ = [
    "EVENT",
    "FROM",
    "RANK",
    "RANKS",
    "RUN",
    "STEP",
    "TO",
    "event_of_query",
    "go_to_timeline",
    "keep_event",
    "keep_window",
    "rank_of_query",
    "timeline_link",
    "window_of_query",
]

RUN, RANK, RANKS, STEP, FROM, TO, EVENT = "run", "rank", "ranks", "step", "from", "to", "event"

_TIMELINE = Path(__file__).with_name("views") / "timeline.py"
_NUMBER = re.compile(r"-?[0-9]{1,18}")  # fits into 64 bits
_EVENT = re.compile(r"([0-9]{1,9})-([0-9]{1,18})")


def timeline_link(
    name: str, *, start_ns: int, end_ns: int, rank: int | None = None, event: tuple[int, int] | None = None
) -> dict[str, str]:
    """The query parameters that open the Timeline page at a spot.

    Parameters: `name`, the run's below the opened folder; the window in ns from the run's zero; `rank`, one that is to
    be shown; `event`, the place of its trace in `run.traces` and its row in `trace.events`, which is then selected.
    """
    found = {RUN: name, FROM: str(int(start_ns)), TO: str(int(end_ns))}
    if rank is not None:
        found[RANK] = str(int(rank))
    if event is not None:
        found[EVENT] = f"{int(event[0])}-{int(event[1])}"
    return found


def go_to_timeline(
    name: str, *, start_ns: int, end_ns: int, rank: int | None = None, event: tuple[int, int] | None = None
) -> NoReturn:
    """Turn to the Timeline page, at the spot of `timeline_link`."""
    st.switch_page(
        _TIMELINE, query_params=timeline_link(name, start_ns=start_ns, end_ns=end_ns, rank=rank, event=event)
    )


def window_of_query() -> tuple[int, int] | None:
    """The query string's window, in ns from the run's zero; None where it names none, or none that could be."""
    start, end = number(st.query_params.get(FROM)), number(st.query_params.get(TO))
    return None if start is None or end is None or start >= end else (start, end)


def event_of_query() -> tuple[int, int] | None:
    """The query string's event, as place in `run.traces` and row in `trace.events`; the run may have neither."""
    found = _EVENT.fullmatch(st.query_params.get(EVENT) or "")
    return None if found is None else (int(found[1]), int(found[2]))


def keep_window(window: tuple[int, int] | None) -> None:
    """Write the Timeline's window into the query string, or take it out; the page does not run anew for that."""
    keep(FROM, None if window is None else str(window[0]))
    keep(TO, None if window is None else str(window[1]))


def keep_event(event: tuple[int, int] | None) -> None:
    """Write the Timeline's selected event into the query string, or take it out."""
    keep(EVENT, None if event is None else f"{event[0]}-{event[1]}")


def keep(name: str, text: str | None) -> None:
    """Write a parameter where it is not so already: each write is a message to the browser."""
    if text is None:
        st.query_params.pop(name, None)
    elif st.query_params.get(name) != text:
        st.query_params[name] = text


def rank_of_query() -> int | None:
    """The query string's one rank, which the run may not have."""
    return number(st.query_params.get(RANK))


def number(text: str | None) -> int | None:
    """The integer that a text is, in ASCII digits; None for anything else."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def numbers(text: str | None) -> tuple[int, ...] | None:
    """The integers of `0,3`; None where one of them is none."""
    found = [number(part) for part in (text or "").split(",")]
    known = [one for one in found if one is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(found) else None
