"""The process and thread of an exported trace that each event is put on.

Slices of one track must lie side by side or within each other; what only overlaps needs a track more.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import NDArray

from overlaplab.events import Trace, thread_numbers
from overlaplab.intervals import Integers, Mask

FIRST_THREAD = 1000
"""Tracks that are no threads of the trace have smaller numbers, so that they stand above these."""


class Threads(Struct, frozen=True, kw_only=True):
    """Where a rank's events are put: all in one process, but for those of its further host processes."""

    pids: Integers
    tids: Integers
    """Per event."""
    processes: list[tuple[int, str]]
    """The other processes' numbers and names."""
    names: list[tuple[int, int, str]]
    """Process, thread and name of each thread."""


def assign_threads(trace: Trace, pid: int) -> Threads:
    """Give each stream, then each thread, a track, and further ones where slices overlap; `pid`: the rank's process."""
    events = trace.events
    host = (events["stream"] < 0).to_numpy()
    pids = np.full(len(events), pid, dtype=np.int64)
    processes: dict[str, int] = {}
    main = events.loc[host, "pid"].mode()
    several = events.loc[~host, "device"].nunique() > 1
    tids = np.zeros(len(events), dtype=np.int64)
    names: list[tuple[int, int, str]] = []
    starts = events["ts_ns"].to_numpy()
    ends = starts + events["dur_ns"].to_numpy()
    tid = FIRST_THREAD
    for rows in _groups(events, host):
        first = events.iloc[rows[0]]
        process = str(first["pid"])
        if host[rows[0]] and process != str(main.iloc[0]):
            pids[rows] = processes.setdefault(process, pid + 1 + len(processes))
        tracks = nesting_tracks(starts[rows], ends[rows])
        tids[rows] = tid + tracks
        count = int(tracks.max()) + 1
        names += [
            (int(pids[rows[0]]), tid + track, name)
            for track, name in enumerate(numbered_names(_name(first, several), count))
        ]
        tid += count
    others = [(number, f"process {text}") for text, number in processes.items()]
    return Threads(pids=pids, tids=tids, processes=others, names=names)


def numbered_names(name: str, count: int) -> list[str]:
    """A name for each of several tracks of one thing."""
    return [name, *(f"{name} ({track})" for track in range(2, count + 1))]


def _groups(events: pd.DataFrame, host: Mask) -> list[NDArray[np.intp]]:
    """The rows of each stream, then of each thread, in the order that `nesting_tracks` takes."""
    device, stream = events["device"].to_numpy(np.int64), events["stream"].to_numpy(np.int64)
    keys = pd.DataFrame({"host": host, "device": np.where(host, thread_numbers(events), device), "stream": stream})
    keys.loc[host, "stream"] = -1
    longest_first = np.lexsort((-events["dur_ns"].to_numpy(), events["ts_ns"].to_numpy()))
    grouped = keys.iloc[longest_first].groupby(["host", "device", "stream"], sort=True).indices
    return [longest_first[places] for _, places in sorted(grouped.items())]


def _name(event: pd.Series, several_devices: bool) -> str:
    if event["stream"] < 0:
        return f"thread {event['tid']}"
    return f"device {event['device']} stream {event['stream']}" if several_devices else f"stream {event['stream']}"


def nesting_tracks(starts: Integers, ends: Integers) -> Integers:
    """The number of each slice's track. Slices are in order of start, of those with one start the longest first.

    Each goes to the first track in which every slice that is still open when it starts also outlasts it.
    """
    tracks = np.zeros(len(starts), dtype=np.int64)
    if np.all(starts[1:] >= ends[:-1]):  # side by side, as in most streams
        return tracks
    open_ends: list[list[int]] = [[]]
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        for number, stack in enumerate(open_ends):
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                tracks[place] = number
                break
        else:
            tracks[place] = len(open_ends)
            open_ends.append([end])
    return tracks


def us_text(ns: int) -> str:
    """ns as µs, to the ns, as traces have times."""
    return f"{ns // 1000}.{ns % 1000:03d}"
