"""All details of one event: when it ran, what launched it, and the collective that it belongs to."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.analyses.collectives import collectives
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, Trace, classify, launchers, matching, step_windows, thread_numbers
from overlaplab.evidence.clocks import corrections
from overlaplab.evidence.recorded import recorded_of_events
from overlaplab.evidence.waits import numbered_arrivals
from overlaplab.vocabulary import OPERATOR_CATEGORIES

_ARGUMENTS = "record_param_comms"
"""The event inside c10d's call that holds the arguments."""


class LaunchDetails(TypedDict):
    name: str
    start_ns: int
    thread: str
    operator: str | None
    """The innermost operator around it."""
    delay_ns: int
    """From the call's start to the event's."""


CollectiveDetails: TypeAlias = dict[str, Any]
"""This rank's row of `overlaplab.collectives`, and as `peers` those of all ranks with a trace, this one included, in
order of rank, with the columns `_PEER`; None where unknown."""
_PEER = ("rank", "launch_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns")


class EventDetails(TypedDict):
    """One event; times in ns from the run's zero, by the first rank's clock. None where unknown, or absent."""

    rank: int | None
    name: str
    category: str
    counts_as: str
    """One of `overlaplab.events.WorkKind`."""
    step: int | None
    """The step whose window contains its start."""
    start_ns: int
    end_ns: int
    duration_ns: int
    device: int | None
    stream: int | None
    process: str
    thread: str
    correlation: int | None
    launch: LaunchDetails | None
    collective: CollectiveDetails | None


def event_details(run: Run, place: int, row: int) -> EventDetails:
    """The event at `row` of `run.traces[place]`. Raises `OverlaplabError` if there is none."""
    if not 0 <= place < len(run.traces):
        raise OverlaplabError(f"no trace {place}", path=run.path, remedy=f"It holds {len(run.traces)}.")
    trace = run.traces[place]
    if not 0 <= row < len(trace.events):
        held = f"It holds {len(trace.events)} events."
        raise OverlaplabError(f"no event {row}", path=trace.path, rank=trace.rank, remedy=held)
    zero = trace.origin_ns + int(corrections(run)[place])
    event = trace.events.iloc[row]
    start, duration = int(event["ts_ns"]), int(event["dur_ns"])
    return EventDetails(
        rank=trace.rank,
        name=str(event["name"]),
        category=str(event["category"]),
        counts_as=str(classify(trace)[row].value),
        step=next((w.step for w in step_windows(trace) if w.start_ns <= start < w.end_ns), None),
        start_ns=start - zero,
        end_ns=start - zero + duration,
        duration_ns=duration,
        device=_number(event["device"]),
        stream=_number(event["stream"]),
        process=str(event["pid"]),
        thread=str(event["tid"]),
        correlation=_number(event["correlation"]),
        launch=_launch(trace, row, zero),
        collective=_collective(run, place, row),
    )


def _number(value: Any) -> int | None:
    """A number of the event table, which is -1 where unknown."""
    return int(value) if value >= 0 else None


def _launch(trace: Trace, row: int, zero: int) -> LaunchDetails | None:
    call = int(launchers(trace)[row])
    if call < 0:
        return None
    call_event, at = trace.events.iloc[call], int(trace.events["ts_ns"].to_numpy()[row])
    start = int(call_event["ts_ns"])
    return LaunchDetails(
        name=str(call_event["name"]),
        start_ns=start - zero,
        thread=str(call_event["tid"]),
        operator=_operator_around(trace.events, call),
        delay_ns=at - start,
    )


def _operator_around(events: pd.DataFrame, call: int) -> str | None:
    """The name of the innermost operator around the call on its thread, `record_param_comms` only as a last resort."""
    thread, starts = thread_numbers(events), events["ts_ns"].to_numpy()
    ends = starts + events["dur_ns"].to_numpy()
    earlier = int(np.searchsorted(starts, starts[call], side="right"))
    around: NDArray[np.bool_] = (thread[:earlier] == thread[call]) & (ends[:earlier] >= ends[call])
    around &= matching(events["category"].iloc[:earlier], OPERATOR_CATEGORIES.__contains__)
    rows = np.flatnonzero(around)
    if not len(rows):
        return None
    inwards = [str(events["name"].iat[row]) for row in rows[np.lexsort((-ends[rows], starts[rows]))]]
    return next((name for name in reversed(inwards) if name != _ARGUMENTS), _ARGUMENTS)


def _collective(run: Run, place: int, row: int) -> CollectiveDetails | None:
    of_trace = int(recorded_of_events(run.traces[place])[row])
    if of_trace < 0:
        return None
    arrivals = numbered_arrivals(run)
    here = (arrivals["trace"] == place) & (arrivals["row"] == of_trace)
    index = int(arrivals.loc[here, "index"].iloc[0])
    table = collectives(run)
    table = table[table["index"] == index].sort_values("rank", kind="stable")
    records = table.to_dict("records")
    rows = [{str(name): None if _is_absent(value) else value for name, value in row.items()} for row in records]
    details = next(row for row in rows if row["rank"] == run.traces[place].rank)
    return details | {"peers": [{name: peer[name] for name in _PEER} for peer in rows]}


def _is_absent(value: Any) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or value != value
