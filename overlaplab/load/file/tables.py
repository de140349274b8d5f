"""From slices of events to the tables of one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import DAMAGED, SYNC_COLUMNS, matching
from overlaplab.load.file.arrows import Arrows
from overlaplab.load.file.columns import Columns, Integers, as_codes, narrow_to_int32, number, numbers
from overlaplab.load.file.communication import Communication, side_table
from overlaplab.load.file.decode import NO_ARGUMENTS, NO_DURATION, Arguments, FileEvent
from overlaplab.load.file.impossible_times import impossible_times
from overlaplab.load.file.spans import Spans
from overlaplab.load.file.times import ABSENT, LIMIT_NS, Time, counts_ns, nanoseconds, us_as_ns
from overlaplab.vocabulary import (
    SYNC_CATEGORY,
    category_of_uncategorised,
    is_device_category,
    is_host_category,
    names_a_device,
)

_COMPLETE, _INSTANT, _ARROW, _BEGIN, _END = range(1, 6)
_PHASES: dict[str | None, int] = {
    "X": _COMPLETE,
    "i": _INSTANT,
    "I": _INSTANT,
    "s": _ARROW,
    "f": _ARROW,
    "B": _BEGIN,
    "E": _END,
}
"""The phases of the Trace Event Format that become rows or arrows; not counters, metadata and asynchronous ranges."""


class Gathered:
    """The content of the slices so far."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.repairs: Counter[str] = Counter()
        """What was repaired or left out, and how often."""
        self.communication = Communication()
        self.unknown_device: dict[str, None] = {}
        """What names a device whose events no rule knows, in order of appearance."""
        self._arrows = Arrows()
        self._spans = Spans()
        self._syncs: list[tuple[int, int, int]] = []
        """The rows of `SYNC_COLUMNS`, each with the row of its event in the file."""
        self._ranks: list[NDArray[Any]] = []
        self._ns: bool | None = None
        self._latest_ns = 0

    def append(self, events: list[FileEvent], us: NDArray[np.float64] | None) -> None:
        """Add a slice, as `decode_events` gives it."""
        kinds = _kinds(events)
        if not (meant := kinds > 0).all():
            self._note_processes(_select_events(events, ~meant))
            events, kinds, us = _select_events(events, meant), kinds[meant], None if us is None else us[meant]
        if not events:
            return
        if us is None or self._ns is not False:
            times = self._nanoseconds([event.ts for event in events])
        else:
            times = us_as_ns(us)
        if (kinds >= _BEGIN).any():
            events, kinds, times = self._pair_spans(events, kinds, times)
        if (absent := times == ABSENT).any():
            self.repairs["events without a usable time were left out"] += int(absent.sum())
            events, kinds, times = _select_events(events, ~absent), kinds[~absent], times[~absent]
        self._latest_ns = max(self._latest_ns, int(times.max(initial=0)))
        texts = self.columns.texts
        pids = texts["pid"].codes(lambda codes: [codes[event.pid] for event in events])
        tids = texts["tid"].codes(lambda codes: [codes[event.tid] for event in events])
        row = kinds <= _INSTANT
        first_row = self.columns.rows
        self._rows(_select_events(events, row), kinds[row], times[row], pids[row], tids[row])
        ends = _select_events(events, ~row)
        for flow in {end.cat for end in ends if end.cat is not None}:
            if names_a_device(flow=flow):
                self.unknown_device[f"arrows called '{flow}'"] = None
        self._arrows.append(ends, row, (times, pids, tids), first_row)

    def _note_processes(self, events: list[FileEvent]) -> None:
        """Note processes that are called after a device, from a slice's other entries."""
        for event in events:
            if event.ph == "M" and event.name == "process_name" and event.args is not None:
                name = bytes(event.args.name).decode(errors="replace").strip('"')
                if names_a_device(process=name):
                    self.unknown_device[f"process '{name}'"] = None

    def _rows(
        self,
        events: list[FileEvent],
        kinds: NDArray[np.uint8],
        times: Integers,
        pids: NDArray[np.int32],
        tids: NDArray[np.int32],
    ) -> None:
        """Add complete events and instants."""
        durations = self._nanoseconds([event.dur for event in events])
        instant = (kinds == _INSTANT) | (durations == ABSENT) | (durations == self._nanoseconds([NO_DURATION])[0])
        damaged = (durations < 0) & ~instant
        if damaged.any():
            self.repairs["events have a negative duration: how long they took is unknown"] += int(damaged.sum())
        texts = self.columns.texts
        phases = as_codes([texts["phase"][phase] for phase in ("X", "i", DAMAGED)])
        arguments = [event.args or NO_ARGUMENTS for event in events]
        external = numbers([values.external for values in arguments])
        if (external < 0).all():
            external = numbers([values.external_2021 for values in arguments])
        described_rows = [
            row
            for row, values in enumerate(arguments)
            if values.collective is not None or values.rank != -1 or values.collective_rank != -1
        ]
        self._add_ranks([arguments[row] for row in described_rows], described_rows, len(arguments))
        names = texts["name"].codes(lambda codes: [codes[event.name] for event in events])
        described = [row for row in described_rows if arguments[row].collective is not None]
        self.communication.append(texts["name"], names, arguments, described, self.columns.rows)
        categories = texts["category"].codes(lambda codes: [codes[event.cat] for event in events])
        if None in texts["category"].code_of:
            categories = texts["category"].codes(lambda codes: [codes[_category(event)] for event in events])
        if (code := texts["category"].code_of.get(SYNC_CATEGORY)) is not None:
            for row in np.flatnonzero(categories == code).tolist():
                waited = number(arguments[row].wait_on_stream), number(arguments[row].recorded_by)
                self._syncs.append((self.columns.rows + row, *waited))
        self.columns.append(
            {
                "name": names,
                "category": categories,
                "phase": phases[np.where(damaged, 2, instant.astype(np.intp))],
                "ts_ns": times,
                "dur_ns": np.where(instant | damaged, 0, durations),
                "pid": pids,
                "tid": tids,
                "stream": numbers([values.stream for values in arguments]),
                "device": numbers([values.device for values in arguments]),
                "correlation": numbers([values.correlation for values in arguments]),
                "external_id": external,
            }
        )

    def _add_ranks(self, arguments: Sequence[Arguments], rows: Sequence[int], count: int) -> None:
        """Add the ranks of `count` rows; these arguments, of these `rows`, may tell some."""
        ranks = [values.rank for values in arguments]
        if ranks.count(-1) == len(ranks):
            # torch writes a collective's `Rank`, which for send and receive is the other side's.
            ranks = [values.collective_rank if values.collective is None else -1 for values in arguments]
        if ranks.count(-1) == len(ranks):
            self._ranks.append(np.broadcast_to(np.int32(-1), count))  # without memory of its own
            return
        found_ranks = narrow_to_int32(numbers(ranks))
        self._ranks.append(np.full(count, -1, dtype=found_ranks.dtype))
        self._ranks[-1][rows] = found_ranks

    def _pair_spans(
        self, events: list[FileEvent], kinds: NDArray[np.uint8], times: Integers
    ) -> tuple[list[FileEvent], NDArray[np.uint8], Integers]:
        """The same, with begin and end events replaced by complete ones."""
        complete: list[tuple[FileEvent, int, int]] = []
        for event, kind, time_ns in zip(events, kinds.tolist(), times.tolist(), strict=True):
            if kind == _BEGIN:
                self._spans.begin(event, time_ns)
            elif kind != _END:
                complete.append((event, kind, time_ns))
            elif span := self._spans.end(event, time_ns):
                begin, start_ns = span
                lasted = Decimal(time_ns - start_ns) / (1 if self._ns else 1000)
                complete.append((msgspec.structs.replace(begin, dur=str(lasted)), _COMPLETE, start_ns))
        columns = list(zip(*complete, strict=True)) or [(), (), ()]
        return list(columns[0]), np.array(columns[1], dtype=np.uint8), np.array(columns[2], dtype=np.int64)

    def _nanoseconds(self, values: list[Time]) -> Integers:
        if self._ns is None:
            self._ns = counts_ns(values)
        return nanoseconds(values, ns=bool(self._ns))

    def finish(self, base_ns: int) -> FileTables:
        """The tables; nothing can be added afterwards."""
        if self._spans.unmatched_begins:
            self.repairs["events that begin and do not end were left out"] += self._spans.unmatched_begins
        if self._spans.unmatched_ends:
            self.repairs["ends of events that did not begin were left out"] += self._spans.unmatched_ends
        if base_ns > LIMIT_NS - self._latest_ns:
            base_ns = 0
            self.repairs["baseTimeNanoseconds beyond what 64 bits hold was taken as absent"] += 1
        arrows = {name: self._arrows.column(name, self.columns) for name in ("flow_launch", "flow_backward")}
        events, order = self.columns.table(base_ns, arrows)
        streams = events["stream"].to_numpy()
        launching = matching(events["category"], is_host_category) & (streams >= 0)
        if launching.any():  # Inductor's ranges, and HIP's calls, name the stream that they launch on
            events["stream"] = np.where(launching, streams.dtype.type(-1), streams)
        events, order = self._without_impossible_times(events, order, base_ns)
        position = np.empty(len(order), dtype=np.intp)
        position[order] = np.arange(len(order))
        return FileTables(
            events=events,
            collectives=self.communication.collectives(position),
            inputs=self.communication.inputs(position),
            syncs=side_table(self._syncs, SYNC_COLUMNS, position),
            event_ranks=self._event_ranks(order),
        )

    def _without_impossible_times(
        self, events: pd.DataFrame, order: NDArray[np.intp], zero_ns: int
    ) -> tuple[pd.DataFrame, NDArray[np.intp]]:
        """The events, and their rows in the file, with device events at impossible times damaged, at their launch."""
        rows, launched_ns = impossible_times(events, zero_ns)
        phase = events["phase"].array
        untimed = np.flatnonzero(matching(events["category"], is_device_category) & np.asarray(phase == "i"))
        if len(untimed):
            self.repairs["kernels or copies have no duration: how long they took is unknown"] += len(untimed)
        if len(rows):
            self.repairs[
                "events of a device lie before their launch, or a minute from all that the host did: their times are"
                " unknown"
            ] += len(rows)
        both = np.union1d(rows, untimed)
        if not len(both):
            return events, order
        starts, durations = events["ts_ns"].to_numpy().copy(), events["dur_ns"].to_numpy().copy()
        starts[rows], durations[both] = launched_ns, 0
        phases = phase.astype(object)
        phases[both] = DAMAGED
        again = np.lexsort((-durations, starts))
        damaged = events.assign(ts_ns=starts, dur_ns=durations, phase=pd.Categorical(phases))
        return damaged.iloc[again].reset_index(drop=True), order[again]

    def _event_ranks(self, order: NDArray[np.intp]) -> Integers | None:
        if all(ranks.strides == (0,) for ranks in self._ranks):
            return None
        return np.concatenate(self._ranks)[order].astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTables:
    events: pd.DataFrame
    collectives: pd.DataFrame
    inputs: pd.DataFrame
    syncs: pd.DataFrame
    event_ranks: Integers | None


def _kinds(events: list[FileEvent]) -> NDArray[np.uint8]:
    """What each becomes by its phase; 0 for what becomes nothing."""
    try:
        kinds = bytes([_PHASES[event.ph] for event in events])
    except KeyError:
        kinds = bytes([_PHASES.get(event.ph, 0) for event in events])
    return np.frombuffer(kinds, dtype=np.uint8)


def _select_events(events: list[FileEvent], chosen: NDArray[np.bool_]) -> list[FileEvent]:
    return list(compress(events, chosen.tolist()))


def _category(event: FileEvent) -> str | None:
    return category_of_uncategorised(str(event.name), event.pid) if event.cat is None else event.cat
