"""From the columns of one file to its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.event_columns import COLLECTIVE_COLUMNS, DAMAGED, INPUT_COLUMNS, SYNC_COLUMNS
from overlaplab.events import calls_of, event_times, matching
from overlaplab.intervals import Integers
from overlaplab.load.file.gathered import Gathered
from overlaplab.load.file.times import LIMIT_NS
from overlaplab.vocabulary import is_device_category, is_host_category

_MAX_CLOCK_OFFSET_NS = 1_000_000_000
"""A host's and its device's clock differ by less, beyond what they differ throughout the recording."""
_MAX_BEHIND_NS = 60_000_000_000
"""The profiler waits for the device when it stops, so no device event lies a minute away from all that the host did."""
_NEVER = np.iinfo(np.int64).min


class FileTables(TypedDict):
    events: pd.DataFrame
    collectives: pd.DataFrame
    inputs: pd.DataFrame
    syncs: pd.DataFrame
    event_ranks: Integers | None


def file_tables(gathered: Gathered, base_ns: int) -> FileTables:
    """The tables; nothing can be added afterwards."""
    if gathered.spans.unmatched_begins:
        gathered.repairs["events that begin and do not end were left out"] += gathered.spans.unmatched_begins
    if gathered.spans.unmatched_ends:
        gathered.repairs["ends of events that did not begin were left out"] += gathered.spans.unmatched_ends
    if base_ns > LIMIT_NS - gathered.latest_ns:
        base_ns = 0
        gathered.repairs["baseTimeNanoseconds beyond what 64 bits hold was taken as absent"] += 1
    arrows = {name: gathered.arrows.column(name, gathered.columns) for name in ("flow_launch", "flow_backward")}
    events, order = gathered.columns.table(base_ns, arrows)
    streams = events["stream"].to_numpy()
    launching = matching(events["category"], is_host_category) & (streams >= 0)
    if launching.any():  # Inductor's ranges, and HIP's calls, name the stream that they launch on
        events["stream"] = np.where(launching, streams.dtype.type(-1), streams)
    events, order = _mark_impossible_times(gathered, events, order, base_ns)
    position = np.empty(len(order), dtype=np.intp)
    position[order] = np.arange(len(order))
    return FileTables(
        events=events,
        collectives=_side_table(gathered.communication.collectives, COLLECTIVE_COLUMNS, position),
        inputs=_side_table(gathered.communication.inputs, INPUT_COLUMNS, position),
        syncs=_side_table(gathered.syncs, SYNC_COLUMNS, position),
        event_ranks=_event_ranks(gathered, order),
    )


def _mark_impossible_times(
    gathered: Gathered, events: pd.DataFrame, order: NDArray[np.intp], zero_ns: int
) -> tuple[pd.DataFrame, NDArray[np.intp]]:
    """The events, and their rows in the file. Device events without a duration, or at impossible times, are damaged;
    the latter stand at their launch.
    """
    impossible, launched_ns = _impossible_times(events, zero_ns)
    phase = events["phase"].array
    untimed = np.flatnonzero(matching(events["category"], is_device_category) & np.asarray(phase == "i"))
    if len(untimed):
        gathered.repairs["kernels or copies have no duration: how long they took is unknown"] += len(untimed)
    if len(impossible):
        gathered.repairs[
            "events of a device lie before their launch, or a minute from all that the host did: their times are"
            " unknown"
        ] += len(impossible)
    damaged = np.union1d(impossible, untimed)
    if not len(damaged):
        return events, order
    starts, durations = events["ts_ns"].to_numpy().copy(), events["dur_ns"].to_numpy().copy()
    starts[impossible], durations[damaged] = launched_ns, 0
    phases = phase.astype(object)
    phases[damaged] = DAMAGED
    by_time = np.lexsort((-durations, starts))
    events = events.assign(ts_ns=starts, dur_ns=durations, phase=pd.Categorical(phases))
    return events.iloc[by_time].reset_index(drop=True), order[by_time]


def _event_ranks(gathered: Gathered, order: NDArray[np.intp]) -> Integers | None:
    if all(isinstance(ranks, int) for ranks in gathered.ranks):
        return None
    by_slice = (np.full(ranks, -1, np.int32) if isinstance(ranks, int) else ranks for ranks in gathered.ranks)
    return np.concatenate(list(by_slice))[order].astype(np.int64)


def _side_table(rows: list[Any], columns: Mapping[str, str], position: NDArray[np.intp]) -> pd.DataFrame:
    """These rows, of which the first value is an event's row in the file, in order of events.

    `position[i]` is the row of the events that row `i` of the file has become.
    """
    values: list[Any] = list(zip(*rows, strict=True)) or [()] * len(columns)
    table = {name: _column(each, dtype) for each, (name, dtype) in zip(values, columns.items(), strict=True)}
    table["event"] = position[np.array(values[0], dtype=np.intp)].astype(np.int64)
    return pd.DataFrame(table).sort_values("event", kind="stable", ignore_index=True)


def _column(values: Sequence[Any], dtype: str) -> object:
    if dtype == "category":
        texts: dict[str, int] = {}
        codes = [texts.setdefault(value, len(texts)) for value in values]
        return pd.Categorical.from_codes(codes, pd.Index(list(texts), dtype=object))
    return np.array(values, dtype=dtype)


def _impossible_times(events: pd.DataFrame, zero_ns: int) -> tuple[Integers, Integers]:
    """The rows of device events at impossible times, and when each was launched; if unknown, the host's first moment.

    Such are times before the launch, or a minute from all that the host did: profilers now and then give an event no
    time at all (`"ts": 0`, pytorch/kineto#109), or that of another clock (pytorch/pytorch#192021), and one would
    stretch its step by years. `zero_ns` is what a time of 0 in the file became.
    """
    category = events["category"]
    device = np.flatnonzero(matching(category, is_device_category) | (events["stream"].to_numpy() >= 0))
    host = np.flatnonzero(matching(category, is_host_category))
    if not len(device) or not len(host):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    starts, (begins, ends) = events["ts_ns"].to_numpy(), event_times(events, device)
    calls = calls_of(events, device)  # the first, where merged processes have the same numbers, so that none is late
    launched = np.where(calls >= 0, starts[calls], _NEVER)
    delay = begins - launched
    timed = (launched != _NEVER) & (begins != zero_ns)
    usual = int(np.median(delay[timed])) if timed.any() else 0
    early = (launched != _NEVER) & (delay < min(usual, 0) - _MAX_CLOCK_OFFSET_NS)
    early |= (launched != _NEVER) & (delay < 0) & (begins == zero_ns) & (ends == zero_ns)
    first_ns, last_ns = int(starts[host].min()), int(event_times(events, host)[1].max())
    far = begins < first_ns + min(usual, 0) - _MAX_BEHIND_NS
    far |= ends > last_ns + max(usual, 0) + _MAX_BEHIND_NS
    wrong = early | far
    return device[wrong], np.where(launched != _NEVER, launched, first_ns)[wrong]
