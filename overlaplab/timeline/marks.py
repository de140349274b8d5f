"""What a timeline consists of: lanes of marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from overlaplab.causes import Cause
from overlaplab.events import Activity

LaneKind: TypeAlias = Literal["steps", "phases", "labels", "stream", "exposed"]


class MarkKind(StrEnum):
    """What a mark on the timeline stands for. On ties within a merged mark the later one here wins."""

    STEP = "step"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    HOST = "host work"
    """What a CPU does between passes, by the name of its range: data loading, saving, logging."""
    FREE = "free"
    """An instant: the memory of a unit's full parameters is freed."""
    MEMORY = "memory"
    COMPUTE = "compute"
    COMMUNICATION = "other communication"
    """Not one of the next four: broadcast, send and receive, barrier, unknown."""
    ALL_TO_ALL = "all-to-all"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    EXPOSED = "exposed, outside steps"
    """Communication while nothing computes, outside all steps: it has no cause. The next ones are such by `Cause`."""
    UNKNOWN = Cause.UNKNOWN.value
    GAP = Cause.GAP.value
    BUBBLE = Cause.BUBBLE.value
    IMBALANCE = Cause.IMBALANCE.value
    SEND = Cause.SEND.value
    STRAGGLER = Cause.STRAGGLER.value
    LATE = Cause.LATE.value
    QUEUED = Cause.QUEUED.value
    BLOCKING = Cause.BLOCKING.value
    LINK = Cause.LINK.value
    TAIL = Cause.TAIL.value
    UNHIDEABLE = Cause.UNHIDEABLE.value


CAUSE_MARKS = {MarkKind(cause.value): cause for cause in Cause}
"""The marks of exposed communication, and their causes."""
_ORDER = tuple(MarkKind)
_OF_COLLECTIVE = {
    "all_gather": MarkKind.ALL_GATHER,
    "all_reduce": MarkKind.ALL_REDUCE,
    "all_to_all": MarkKind.ALL_TO_ALL,
    "reduce_scatter": MarkKind.REDUCE_SCATTER,
}


def mark_code(mark: MarkKind) -> int:
    """Its index in `MarkKind`, as in the column `part` of `Timeline.events`."""
    return _ORDER.index(mark)


def mark_names(codes: Iterable[int]) -> list[str]:
    """The marks at these indices, as text."""
    return [_ORDER[code].value for code in codes]


def mark_of_collective(kind: str) -> MarkKind:
    """The mark for a collective of this kind."""
    return _OF_COLLECTIVE.get(kind, MarkKind.COMMUNICATION)


class Timeline(Struct, frozen=True, kw_only=True):
    """A run's marks before any merging; times in ns from the run's zero, by the first rank's clock."""

    lanes: pd.DataFrame
    """One row per lane, top to bottom: `lane` (its number), `label`, `rank` (Int64), `kind` (a `LaneKind`: `steps`;
    `phases`, passes and host work between them; `labels`, buckets, gathers and reduce-scatters from labels; `stream`,
    of a device, or on the CPU a thread; `exposed`)."""
    events: pd.DataFrame
    """By lane and start, the longest first where starts are equal: every counted event, and the marks of the other
    lanes. Columns `lane`, `part` (int8, an index in `MarkKind`), `start_ns`, `end_ns` (int64), `name` (category),
    `trace` (index in `run.traces`), `event` (row of the trace's events, -1 for other marks), `collective` (`index` of
    `overlaplab.collectives`, the same on all ranks, -1 for none)."""
    steps: pd.DataFrame
    """Columns `rank` (Int64), `step` (Int64), `start_ns`, `end_ns`."""
    activities: tuple[tuple[int | None, Activity, int], ...]
    """Rank, activity (absolute ns) and the run's zero by the rank's clock, for figures from the raw intervals."""
    offsets: tuple[tuple[int | None, int], ...] = ()
    """Ranks whose clocks were corrected, and by how much they were ahead of the first rank's, in ns (see `clocks`)."""
    coordinates: Mapping[int, str] = {}
    """Where each rank is on a mesh of several axes: `dp 1, tp 0`."""
    hosts: tuple[int, ...] = ()
    """The places in `run.traces` of those whose `host_lanes` can be unfolded."""

    @property
    def extent(self) -> tuple[int, int]:
        """From the first step's start to the last one's end; without steps, of all events; never empty."""
        table = self.steps if len(self.steps) else self.events
        if table.empty:
            return 0, 1
        start = int(table["start_ns"].min())
        return start, max(int(table["end_ns"].max()), start + 1)


class Lane(Struct, frozen=True, kw_only=True):
    label: str
    kind: LaneKind
    marks: pd.DataFrame
    """The lane's marks, as `marks_table` gives them."""


def marks_table(
    starts: ArrayLike,
    ends: ArrayLike,
    names: pd.Categorical | ArrayLike,
    part: MarkKind | NDArray[np.int8],
    *,
    event: ArrayLike = -1,
    collective: ArrayLike = -1,
) -> pd.DataFrame:
    """The marks of a lane: `start_ns`, `end_ns`, `name`, `part`, `event`, `collective`, by start, the longest first."""
    start_ns, end_ns = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    rows = len(start_ns)
    table = pd.DataFrame(
        {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "name": names if isinstance(names, pd.Categorical) else encode_names(names),
            "part": np.full(rows, mark_code(part), dtype=np.int8) if isinstance(part, MarkKind) else part,
            "event": np.broadcast_to(np.asarray(event, dtype=np.int64), rows),
            "collective": np.broadcast_to(np.asarray(collective, dtype=np.int64), rows),
        },
        copy=False,
    )
    later = np.diff(start_ns)
    if ((later > 0) | ((later == 0) & (np.diff(end_ns) <= 0))).all():  # usually sorted already: ten times as fast
        return table
    return table.iloc[np.lexsort((-end_ns, start_ns))]


def encode_names(names: ArrayLike) -> pd.Categorical:
    """Texts as a categorical with object categories, as in traces."""
    codes, texts = pd.factorize(np.asarray(names, dtype=object))
    return pd.Categorical.from_codes(codes, pd.Index(texts, dtype=object))
