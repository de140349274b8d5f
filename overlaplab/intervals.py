"""Exact arithmetic on sets of half-open time intervals.

A set is an int64 array of shape (n, 2): rows [start, end) in ns, sorted, disjoint and not empty. `union` makes sets
of any intervals; the other functions take sets, or intervals where they say so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Integers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Intervals: TypeAlias = Integers

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)
EMPTY.flags.writeable = False


def union(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """Merge any intervals, given as two arrays of length n in ns, into a set; empty intervals are dropped."""
    starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    nonempty = ends > starts
    starts, ends = starts[nonempty], ends[nonempty]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.flatnonzero(np.concatenate(([True], starts[1:] > reach[:-1])))
    closes = np.concatenate((opens[1:] - 1, [len(starts) - 1]))
    return np.column_stack((starts[opens], reach[closes]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The moments in both sets."""
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    return np.column_stack(pieces(few[:, 0], few[:, 1], many)[1:])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The moments of `a` that are not in `b`."""
    always = np.iinfo(np.int64)
    b = _overlap_candidates(b, a[:1, 0], a[-1:, 1])
    gaps = np.column_stack((np.append(always.min, b[:, 1]), np.append(b[:, 0], always.max)))
    return intersect(a, gaps)


def _overlap_candidates(a: Intervals, starts: Integers, ends: Integers) -> Intervals:
    """The intervals of `a` between the first start and the last end: few where these times are one step's."""
    if not len(starts):
        return a[:0]
    first = np.searchsorted(a[:, 1], starts.min(), side="right")
    return a[first : max(np.searchsorted(a[:, 0], ends.max(), side="left"), first)]


def pieces(starts: Integers, ends: Integers, within: Intervals) -> tuple[Integers, Integers, Integers]:
    """The parts of any intervals, given as arrays of length n in ns, that lie within a set.

    Three arrays, one item per part, in order of the intervals: the interval's index (0 to n - 1), start and end.
    """
    first = np.searchsorted(within[:, 1], starts, side="right")
    count = np.where(starts < ends, np.searchsorted(within[:, 0], ends, side="left") - first, 0)
    number = np.repeat(np.arange(len(starts)), count)  # each part's interval; `within` has its parts side by side
    part = within[np.arange(len(number)) + np.repeat(first - np.cumsum(count) + count, count)]
    return number, np.maximum(starts[number], part[:, 0]), np.minimum(ends[number], part[:, 1])


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The moments of `a` within [start, end)."""
    first, last = np.searchsorted(a[:, 1], start, side="right"), np.searchsorted(a[:, 0], end, side="left")
    if first >= last or start >= end:
        return EMPTY
    return np.clip(a[first:last], start, end)


def total(a: Intervals) -> int:
    """The length of the set, in ns."""
    return int((a[:, 1] - a[:, 0]).sum())


def reduce_ranges(ufunc: np.ufunc, values: Integers, first: Integers, last: Integers, *, empty: int) -> Integers:
    """For each range of places [first, last) what the ufunc makes of the values there; `empty` for an empty range."""
    padded = np.append(values, empty)  # `reduceat` refuses the place that follows the last value
    reduced = ufunc.reduceat(padded, np.column_stack((first, last)).ravel())[::2] if len(first) else padded[:0]
    return np.where(first < last, reduced, empty)


def length_before(a: Intervals) -> Callable[[int], int]:
    """A function that gives how much of the set lies before a moment, in ns; of many moments quicker than `clip`."""
    starts, ends = a.T.tolist()
    lengths = [0, *np.cumsum(a[:, 1] - a[:, 0]).tolist()]

    def length(moment: int) -> int:
        begun = bisect_left(starts, moment)
        return int(lengths[begun] - max(ends[begun - 1] - moment, 0)) if begun else 0

    return length


def lengths_within(intervals: Intervals, starts: Integers, ends: Integers) -> Integers:
    """How much of the set lies in each [start, end), in ns."""
    intervals = _overlap_candidates(intervals, starts, ends)
    lengths = np.concatenate(([0], np.cumsum(intervals[:, 1] - intervals[:, 0])))

    def covered_before(moments: Integers) -> Integers:
        place = np.searchsorted(intervals[:, 0], moments, side="right") - 1
        inside = place >= 0
        last = intervals[np.maximum(place, 0)] if len(intervals) else np.zeros((len(moments), 2), dtype=np.int64)
        part = np.where(inside, np.minimum(moments, last[:, 1]) - last[:, 0], 0)
        return lengths[np.maximum(place, 0)] * inside + part

    return np.asarray(covered_before(ends) - covered_before(starts), dtype=np.int64)
