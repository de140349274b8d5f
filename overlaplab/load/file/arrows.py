"""Arrows between events: from a launch to what it launched, from a forward operator to its backward.

In a file the ends of an arrow (phases `s` and `f`) are entries of their own, apart from their events. kineto writes an
end right after its event, with the event's process, thread and start. For other writers the event with these three is
searched for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlaplab.intervals import Integers, Mask
from overlaplab.load.file.columns import Columns, Grown, as_codes, narrow_to_int32, numbers
from overlaplab.load.file.decode import FileEvent

_COLUMNS = {
    "ac2g": "flow_launch",
    "async": "flow_launch",
    "async_cpu_to_gpu": "flow_launch",
    "async_gpu": "flow_launch",
    "fwdbwd": "flow_backward",
    "forward_backward": "flow_backward",
    "fwd_bwd": "flow_backward",
}
"""By category, as kineto has written them since 2021."""
_NAMES = ("flow_launch", "flow_backward")
_NO_EVENT = (-1, -1, -1)
_NUMBERS: dict[str | None, int] = {category: _NAMES.index(name) for category, name in _COLUMNS.items()}


class Arrows:
    """The ends of arrows so far, each with its event's row in the file, or with what identifies its event."""

    def __init__(self) -> None:
        self._adjacent = {name: (Grown("int32"), Grown("int32")) for name in _NAMES}
        """Rows and numbers of ends right after their event. (Many small arrays would keep the heap from shrinking.)"""
        self._searched: dict[str, list[Integers]] = {name: [] for name in _NAMES}
        """Place and number of the other ends, by slice."""
        self._last = _NO_EVENT
        """Time, process and thread of the last event so far."""
        self._leading = dict.fromkeys(_NAMES, 0)
        """How many of the searched ends come before the first event."""

    def append(self, ends: list[FileEvent], is_row: Mask, places: Sequence[NDArray[Any]], first_row: int) -> None:
        """Add a slice's arrow ends.

        `is_row` says which of the slice's entries are events, the others being `ends`; `places` are the time, process
        and thread of all; `first_row` is the first event's row in the file.
        """
        rows, others = np.flatnonzero(is_row), np.flatnonzero(~is_row)
        before = others - np.arange(len(others))  # how many events of this slice come before each end
        adjacent = np.ones(len(ends), dtype=bool)
        last = []
        for values, of_last in zip(places, self._last, strict=True):
            with_last = np.concatenate(([of_last], values[rows]))
            adjacent &= with_last[before] == values[others]
            last.append(int(with_last[-1]))
        is_first, self._last = self._last == _NO_EVENT, (last[0], last[1], last[2])  # no event has come before
        if not ends:
            return
        identity = numbers([end.id for end in ends])
        try:
            column = as_codes([_NUMBERS[end.cat] for end in ends])
        except KeyError:
            column = as_codes([_NUMBERS.get(end.cat, -1) for end in ends])
        for index, name in enumerate(_NAMES):
            here, far = adjacent & (column == index), ~adjacent & (column == index)
            if here.any():
                event_rows, event_numbers = self._adjacent[name]
                event_rows.extend(narrow_to_int32(before[here] + first_row - 1))
                event_numbers.extend(narrow_to_int32(identity[here]))
            if far.any():
                at = others[far]
                self._leading[name] += int((before[far] == 0).sum()) if is_first else 0
                self._searched[name].append(np.column_stack((*(values[at] for values in places), identity[far])))

    def extend(self, later: Arrows, first_row: int, pids: NDArray[np.int32], tids: NDArray[np.int32]) -> None:
        """Add a later part's ends; its first event has this row, its codes of processes and threads become these."""
        for name in _NAMES:
            rows, identity = self._adjacent[name]
            for part in later._searched[name]:
                ends = np.column_stack((part[:, 0], pids[part[:, 1]], tids[part[:, 2]], part[:, 3]))
                adjacent = (ends[:, :3] == self._last).all(axis=1)
                adjacent[later._leading[name] :] = False  # these follow an event of the part's own
                later._leading[name] = max(later._leading[name] - len(ends), 0)
                rows.extend(np.full(adjacent.sum(), first_row - 1, dtype=np.int32))
                identity.extend(narrow_to_int32(ends[adjacent, 3]))
                if not adjacent.all():
                    self._searched[name].append(ends[~adjacent])
            later_rows, later_identity = later._adjacent[name]
            rows.extend(later_rows.values() + np.int32(first_row))
            identity.extend(later_identity.values())
        if later._last != _NO_EVENT:
            time, process, thread = later._last
            self._last = time, int(pids[process]), int(tids[thread])

    def column(self, name: str, columns: Columns) -> NDArray[np.int32] | Integers:
        """The arrows' numbers of all rows, -1 where there is none; the first, if an event has several."""
        values: NDArray[np.int32] | Integers = np.full(columns.rows, -1, dtype=np.int32)
        searched = self._searched.pop(name)
        rows, identity = (grown.values() for grown in self._adjacent.pop(name))
        values = values.astype(identity.dtype)
        values[rows[::-1]] = identity[::-1]
        if searched:
            rows, identity = _search(np.concatenate(searched), columns)
            values = values.astype(np.int64)
            new = values[rows] < 0
            values[rows[new][::-1]] = identity[new][::-1]
        return values


def _search(ends: Integers, columns: Columns) -> tuple[Integers, Integers]:
    """The rows of the first events at these ends' time, process and thread, and the arrows' numbers."""
    time, process, thread = columns.places()
    wanted = np.unique(ends[:, 0])
    slot = np.minimum(np.searchsorted(wanted, time), len(wanted) - 1)
    rows = np.flatnonzero(wanted[slot] == time)
    slots = np.concatenate((slot[rows], np.searchsorted(wanted, ends[:, 0])))
    processes, threads = np.concatenate((process[rows], ends[:, 1])), np.concatenate((thread[rows], ends[:, 2]))
    # A number for each process and thread, then for each of these at a time: rows first, then ends.
    unique_threads, thread_of = np.unique(processes * len(columns.texts["tid"].code_of) + threads, return_inverse=True)
    places = slots * len(unique_threads) + thread_of
    candidates, first = np.unique(places[: len(rows)], return_index=True)
    sought = places[len(rows) :]
    is_found = np.isin(sought, candidates)
    return rows[first[np.searchsorted(candidates, sought[is_found])]], ends[is_found, 3]
