"""Arrows between events: from a launch to what it launched, from a forward operator to its backward.

A file tells an arrow's ends (`s`, `f`) apart from the events they belong to. kineto writes an end right after its
event, with the event's process, thread and start; other writers are searched for an event that has these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.load.file.columns import Columns, Grown, Integers, narrowed, numbers
from overlaplab.load.file.decode import Event

__all__ = ["Arrows"]

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
_NUMBERS = {category: _NAMES.index(name) for category, name in _COLUMNS.items()}
_PLACE = ["time", "process", "thread"]


class Arrows:
    """The ends of arrows so far, each with its event's row in the file, or with what to search it by."""

    def __init__(self) -> None:
        self._found = {name: (Grown("int32"), Grown("int32")) for name in _NAMES}
        """Rows and numbers. Many small arrays, scattered over the heap, would keep it from shrinking."""
        self._lost: dict[str, list[NDArray[np.int64]]] = {name: [] for name in _NAMES}
        self._last = np.array([-1, -1, -1], dtype=np.int64)

    def append(
        self, ends: list[Event], before: NDArray[Any], where: NDArray[Any], rows: NDArray[Any], first_row: int
    ) -> None:
        """Add a slice's arrow ends.

        `where` are their (time, process, thread), `rows` those of the slice's events, `before` how many of these came
        before each end; `first_row` is the first event's row in the file.
        """
        known = np.vstack((self._last[None], rows))
        self._last = known[-1]
        adjacent = (known[before] == where).all(axis=1)
        identity = numbers([end.id for end in ends])
        number = _NUMBERS.get
        column = np.array([number(end.cat, -1) for end in ends], dtype=np.int8)  # type: ignore[arg-type]
        for index, name in enumerate(_NAMES):
            here, far = adjacent & (column == index), ~adjacent & (column == index)
            if here.any():
                for grown, part in zip(self._found[name], (before[here] + first_row - 1, identity[here]), strict=True):
                    grown.extend(narrowed(part))
            if far.any():
                self._lost[name].append(np.column_stack((where[far], identity[far])))

    def column(self, name: str, columns: Columns) -> NDArray[np.int32] | Integers:
        """The arrows' numbers of all rows, -1 where there is none; the first, if an event has several."""
        values: NDArray[np.int32] | Integers = np.full(columns.rows, -1, dtype=np.int32)
        found, lost = self._found.pop(name), self._lost.pop(name)
        rows, identity = (grown.values() for grown in found)
        values = values.astype(identity.dtype)
        values[rows[::-1]] = identity[::-1]
        if lost:
            rows, identity = _searched(np.concatenate(lost), columns)
            values = values.astype(np.int64)
            fresh = values[rows] < 0
            values[rows[fresh][::-1]] = identity[fresh][::-1]
        return values


def _searched(lost: Integers, columns: Columns) -> tuple[Integers, Integers]:
    """The rows of the first events with these (time, process, thread), and the arrows' numbers."""
    place = columns.places()
    rows = np.flatnonzero(np.isin(place[0], lost[:, 0]))
    candidates = pd.DataFrame({key: values[rows] for key, values in zip(_PLACE, place, strict=True)} | {"row": rows})
    ends = pd.DataFrame(lost, columns=[*_PLACE, "identity"])
    found = ends.merge(candidates.drop_duplicates(_PLACE), on=_PLACE)
    return found["row"].to_numpy(), found["identity"].to_numpy()
