"""Which collectives a rank launched, and when each ran (see `recorded`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from overlaplab.events import Trace, lanes
from overlaplab.evidence.arguments import NUMBERS
from overlaplab.evidence.labels import Label, Span
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded

__all__ = ["Enclosing", "Launch", "bytes_of", "launches", "spans_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Span):
    """A collective, as the host's range that launched it."""

    kind: str | None = None
    """`all_reduce`, `all_gather`, …; None where nothing tells."""
    bytes: int | None = None
    """Of the full tensor; None where nothing tells."""
    dtype: str | None = None
    """As torch names it, `float32`."""
    elements: int | None = None
    """Of the larger of input and output, as arguments tell."""
    group: str | None = None
    """The process group's name."""
    group_size: int | None = None
    """Its number of ranks."""
    sequence: int | None = None
    """Its number among the group's collectives."""
    ran: tuple[int, int] | None = None
    """Start and end of the communication itself; None where the trace does not tell."""


def launches(trace: Trace) -> tuple[Launch, ...]:
    """The trace's collectives in order of launch, those left out that were launched before the recording began."""
    table = recorded(trace)
    table = table[table["launch_ns"] != UNKNOWN_NS].sort_values("launch_ns", kind="stable")
    names = list(table)  # to go through a table's own names anew for each row would take most of the time
    return tuple(_launch(dict(zip(names, row, strict=True))) for row in zip(*map(_listed, table.items()), strict=True))


def bytes_of(found: Sequence[Launch]) -> int | None:
    """The sum of these collectives' bytes; None where there is none, or one tells nothing."""
    known = [launch.bytes for launch in found if launch.bytes is not None]
    return sum(known) if known and len(known) == len(found) else None


def spans_of(trace: Trace) -> pd.DataFrame:
    """Every event's `start_ns`, `end_ns` (absolute) and `lane`."""
    starts = trace.events["ts_ns"]
    return pd.DataFrame({"start_ns": starts, "end_ns": starts + trace.events["dur_ns"], "lane": lanes(trace.events)})


def _listed(column: tuple[Hashable, pd.Series]) -> list[Any]:
    return column[1].to_numpy(dtype=object).tolist()


def _launch(row: dict[Hashable, Any]) -> Launch:
    known = {name: row[name] for name in NUMBERS if row[name] >= 0}
    return Launch(
        start_ns=row["launch_ns"],
        end_ns=row["launch_end_ns"],
        lane=row["lane"],
        ran=(row["start_ns"], row["end_ns"]) if row["start_ns"] != UNKNOWN_NS else None,
        kind=row["kind"] or None,
        dtype=row["dtype"] or None,
        group=row["group"] or None,
        **known,
    )


class Enclosing:
    """Which of some labels, not nested in each other, encloses a moment of a thread."""

    def __init__(self, labels: Sequence[Label], *, any_lane: bool = False) -> None:
        self.labels = labels
        self._any_lane = any_lane
        self._by_lane: dict[int, list[Label]] = {}
        for label in labels:
            self._by_lane.setdefault(self._lane(label.lane), []).append(label)
        self._starts = {lane: [label.start_ns for label in found] for lane, found in self._by_lane.items()}

    def of(self, lane: int, at_ns: int) -> Label | None:
        """The label around this moment of the thread, if there is one."""
        lane = self._lane(lane)
        place = bisect_right(self._starts.get(lane, []), at_ns) - 1
        label = self._by_lane[lane][place] if place >= 0 else None
        return label if label and at_ns <= label.end_ns else None

    def _lane(self, lane: int) -> int:
        return -1 if self._any_lane else lane
