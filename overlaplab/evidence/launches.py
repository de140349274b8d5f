"""A rank's collectives in order of launch, and when each ran (see `recorded_collectives`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from overlaplab.events import Trace, event_times, once_per_trace, rule_of, thread_numbers
from overlaplab.evidence.call_metadata import enclosing_rows
from overlaplab.evidence.labels import Span
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives
from overlaplab.intervals import Integers, Mask
from overlaplab.vocabulary import Rule


class LaunchSpan(Span, frozen=True, kw_only=True):
    """A collective, as the host range that launched it."""

    kind: str | None = None
    """`all_reduce`, `all_gather`, …; None where unknown."""
    bytes: int | None = None
    """Size of the full tensor; None where unknown."""
    dtype: str | None = None
    """torch's name, such as `float32`."""
    elements: int | None = None
    """Elements of the larger of input and output, from arguments."""
    group: str | None = None
    """The process group's name."""
    group_size: int | None = None
    """Its number of ranks."""
    source: int | None = None
    """The rank that a message comes from; None for others than messages that the rank receives."""
    ran: tuple[int, int] | None = None
    """Start and end of the communication itself; None where unknown."""
    row: int | None = None
    """Its row in `recorded_collectives`."""


@once_per_trace
def launches(trace: Trace) -> tuple[LaunchSpan, ...]:
    """The trace's collectives in order of launch, without those launched before the recording began."""
    table = recorded_collectives(trace)
    table = table[table["launch_ns"] != UNKNOWN_NS].sort_values("launch_ns", kind="stable")
    names = list(table)  # iterating over the table itself would take most of the time
    columns = (table[name].to_numpy(dtype=object).tolist() for name in names)
    rows = zip(table.index.tolist(), *columns, strict=True)
    return tuple(_launch(number, dict(zip(names, row, strict=True))) for number, *row in rows)


def total_bytes(collectives: Sequence[LaunchSpan]) -> int | None:
    """The sum of these collectives' bytes; None if there are none, or any is unknown."""
    sizes = [launch.bytes for launch in collectives if launch.bytes is not None]
    return sum(sizes) if sizes and len(sizes) == len(collectives) else None


def event_spans(trace: Trace, chosen: Mask) -> pd.DataFrame:
    """The chosen events' `start_ns`, `end_ns` (absolute), `thread` and row (`event`)."""
    rows = np.flatnonzero(chosen)
    (starts, ends), threads = event_times(trace.events, rows), thread_numbers(trace.events, rows)
    return pd.DataFrame({"start_ns": starts, "end_ns": ends, "thread": threads, "event": rows})


def _launch(number: int, row: dict[Hashable, Any]) -> LaunchSpan:
    numbers = {name: row[name] for name in ("elements", "bytes", "group_size", "source") if row[name] >= 0}
    return LaunchSpan(
        start_ns=row["launch_ns"],
        end_ns=row["launch_end_ns"],
        thread=row["thread"],
        ran=(row["start_ns"], row["end_ns"]) if row["start_ns"] != UNKNOWN_NS else None,
        kind=row["kind"] or None,
        dtype=row["dtype"] or None,
        group=row["group"] or None,
        row=number,
        **numbers,
    )


def launching_ranges(trace: Trace, table: pd.DataFrame, spans: Sequence[Span]) -> Integers:
    """For each row of `recorded_collectives` the index of the span that launched it, or -1; on a GPU on any thread."""
    names = ("start_ns", "end_ns", "thread")
    ranges = {name: np.array([getattr(span, name) for span in spans], dtype=np.int64) for name in names}
    thread = None if rule_of(trace) is Rule.GPU else table["thread"].to_numpy(np.int64)
    return enclosing_rows(ranges, thread, table["launch_ns"].to_numpy(np.int64))
