"""The engine's labels of a trace, and named ranges, as records."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from msgspec import Struct

from overlaplab.events import Trace, event_times, host_ranges, once_per_trace, thread_numbers
from overlaplab.intervals import Intervals, union
from overlaplab.vocabulary import label_fields


class Span(Struct, frozen=True, kw_only=True):
    """A range on one thread, in absolute ns."""

    start_ns: int
    end_ns: int
    thread: int
    """The thread's number, see `events.thread_numbers`."""


class Label(Span, frozen=True, kw_only=True):
    """One `engine::WORD key=value …` range, or one of FSDP2's."""

    word: str
    fields: dict[str, str]
    """Values by key; lists and names are still percent-encoded (see `vocabulary.label_list`)."""

    @classmethod
    def make(cls, span: Span, word: str, fields: dict[str, str], *at_ns: int) -> Label:
        """A label over the span, or on its thread: at one moment, or from a first to a second."""
        start_ns, end_ns = (at_ns[0], at_ns[-1]) if at_ns else (span.start_ns, span.end_ns)
        return cls(start_ns=start_ns, end_ns=end_ns, thread=span.thread, word=word, fields=fields)


Ranges = TypeVar("Ranges", bound=Span)


def span_intervals(spans: Iterable[Span]) -> Intervals:
    """When any of the ranges lasts."""
    bounds = np.array([(span.start_ns, span.end_ns) for span in spans], dtype=np.int64).reshape(-1, 2)
    return union(bounds[:, 0], bounds[:, 1])


class Ordered(Generic[Ranges]):
    """Ranges by a key, each key's in order of start; answers which of them start when."""

    def __init__(self, ranges: Iterable[Ranges], key: Callable[[Ranges], Hashable]) -> None:
        self._ranges: dict[Hashable, list[Ranges]] = {}
        for span in ranges:
            self._ranges.setdefault(key(span), []).append(span)
        self._starts = {key: [span.start_ns for span in spans] for key, spans in self._ranges.items()}

    def starting_in(self, key: Hashable, start_ns: int, end_ns: int) -> Sequence[Ranges]:
        """Those that start from `start_ns` up to and including `end_ns`."""
        starts = self._starts.get(key, [])
        return self._ranges.get(key, [])[bisect_left(starts, start_ns) : bisect_right(starts, end_ns)]

    def starting_from(self, key: Hashable, start_ns: int) -> Iterator[Ranges]:
        """Those that start from this moment on, one after another."""
        ranges = self._ranges.get(key, [])
        return (ranges[place] for place in range(bisect_left(self._starts.get(key, []), start_ns), len(ranges)))

    def last_before(self, key: Hashable, at_ns: float) -> Ranges | None:
        """The last one that starts before this moment."""
        place = bisect_left(self._starts.get(key, []), at_ns)
        return self._ranges[key][place - 1] if place else None

    def range_around(self, key: Hashable, at_ns: int) -> Ranges | None:
        """The range around this moment; ranges of a key must not be nested."""
        last = self.last_before(key, at_ns + 1)
        return last if last and at_ns <= last.end_ns else None

    def first_after(self, key: Hashable, at_ns: float) -> Ranges | None:
        """The first one that starts after this moment."""
        starts = self._starts.get(key, [])
        place = bisect_right(starts, at_ns)
        return self._ranges[key][place] if place < len(starts) else None


@once_per_trace
def engine_labels(trace: Trace) -> tuple[Label, ...]:
    """The trace's engine labels in order of start, without malformed ones and without their copies on a GPU."""
    return parsed_ranges(trace, label_fields)


def parsed_ranges(trace: Trace, parse: Callable[[str], tuple[str, dict[str, str]] | None]) -> tuple[Label, ...]:
    """The host's ranges whose names `parse` splits into a word and fields, in order of start."""
    events, parsed = trace.events, {}

    def parses(name: str) -> bool:
        if (parts := parse(name)) is not None:  # once per name: most time goes into this
            parsed[name] = parts
        return parts is not None

    chosen = host_ranges(events, parses)
    if not chosen.any():
        return ()
    rows = np.flatnonzero(chosen)
    columns = (column.tolist() for column in (*event_times(events, rows), thread_numbers(events, rows)))
    return tuple(
        Label(word=parsed[name][0], fields=parsed[name][1], start_ns=start, end_ns=end, thread=thread)
        for name, start, end, thread in zip(events["name"].iloc[rows], *columns, strict=True)
    )
