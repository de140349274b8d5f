"""The ranks and steps that a selection picks from a run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, Trace, Window, rule_of, step_windows, windows_at
from overlaplab.evidence.labels import Span
from overlaplab.intervals import Integers
from overlaplab.selection import Selection
from overlaplab.vocabulary import Rule
from overlaplab.words import numbers_named

Launched = TypeVar("Launched", bound=Span)


def launched_in(spans: Sequence[Launched], step: Window) -> Sequence[Launched]:
    """The ranges that began while the host was in the step; they must be in order of start."""
    if not spans:  # most analyses look for ranges that most traces do not have
        return spans
    first = bisect_left(spans, step.host_start_ns, key=lambda span: span.start_ns)
    return spans[first : bisect_left(spans, step.host_end_ns, lo=first, key=lambda span: span.start_ns)]


def count_by_step(steps: Sequence[Window], spans: Iterable[Span]) -> Integers:
    """How many of the ranges began while the host was in each step."""
    places = windows_at(steps, np.array([span.start_ns for span in spans], dtype=np.int64), of_host=True)
    return np.bincount(places[places >= 0], minlength=len(steps))


def is_inside(spans: Sequence[Span], moment_ns: int) -> bool:
    """Whether one of the ranges, which must be in order of start and apart, holds the moment, its end included."""
    before = bisect_right(spans, moment_ns, key=lambda span: span.start_ns)
    return before > 0 and moment_ns <= spans[before - 1].end_ns


def selected_traces(run: Run, selection: Selection) -> list[Trace]:
    """The run's traces of the selected ranks; raises `OverlaplabError` for a rank that is not in the run."""
    if (ranks := selection.ranks) is None:
        return list(run.traces)
    present = {trace.rank for trace in run.traces}
    for rank in ranks:
        if rank not in present:
            has = f"It holds {_list_numbers(present)}."
            raise OverlaplabError("not in this run", path=run.path, rank=rank, remedy=has)
    return [trace for trace in run.traces if trace.rank in set(ranks)]


def measured_traces(run: Run, selection: Selection) -> list[Trace]:
    """`selected_traces` without those whose device activity was not recorded."""
    return [trace for trace in selected_traces(run, selection) if rule_of(trace) is not Rule.UNRECORDED]


def rows_by_rank(
    run: Run, selection: Selection, rows_of: Callable[[Trace, Sequence[Window]], Iterable[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The rows that a function yields for each measured trace and its selected windows, with `rank` added."""
    windows = [(trace, selected_windows(trace, selection)) for trace in selected_traces(run, selection)]
    measured = [(trace, chosen) for trace, chosen in windows if rule_of(trace) is not Rule.UNRECORDED]
    return [row | {"rank": trace.rank} for trace, chosen in measured for row in rows_of(trace, chosen)]


def selected_windows(trace: Trace, selection: Selection) -> list[Window]:
    """The trace's windows of the selected steps; raises `OverlaplabError` for a step that is not in the trace."""
    every = step_windows(trace)
    remaining = every[selection.skip_steps :]
    if every and not remaining:
        what, has = f"no step is left after skipping {selection.skip_steps}", f"It holds {len(every)}."
        raise OverlaplabError(what, path=trace.path, rank=trace.rank, remedy=has)
    if (steps := selection.steps) is None:
        return list(remaining)
    present, wanted = {window.step for window in remaining}, set(steps)
    for step in steps:
        if step not in present:
            has = f"It holds {_list_numbers(present)}."
            raise OverlaplabError(f"no step {step}", path=trace.path, rank=trace.rank, remedy=has)
    return [window for window in remaining if window.step in wanted]


def _list_numbers(numbers: Collection[int | None]) -> str:
    steps = sorted(number for number in numbers if number is not None)
    return numbers_named(steps) or "none with a number"
