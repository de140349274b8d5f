"""From a table's row to its spot on the Timeline page."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from overlaplab.analyses import rows_of
from overlaplab.causes import Cause
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.links import Spot, go_to_timeline

_ROOM_NS = 20_000  # on both sides of what is short
_HOST_CAUSES = [word for cause in Cause if cause.origin == "host" for word in (cause.value, cause.label)]


def show_in_step(
    opened: Opened, row: dict[Any, Any], start_ns: Any, end_ns: Any, carried: tuple[Any, Any] | None = None
) -> None:
    """Turn to what lies between two moments, in ns from the start of the window of the row's `rank` and `step`.

    `carried`, likewise, is when the collective ran that is selected, as of `show_spot`.
    """
    steps = rows_of(opened.timeline.steps, row)
    begun = pd.NA if steps.empty else int(steps["start_ns"].iloc[0])
    ran = None if carried is None or any(map(pd.isna, carried)) else (begun + carried[0], begun + carried[1])
    start, end = (pd.NA if pd.isna(time) else begun + time for time in (start_ns, end_ns))
    show_spot(opened, start, end, row["rank"], carried=ran)


def show_collective(opened: Opened, row: dict[Any, Any]) -> None:
    """Turn to a collective, a row of `each_collective`, with its last rank's event selected where one is known."""
    events = opened.timeline.events
    its_events = events[(events["collective"] == row["index"]) & (events["event"] >= 0)]
    last = None if pd.isna(row["last_rank"]) else row["last_rank"]
    places = [] if last is None else _places(opened, last)
    late = its_events[its_events["trace"].isin(places)]
    candidates = late if len(late) else its_events
    event = (int(candidates["trace"].iloc[0]), int(candidates["event"].iloc[0])) if len(candidates) else None
    show_spot(opened, row["start_ns"], row["end_ns"], row["last_rank"], event)


def show_spot(
    opened: Opened,
    start_ns: Any,
    end_ns: Any,
    rank: Any,
    event: tuple[int, int] | None = None,
    *,
    carried: tuple[Any, Any] | None = None,
    marked: bool = True,
    room: float = 0.5,
    least_ns: int = _ROOM_NS,
    cause: object = None,
    late_rank: Any = None,
) -> None:
    """Turn to a stretch in ns from the run's zero, and on both sides so much `room` as a share of it.

    Where no `event` is given and something is to be `marked`, that of the collective is selected which fills most of
    the time in which it was `carried`, of the stretch itself if that is not given. Where the host is the `cause`, its
    lanes are unfolded; of a wait those of the `late_rank`, whose host is what may have made it late.
    """
    if pd.isna(start_ns) or pd.isna(end_ns):
        st.info("When it ran is not known: the trace contains only its launch.")
        return
    start, end = int(start_ns), int(end_ns)
    margin = max(int(room * (end - start)), least_ns)
    shown = None if pd.isna(rank) else int(rank)
    if event is None and marked:
        begins, ends = carried or (start, end)
        event = _carrying_event(opened, int(begins), int(ends), shown)
    late = [] if pd.isna(late_rank) else _places(opened, int(late_rank))
    hosts = _places(opened, shown) if cause in _HOST_CAUSES else late
    unfolded = tuple(place for place in hosts if place in opened.timeline.hosts)
    spot = Spot((start - margin, end + margin), event, unfolded)
    go_to_timeline(opened.name, spot, shown, *(opened.run.traces[place].rank for place in unfolded))


def _places(opened: Opened, rank: int | None) -> list[int]:
    """The places in `run.traces` of this rank's."""
    return [place for place, trace in enumerate(opened.run.traces) if trace.rank == rank]


def _carrying_event(opened: Opened, start_ns: int, end_ns: int, rank: int | None) -> tuple[int, int] | None:
    """The event of a collective on this rank that overlaps a stretch longest, the shortest such one."""
    events = opened.timeline.events
    carrying = events[
        (events["collective"] >= 0) & (events["event"] >= 0) & events["trace"].isin(_places(opened, rank))
    ]
    shared = carrying["end_ns"].clip(upper=end_ns) - carrying["start_ns"].clip(lower=start_ns)
    carrying = carrying.assign(shared=shared, took=carrying["end_ns"] - carrying["start_ns"])[shared > 0]
    if carrying.empty:
        return None
    best = carrying.sort_values(["shared", "took"], ascending=[False, True], kind="stable").iloc[0]
    return int(best["trace"]), int(best["event"])
