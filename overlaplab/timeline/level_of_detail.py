"""Fewer marks than events: events too close together to be distinguished become one mark that counts them all."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def rows_in_window(events: pd.DataFrame, start: int, end: int, lanes: NDArray[np.int64]) -> NDArray[np.intp]:
    """Select rows of events in these lanes that overlap [start, end), and of instants within it."""
    starts, ends = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    lane = events["lane"].to_numpy()
    chosen = np.zeros(int(lane.max(initial=-1)) + 1, dtype=bool)
    chosen[lanes[lanes < len(chosen)]] = True
    return np.flatnonzero((starts < end) & ((ends > start) | ((starts == start) & (ends == start))) & chosen[lane])


def added_ns(group: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The time that each event adds to the earlier ones of its group; the sum is the length of the group's union.

    Groups must be contiguous, with events in order of start.
    """
    if not len(group):
        return np.zeros(0, dtype=np.int64)
    first = np.append(True, group[1:] != group[:-1])
    low, number = int(begins.min()), np.cumsum(first) - 1
    shift = int(ends.max()) - low + 1
    if (int(number[-1]) + 1) * shift < 2**62:  # shift the groups apart on one axis
        reach = np.maximum.accumulate(ends - low + number * shift) - number * shift + low
    else:
        reach = pd.Series(ends).groupby(number).cummax().to_numpy()
    before = np.where(first, begins, np.append(0, reach[:-1]))
    return np.asarray(np.maximum(ends - np.maximum(begins, before), 0), dtype=np.int64)


def merged_marks(events: pd.DataFrame, start: int, end: int, limit: int) -> pd.DataFrame:
    """At most `limit` marks (or one per lane) of events that overlap the window, by lane and start.

    Takes `lane`, `part`, `start_ns`, `end_ns`, `name`. Returns the same per mark, cut to the window: `part` is the
    busiest one, `name` the longest event's. Adds `events` (their number), `busy_ns` (the union of their times) and, if
    the events have it, `collective` (-1 unless all events are of the same one).
    """
    begins, ends = (np.clip(events[name].to_numpy(), start, end) for name in ("start_ns", "end_ns"))
    group = np.arange(len(events))
    if len(events) > limit:
        group = _fine_enough(begins, ends, events["lane"].to_numpy(), (start, end), limit)
    return _marks(events, begins, ends, group)


def _fine_enough(
    begins: NDArray[np.int64], ends: NDArray[np.int64], lane: NDArray[np.int64], window: tuple[int, int], limit: int
) -> NDArray[np.int64]:
    """The marks by the narrowest slots that make at most `limit` marks; slot widths grow in steps of 25 %."""
    start, end = window

    def marks(step: int) -> NDArray[np.int64]:
        width = max(int((end - start) / limit / 16 * 1.25**step), 1)
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
    """Number the marks: neighbours of a lane in the same slot share a mark; an event in slot -1 has its own."""
    new = np.ones(len(lane), dtype=bool)
    new[1:] = (lane[1:] != lane[:-1]) | (slot[1:] != slot[:-1]) | (slot[1:] == -1)
    return np.cumsum(new) - 1


def _marks(
    events: pd.DataFrame, begins: NDArray[np.int64], ends: NDArray[np.int64], group: NDArray[np.intp]
) -> pd.DataFrame:
    """One row per mark: extent, number of events, union of their times, busiest part, name of the longest event."""
    lane, part = events["lane"].to_numpy(), events["part"].to_numpy()
    adds, length = added_ns(group, begins, ends), ends - begins
    opens = np.flatnonzero(np.diff(group, prepend=-1))
    parts = int(part.max(initial=0)) + 1
    by_part = np.zeros(len(opens) * parts, dtype=np.int64)
    np.add.at(by_part, group * parts + part, adds)
    present = np.bincount(group * parts + part, minlength=len(by_part)) > 0
    shares = np.where(present, by_part, -1).reshape(-1, parts)
    busiest = parts - 1 - shares[:, ::-1].argmax(axis=1)  # the later one on ties
    longest = np.flatnonzero(length == _reduce_groups(np.maximum, length, opens)[group])
    rows = longest[np.append(group[longest][1:] != group[longest][:-1], True)[: len(longest)]]
    collective = events["collective"].to_numpy() if "collective" in events else np.full(len(group), -1, dtype=np.int64)
    lowest, highest = _reduce_groups(np.minimum, collective, opens), _reduce_groups(np.maximum, collective, opens)
    return pd.DataFrame(
        {
            "lane": lane[opens],
            "part": busiest,
            "collective": np.where(lowest == highest, lowest, -1),
            "start_ns": _reduce_groups(np.minimum, begins, opens),
            "end_ns": _reduce_groups(np.maximum, ends, opens),
            "events": np.diff(np.append(opens, len(group))),
            "busy_ns": _reduce_groups(np.add, adds, opens),
            "name": events["name"].iloc[rows].astype(str).to_numpy(),
        }
    )


def _reduce_groups(what: np.ufunc, values: NDArray[np.int64], opens: NDArray[np.intp]) -> NDArray[np.int64]:
    """One value per group; `opens` are the groups' first places."""
    return np.asarray(what.reduceat(values, opens) if len(opens) else values, dtype=np.int64)
