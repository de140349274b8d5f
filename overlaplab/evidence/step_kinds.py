"""Kinds of steps: those that send and do the same, such as steps that accumulate, and those that send the sums."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, once_per_run, once_per_trace, step_windows, windows_at
from overlaplab.evidence.ddp import forward_passes, optimizer_steps
from overlaplab.evidence.host_work import host_work
from overlaplab.evidence.recorded import UNKNOWN_NS, recorded_collectives
from overlaplab.evidence.selection import count_by_step, launched_in

_AS_MANY_BYTES = 1.5
"""Steps that launch as many collectives are of different kinds where the bytes differ by more than this factor."""
_FEWEST_ALTERNATING = 6
"""Steps, from which on longer and shorter ones hardly alternate by chance."""
_MIN_DIFFERENCE_SHARE = 0.02
"""Steps whose times differ by less than 2 % are of one kind."""
_MAX_KINDS_SHARE = 0.5
"""With more kinds than half the steps, what steps send varies freely, and all count as one kind."""


@once_per_run
def step_kinds(run: Run) -> dict[int, int]:
    """The kind of each recorded step, by its number: 0 is the most frequent kind, on ties the first recorded.

    Steps are of one kind where every rank launches as many collectives of each kind in them, of about as many bytes,
    begins as many forward passes of DDP and optimizer steps, and does the same by name between its passes. Steps that
    differ in none of that are of two kinds if longer and shorter ones alternate. Steps are of one kind if they vary
    freely. A rank that has not recorded a step tells nothing of its kind.
    """
    by_rank = [step_signatures(trace) for trace in run.traces]
    numbers = sorted({number for each in by_rank for number in each})
    signatures = {number: tuple(each.get(number) for each in by_rank) for number in numbers}
    whole = Counter(signature for signature in signatures.values() if None not in signature)
    for number, signature in signatures.items():
        if None in signature:
            fitting = (each for each, _ in whole.most_common() if _agree(signature, each))
            signatures[number] = next(fitting, signature)
    occurrences = Counter(signatures.values())
    if len(occurrences) > max(_MAX_KINDS_SHARE * len(numbers), 1):
        return dict.fromkeys(numbers, 0)
    if len(occurrences) == 1 and _alternate(_mean_spans_ns(run, numbers)):
        return {number: place % 2 for place, number in enumerate(numbers)}
    first = {signature: number for number, signature in reversed(signatures.items())}
    order = sorted(occurrences, key=lambda signature: (-occurrences[signature], first[signature]))
    return {number: order.index(signature) for number, signature in signatures.items()}


def _agree(signature: Sequence[object], whole: Sequence[object]) -> bool:
    """Whether the ranks that recorded the one step did as in the other, which all recorded."""
    return all(mine is None or mine == other for mine, other in zip(signature, whole, strict=True))


def _mean_spans_ns(run: Run, numbers: Sequence[int]) -> NDArray[np.float64]:
    """How long each numbered step takes, the mean over the ranks that have it."""
    spans: dict[int, list[int]] = {number: [] for number in numbers}
    for window in chain.from_iterable(map(step_windows, run.traces)):
        if window.step is not None:
            spans[window.step].append(window.end_ns - window.start_ns)
    return np.array([np.mean(spans[number]) for number in numbers])


def _alternate(spans_ns: NDArray[np.float64]) -> bool:
    """Whether every other step is longer, by more than steps of either half differ, and by much of a step."""
    if len(spans_ns) < _FEWEST_ALTERNATING:
        return False
    halves = sorted((spans_ns[::2], spans_ns[1::2]), key=np.mean)
    apart_ns = halves[1].min() - halves[0].max()
    return bool(apart_ns > max(*(np.ptp(half) for half in halves), _MIN_DIFFERENCE_SHARE * spans_ns.mean()))


def kind_period(steps: Sequence[int], recorded: Sequence[int]) -> int | None:
    """Every how many steps the kind of these `steps` comes; None where the `recorded` ones do not tell.

    It is known from two periods on. Steps in a row have none.
    """
    gaps = set(np.diff(sorted(steps)).tolist())
    if len(gaps) != 1:
        return None
    (period,) = gaps
    return int(period) if 1 < period <= len(recorded) / 2 else None


@once_per_trace
def step_signatures(trace: Trace) -> dict[int, tuple[object, ...]]:
    """What each numbered step sends and does, as something that is equal for steps of one kind."""
    windows = [window for window in step_windows(trace) if window.step is not None]
    rows = recorded_collectives(trace)
    rows = rows[rows["start_ns"] != UNKNOWN_NS]
    launched_ns = rows["host_ns"].where(rows["host_ns"] != UNKNOWN_NS, rows["start_ns"]).to_numpy(np.int64)
    sent: list[Counter[str]] = [Counter() for _ in windows]
    sizes = np.zeros(len(windows), dtype=np.int64)
    places = windows_at(windows, launched_ns, of_host=True).tolist()
    for place, kind, size in zip(places, rows["kind"], rows["bytes"], strict=True):
        if place >= 0:
            sent[place][str(kind)] += 1
            sizes[place] += max(size, 0)
    passes = [count_by_step(windows, spans) for spans in (forward_passes(trace), optimizer_steps(trace))]
    works = [launched_in(host_work(trace), window) for window in windows]
    names = [{re.sub(r"\d+", "", label.fields["name"]) for label in each} for each in works]
    counts = [
        (tuple(sorted(by_kind.items())), tuple(sorted(names[place])), *(int(each[place]) for each in passes))
        for place, by_kind in enumerate(sent)
    ]
    classes = _size_classes(counts, sizes)
    return {
        window.step: (*count, size)
        for window, count, size in zip(windows, counts, classes, strict=True)
        if window.step is not None
    }


def _size_classes(counts: Sequence[object], sizes: np.ndarray) -> list[int]:
    """For each step a number that is the same where as many collectives send about as many bytes."""
    order = sorted(range(len(counts)), key=lambda place: int(sizes[place]))
    classes = [0] * len(counts)
    last: dict[object, int] = {}
    for place in order:
        before = last.get(counts[place])
        if before is not None:
            apart = int(sizes[place]) > _AS_MANY_BYTES * int(sizes[before])
            classes[place] = classes[before] + apart
        last[counts[place]] = place
    return classes
