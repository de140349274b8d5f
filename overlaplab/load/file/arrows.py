"""Arrows between events: from a launch to what it launched, from a forward operator to its backward.

In a file the ends of an arrow (phases `s` and `f`) are entries of their own, apart from their events. kineto writes an
end right after its event, with the event's process, thread and start. For other writers the event with these three is
searched for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.load.file.columns import Columns, Grown, Integers, narrowed, numbers
from overlaplab.load.file.decode import Event

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
    """The ends of arrows so far, each with its event's row in the file, or with what identifies its event."""

    def __init__(self) -> None:
        self._adjacent = {name: (Grown("int32"), Grown("int32")) for name in _NAMES}
        """Rows and numbers of ends right after their event. (Many small arrays would keep the heap from shrinking.)"""
        self._searched: dict[str, list[NDArray[np.int64]]] = {name: [] for name in _NAMES}
        """Place and number of the other ends, by slice."""
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
                for grown, part in zip(
                    self._adjacent[name], (before[here] + first_row - 1, identity[here]), strict=True
                ):
                    grown.extend(narrowed(part))
            if far.any():
                self._searched[name].append(np.column_stack((where[far], identity[far])))

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
    place = columns.places()
    rows = np.flatnonzero(np.isin(place[0], ends[:, 0]))
    candidates = pd.DataFrame({key: values[rows] for key, values in zip(_PLACE, place, strict=True)} | {"row": rows})
    table = pd.DataFrame(ends, columns=[*_PLACE, "identity"])
    joined = table.merge(candidates.drop_duplicates(_PLACE), on=_PLACE)
    return joined["row"].to_numpy(), joined["identity"].to_numpy()
