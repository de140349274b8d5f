"""From slices of events to columns, and from columns of parts of a file to those of the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from overlaplab.event_columns import DAMAGED
from overlaplab.intervals import Integers, Mask
from overlaplab.load.file.arrows import Arrows
from overlaplab.load.file.columns import Columns, as_codes, narrow_to_int32, number, numbers
from overlaplab.load.file.communication import Communication
from overlaplab.load.file.decode import NO_ARGUMENTS, NO_DURATION, Arguments, FileEvent, Value
from overlaplab.load.file.times import ABSENT, Time, counts_ns, nanoseconds, us_as_ns
from overlaplab.vocabulary import SYNC_CATEGORY, category_of_uncategorised, names_a_device

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

    def __init__(self, ns: bool | None = None) -> None:
        self.columns = Columns()
        self.repairs: Counter[str] = Counter()
        """What was repaired or left out, and how often."""
        self.communication = Communication()
        self.unknown_device: dict[str, None] = {}
        """What names a device whose events no rule knows, in order of appearance."""
        self.arrows = Arrows()
        self.spans = Spans()
        self.syncs: list[tuple[int, int, int]] = []
        """The rows of `SYNC_COLUMNS`, each with the row of its event in the file."""
        self.ranks: list[NDArray[Any] | int] = []
        """The rows' ranks by slice, or how many rows have none."""
        self.ns = ns
        """Whether the file's times are ns; None until there is one."""
        self.latest_ns = 0

    def append(self, events: list[FileEvent], us: NDArray[np.float64] | None) -> None:
        """Add a slice, as `decode_events` gives it."""
        kinds = _kinds(events)
        if not (used := kinds > 0).all():
            self._note_processes(_select_events(events, ~used))
            events, kinds, us = _select_events(events, used), kinds[used], None if us is None else us[used]
        if not events:
            return
        if us is None or self.ns is not False:
            times = self._nanoseconds([event.ts for event in events])
        else:
            times = us_as_ns(us)
        if (kinds >= _BEGIN).any():
            events, kinds, times = self._pair_spans(events, kinds, times)
        if (absent := times == ABSENT).any():
            self.repairs["events without a usable time were left out"] += int(absent.sum())
            events, kinds, times = _select_events(events, ~absent), kinds[~absent], times[~absent]
        self.latest_ns = max(self.latest_ns, int(times.max(initial=0)))
        texts = self.columns.texts
        pids = texts["pid"].codes(lambda codes: [codes[event.pid] for event in events])
        tids = texts["tid"].codes(lambda codes: [codes[event.tid] for event in events])
        is_row = kinds <= _INSTANT
        first_row = self.columns.rows
        self._rows(_select_events(events, is_row), kinds[is_row], times[is_row], pids[is_row], tids[is_row])
        ends = _select_events(events, ~is_row)
        for flow in {end.cat for end in ends if end.cat is not None}:
            if names_a_device(flow=flow):
                self.unknown_device[f"arrows called '{flow}'"] = None
        self.arrows.append(ends, is_row, (times, pids, tids), first_row)

    def extend(self, later: Gathered) -> None:
        """Add the content of the slices that follow, which was gathered apart, without open spans."""
        first_row = self.columns.rows
        codes = self.columns.extend(later.columns)
        self.arrows.extend(later.arrows, first_row, codes["pid"], codes["tid"])
        self.communication.extend(later.communication, first_row)
        self.syncs += [(first_row + row, stream, call) for row, stream, call in later.syncs]
        self.ranks += later.ranks
        self.repairs.update(later.repairs)
        self.unknown_device |= later.unknown_device
        self.latest_ns = max(self.latest_ns, later.latest_ns)

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
                self.syncs.append((self.columns.rows + row, *waited))
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
            self.ranks.append(count)
            return
        found_ranks = narrow_to_int32(numbers(ranks))
        values = np.full(count, -1, dtype=found_ranks.dtype)
        values[rows] = found_ranks
        self.ranks.append(values)

    def _pair_spans(
        self, events: list[FileEvent], kinds: NDArray[np.uint8], times: Integers
    ) -> tuple[list[FileEvent], NDArray[np.uint8], Integers]:
        """The same, with begin and end events replaced by complete ones."""
        complete: list[tuple[FileEvent, int, int]] = []
        for event, kind, time_ns in zip(events, kinds.tolist(), times.tolist(), strict=True):
            if kind == _BEGIN:
                self.spans.begin(event, time_ns)
            elif kind != _END:
                complete.append((event, kind, time_ns))
            elif span := self.spans.end(event, time_ns):
                begin, start_ns = span
                lasted = Decimal(time_ns - start_ns) / (1 if self.ns else 1000)
                complete.append((msgspec.structs.replace(begin, dur=str(lasted)), _COMPLETE, start_ns))
        columns = list(zip(*complete, strict=True)) or [(), (), ()]
        return list(columns[0]), np.array(columns[1], dtype=np.uint8), np.array(columns[2], dtype=np.int64)

    def _nanoseconds(self, values: list[Time]) -> Integers:
        if self.ns is None:
            self.ns = counts_ns(values)
        return nanoseconds(values, ns=bool(self.ns))


def _kinds(events: list[FileEvent]) -> NDArray[np.uint8]:
    """What each becomes by its phase; 0 for what becomes nothing."""
    try:
        kinds = bytes([_PHASES[event.ph] for event in events])
    except KeyError:
        kinds = bytes([_PHASES.get(event.ph, 0) for event in events])
    return np.frombuffer(kinds, dtype=np.uint8)


def _select_events(events: list[FileEvent], chosen: Mask) -> list[FileEvent]:
    return list(compress(events, chosen.tolist()))


def _category(event: FileEvent) -> str | None:
    return category_of_uncategorised(str(event.name), event.pid) if event.cat is None else event.cat


class Spans:
    """The open events of each process and thread (`B`), to make complete ones (`X`); an end is the last begin's."""

    def __init__(self) -> None:
        self.unmatched_ends = 0
        self._open: dict[tuple[Value, Value], list[tuple[FileEvent, int]]] = {}

    @property
    def unmatched_begins(self) -> int:
        return sum(map(len, self._open.values()))

    def begin(self, event: FileEvent, time_ns: int) -> None:
        self._open.setdefault((event.pid, event.tid), []).append((event, time_ns))

    def end(self, event: FileEvent, time_ns: int) -> tuple[FileEvent, int] | None:
        """The event that ends here and its start in ns; None if none is open."""
        begun = self._open.get((event.pid, event.tid))
        if not begun or ABSENT in (time_ns, begun[-1][1]) or time_ns < begun[-1][1]:
            self.unmatched_ends += 1
            return None
        return begun.pop()
