"""From a table's row to its spot on the Timeline page."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from overlaplab.analyses import rows_of
from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.links import go_to_timeline, timeline_link

__all__ = ["show_collective", "show_in_step", "show_spot"]

_ROOM_NS = 20_000  # on both sides of what is short


def show_in_step(opened: Opened, row: dict[Any, Any], start_ns: Any, end_ns: Any) -> None:
    """Turn to what lies between two moments, in ns from the start of the window of the row's `rank` and `step`."""
    steps = rows_of(opened.timeline.steps, row)
    begun = pd.NA if steps.empty else int(steps["start_ns"].iloc[0])
    show_spot(opened, begun + start_ns, begun + end_ns, row["rank"])


def show_collective(opened: Opened, row: dict[Any, Any]) -> None:
    """Turn to a collective, a row of `each_collective`, with its last rank's event selected where one is known."""
    events = opened.timeline.events
    own = events[(events["collective"] == row["index"]) & (events["event"] >= 0)]
    last = None if pd.isna(row["last_rank"]) else row["last_rank"]
    places = [place for place, trace in enumerate(opened.run.traces) if last is not None and trace.rank == last]
    late = own[own["trace"].isin(places)]
    found = late if len(late) else own
    event = (int(found["trace"].iloc[0]), int(found["event"].iloc[0])) if len(found) else None
    show_spot(opened, row["start_ns"], row["end_ns"], row["last_rank"], event)


def show_spot(
    opened: Opened,
    start_ns: Any,
    end_ns: Any,
    rank: Any,
    event: tuple[int, int] | None = None,
    *,
    room: float = 0.5,
    least_ns: int = _ROOM_NS,
) -> None:
    """Turn to a stretch in ns from the run's zero, and on both sides so much `room` as a share of it."""
    if pd.isna(start_ns) or pd.isna(end_ns):
        st.info("When it ran is not known: the trace tells only its launch.")
        return
    start, end = int(start_ns), int(end_ns)
    beside = max(int(room * (end - start)), least_ns)
    shown = None if pd.isna(rank) else int(rank)
    go_to_timeline(timeline_link(opened.name, start_ns=start - beside, end_ns=end + beside, rank=shown, event=event))
