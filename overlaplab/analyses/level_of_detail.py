"""Fewer marks than events: what stands too close together to be told apart becomes one mark that counts them
all.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["added_ns", "merged_marks", "touching"]


def touching(events: pd.DataFrame, start: int, end: int, lanes: NDArray[np.int64]) -> NDArray[np.intp]:
    """The rows of events in these lanes that touch [start, end); an instant does if it stands in it."""
    starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    lane = events["lane"].to_numpy()
    chosen = np.zeros(int(lane.max(initial=-1)) + 1, dtype=bool)
    chosen[lanes[lanes < len(chosen)]] = True
    return np.flatnonzero((starts < end) & ((ends > start) | ((starts == start) & (ends == start))) & chosen[lane])


def added_ns(group: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The time that each event adds to those before it in its group: the sum is the length of the group's union.

    Groups stand together, in each the events by start.
    """
    if not len(group):
        return np.zeros(0, dtype=np.int64)
    reach = pd.Series(ends).groupby(group).cummax().to_numpy()
    first = np.append(True, group[1:] != group[:-1])
    before = np.where(first, begins, np.append(0, reach[:-1]))
    return np.maximum(ends - np.maximum(begins, before), 0)


def merged_marks(events: pd.DataFrame, start: int, end: int, limit: int) -> pd.DataFrame:
    """At most `limit` marks (one per lane if lanes are more) of events that touch the window, by lane and
    start.

    Takes `lane`, `part`, `start_ns`, `end_ns`, `name`; returns the same per mark, cut to the window, `part`
    being the busiest one and `name` the longest event's, with `events` (their number) and `busy_ns` (the
    union of their times).
    """
    begins = np.clip(events["start_ns"].to_numpy(), start, end)
    ends = np.clip(events["end_ns"].to_numpy(), start, end)
    lane, part = events["lane"].to_numpy(), events["part"].to_numpy()
    group = np.arange(len(events))
    if len(events) > limit:
        group = _fine_enough(begins, ends, lane, start, end - start, limit)
    return _marks(events, begins, ends, lane, part, group)


def _fine_enough(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    lane: NDArray[np.int64],
    start: int,
    span: int,
    limit: int,
) -> NDArray[np.int64]:
    """The marks of the narrowest slots, in steps of a quarter, that make at most `limit` of them."""

    def marks(step: int) -> NDArray[np.int64]:
        width = max(int(span / limit / 16 * 1.25**step), 1)
        return _runs(lane, np.where(ends - begins >= width, -1, (begins - start) // width))

    narrow, wide = -1, math.ceil(math.log(limit * 64, 1.25))  # one slot wider than the window: a mark per lane
    group = marks(wide)
    while wide - narrow > 1:
        middle = (narrow + wide) // 2
        tried = marks(middle)
        if tried[-1] < limit:
            wide, group = middle, tried
        else:
            narrow = middle
    return group


def _runs(lane: NDArray[np.int64], slot: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the marks: neighbours of a lane in one slot share a mark; slot -1 is a mark of its own."""
    new = np.ones(len(lane), dtype=bool)
    new[1:] = (lane[1:] != lane[:-1]) | (slot[1:] != slot[:-1]) | (slot[1:] == -1)
    return np.cumsum(new) - 1


def _marks(
    events: pd.DataFrame,
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    lane: NDArray[np.int64],
    part: NDArray[np.int64],
    group: NDArray[np.intp],
) -> pd.DataFrame:
    """One row per mark: its extent, its count, the union of its events' time, its busiest part, its longest's name."""
    adds = added_ns(group, begins, ends)
    frame = pd.DataFrame({"mark": group, "part": part, "adds": adds, "row": np.arange(len(group))})
    busiest = (
        frame.groupby(["mark", "part"])["adds"]
        .sum()
        .reset_index()
        .sort_values(["mark", "adds", "part"], kind="stable")
        .drop_duplicates("mark", keep="last")
    )
    longest = frame.assign(length=ends - begins).sort_values(["mark", "length"], kind="stable")
    rows = longest.drop_duplicates("mark", keep="last")["row"].to_numpy()
    by_mark = frame.assign(begin=begins, end=ends, lane=lane).groupby("mark")
    return pd.DataFrame(
        {
            "lane": by_mark["lane"].first().to_numpy(),
            "part": busiest["part"].to_numpy(),
            "start_ns": by_mark["begin"].min().to_numpy(),
            "end_ns": by_mark["end"].max().to_numpy(),
            "events": by_mark.size().to_numpy(),
            "busy_ns": by_mark["adds"].sum().to_numpy(),
            "name": events["name"].iloc[rows].astype(str).to_numpy(),
        }
    )
