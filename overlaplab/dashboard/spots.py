"""From a table's row to its spot on the Timeline page."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from overlaplab.dashboard.data import Opened
from overlaplab.dashboard.links import go_to_timeline

__all__ = ["show_collective", "show_in_step"]

_ROOM_NS = 20_000  # on both sides of what is short


def show_in_step(opened: Opened, row: dict[Any, Any], start_ns: Any, end_ns: Any) -> None:
    """Turn to what lies between two moments, in ns from the start of the window of the row's `rank` and `step`."""
    steps = opened.timeline.steps
    for name in ("rank", "step"):
        known = steps[name].isna() if pd.isna(row[name]) else (steps[name] == row[name]).fillna(False)
        steps = steps[known]
    begun = None if steps.empty else int(steps["start_ns"].iloc[0])
    moments = [None if pd.isna(at) or begun is None else begun + int(at) for at in (start_ns, end_ns)]
    _show(opened, moments[0], moments[1], row["rank"], None)


def show_collective(opened: Opened, row: dict[Any, Any]) -> None:
    """Turn to a collective, a row of `each_collective`, with its last rank's event selected where one is known."""
    events = opened.timeline.events
    own = events[(events["collective"] == row["index"]) & (events["event"] >= 0)]
    places = [place for place, trace in enumerate(opened.run.traces) if _same(trace.rank, row["last_rank"])]
    late = own[own["trace"].isin(places)]
    found = late if len(late) else own
    event = (int(found["trace"].iloc[0]), int(found["event"].iloc[0])) if len(found) else None
    times = [None if pd.isna(row[name]) else int(row[name]) for name in ("start_ns", "end_ns")]
    _show(opened, times[0], times[1], row["last_rank"], event)


def _same(rank: int | None, other: Any) -> bool:
    return rank is not None and not pd.isna(other) and rank == other


def _show(opened: Opened, start_ns: int | None, end_ns: int | None, rank: Any, event: tuple[int, int] | None) -> None:
    if start_ns is None or end_ns is None:
        st.info("When it ran is not known: the trace tells only its launch.")
        return
    room = max((end_ns - start_ns) // 2, _ROOM_NS)
    go_to_timeline(
        opened.name,
        start_ns=start_ns - room,
        end_ns=end_ns + room,
        rank=None if pd.isna(rank) else int(rank),
        event=event,
    )
