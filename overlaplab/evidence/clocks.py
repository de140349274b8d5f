"""The offsets between ranks' clocks, from the ends of shared collectives (docs/design.md, "Ranks' clocks")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np
import pandas as pd

from overlaplab.events import Run, Trace, once_per_run
from overlaplab.evidence.alignment import FEWEST
from overlaplab.evidence.matching import match_collectives
from overlaplab.evidence.recorded import recorded_collectives
from overlaplab.intervals import Integers

LEAST_OFFSET_NS = 200_000
"""Smaller offsets are not corrected."""
_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds of collectives that end on all ranks at once."""


def clocks(run: Run) -> pd.DataFrame:
    """One row per trace: how far its clock is ahead of the first rank's.

    Columns: `rank` (Int64); `offset_ns` (Int64: how much later this clock shows the ends of matched all-reduces,
    all-gathers and reduce-scatters, the median; null if it shares none); `iqr_ns` (Int64, the interquartile range of
    those differences); `collectives` (their number); `applied` (bool: whether the rank's times are corrected by the
    offset, which takes 3 differences or more, and an offset above 200 µs and above 3 × the range); `error_ns` (Int64:
    skews up to this are meaningless: the range, or an uncorrected offset if that is larger; 200 µs where unknown).
    A rank that shares no collective with the first is compared with the already placed rank that it shares most with.
    """
    return _clocks(run).copy()


@once_per_run
def corrections(run: Run) -> Integers:
    """What to subtract from each trace's times, in ns, so that all ranks' times are comparable; read-only."""
    table = _clocks(run)
    offsets = np.array(table["offset_ns"].where(table["applied"], 0).fillna(0), dtype=np.int64)
    offsets.flags.writeable = False
    return offsets


def run_zero_ns(run: Run, trace: Trace) -> int:
    """The run's zero by the trace's own clock, in Unix ns. Subtract it from the trace's times to compare ranks."""
    return trace.origin_ns + int(corrections(run)[run.traces.index(trace)])


@once_per_run
def _clocks(run: Run) -> pd.DataFrame:
    traces = len(run.traces)
    matches, ends = _ends_together(run) if traces > 1 else ([np.empty(0, np.int64)] * traces, [])
    offsets: dict[int, int] = {0: 0}
    ranges: dict[int, int] = {0: 0}
    counts: dict[int, int] = {0: 0}
    for placed, new in _comparisons(matches):
        _, mine, its = np.intersect1d(matches[new], matches[placed], assume_unique=True, return_indices=True)
        differences = ends[new][mine] - ends[placed][its] + offsets[placed]
        apart = differences - differences[0]  # a float holds no Unix ns exactly
        low, middle, high = np.percentile(apart, [25, 50, 75])
        offsets[new] = int(differences[0]) + round(middle)
        ranges[new] = round(high - low)
        counts[new] = len(differences)
    is_placed = np.array([place in offsets for place in range(traces)], dtype=bool)
    columns = [[values.get(place, 0) for place in range(traces)] for values in (offsets, ranges, counts)]
    offset, spread, count = np.array(columns, dtype=np.int64)
    size = np.abs(offset)
    applied = (count >= FEWEST) & (size > LEAST_OFFSET_NS) & (size > 3 * spread)
    error = np.where(is_placed, np.maximum(np.where(applied, 0, size), spread), LEAST_OFFSET_NS)
    return pd.DataFrame(
        {
            "rank": pd.array([trace.rank for trace in run.traces], dtype="Int64"),
            "offset_ns": pd.arrays.IntegerArray(offset, ~is_placed),
            "iqr_ns": pd.arrays.IntegerArray(spread, ~is_placed),
            "collectives": count,
            "applied": applied,
            "error_ns": pd.array(error, dtype="Int64"),
        }
    )


def _ends_together(run: Run) -> tuple[list[Integers], list[Integers]]:
    """Each trace's matched collectives that end on all ranks at once: their numbers, ascending, and their ends."""
    pairs = match_collectives(run)
    pairs = pairs[pairs["reason"].isna()]
    borders = np.searchsorted(pairs["trace"], np.arange(len(run.traces) + 1))
    matches, ends = [], []
    for place, trace in enumerate(run.traces):
        of_trace = slice(borders[place], borders[place + 1])
        table = recorded_collectives(trace).iloc[pairs["row"].to_numpy()[of_trace]]
        numbers = pairs["match"].to_numpy()[of_trace]
        kinds = table["kind"].isin(_TOGETHER).to_numpy()
        order = np.argsort(numbers[kinds])
        matches.append(numbers[kinds][order])
        ends.append(table["end_ns"].to_numpy(np.int64)[kinds][order])
    return matches, ends


def _comparisons(matches: list[Integers]) -> Iterator[tuple[int, int]]:
    """Yield (placed, new): each trace but the first is new once, and compared with a trace that has its place already.

    All that share a collective with the first are compared with it. Then comes the pair that shares most, of equal ones
    that with the first placed trace: a maximum spanning tree, as Prim's algorithm grows it. Who shares none with a
    placed trace is left out. Collectives of the same traces are counted together, and those of the first trace need no
    search, so that the time does not grow with the pairs of ranks.
    """
    groups = _count_by_traces(matches)
    first = {place for members in groups if 0 in members for place in members}
    yield from ((0, place) for place in sorted(first - {0}))
    others = [(members, count) for members, count in groups.items() if 0 not in members]
    of_place: dict[int, list[int]] = {}
    for number, (members, _) in enumerate(others):
        for place in members:
            of_place.setdefault(place, []).append(number)
    left = set(of_place) - first
    heap: list[tuple[int, int, int]] = []

    def offer_neighbours(place: int) -> None:
        shared: Counter[int] = Counter()
        for members, count in (others[number] for number in of_place.get(place, ())):
            shared.update(dict.fromkeys((other for other in members if other in left), count))
        for other, count in shared.items():
            heappush(heap, (-count, place, other))

    for place in sorted(first):
        offer_neighbours(place)
    while heap:
        _, placed, new = heappop(heap)
        if new in left:
            yield placed, new
            left.remove(new)
            offer_neighbours(new)


def _count_by_traces(matches: list[Integers]) -> Counter[tuple[int, ...]]:
    """How many collectives each set of traces shares; sets of one are left out."""
    place = np.repeat(np.arange(len(matches)), [len(part) for part in matches])
    numbers = np.concatenate([np.empty(0, np.int64), *matches])
    order = np.argsort(numbers, kind="stable")
    borders = np.flatnonzero(np.diff(numbers[order])) + 1
    members = (tuple(part.tolist()) for part in np.split(place[order], borders))
    return Counter(group for group in members if len(group) > 1)
