"""Exact arithmetic on sets of half-open time intervals.

A set is an int64 array of shape (n, 2), one row [start, end) in ns, sorted, disjoint, without empty rows: what
`union` makes and every other function here takes and returns.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["EMPTY", "Intervals", "clip", "intersect", "subtract", "total", "union"]

Intervals: TypeAlias = NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)
EMPTY.flags.writeable = False


def union(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """Merge any intervals, given as two arrays of length n in ns, into a set; empty ones vanish."""
    starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.flatnonzero(np.concatenate(([True], starts[1:] > reach[:-1])))
    closes = np.concatenate((opens[1:] - 1, [len(starts) - 1]))
    return np.column_stack((starts[opens], reach[closes]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The moments in both sets."""
    cuts = _cuts(a, b)
    return _joined(cuts, _covers(a, cuts) & _covers(b, cuts))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The moments of `a` that are not in `b`."""
    cuts = _cuts(a, b)
    return _joined(cuts, _covers(a, cuts) & ~_covers(b, cuts))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The moments of `a` within [start, end)."""
    first, last = np.searchsorted(a[:, 1], start, side="right"), np.searchsorted(a[:, 0], end, side="left")
    if first >= last or start >= end:
        return EMPTY
    return np.clip(a[first:last], start, end)


def total(a: Intervals) -> int:
    """How long the set is, in ns."""
    return int((a[:, 1] - a[:, 0]).sum())


def _cuts(a: Intervals, b: Intervals) -> NDArray[np.int64]:
    cuts = np.sort(np.concatenate((a.ravel(), b.ravel())))  # np.unique hashes, which takes a hundred times longer
    return cuts[np.concatenate(([True], cuts[1:] != cuts[:-1]))] if len(cuts) else cuts


def _covers(a: Intervals, moments: NDArray[np.int64]) -> NDArray[np.bool_]:
    opened = np.searchsorted(a[:, 0], moments, side="right")
    closed = np.searchsorted(a[:, 1], moments, side="right")
    return opened > closed


def _joined(cuts: NDArray[np.int64], kept: NDArray[np.bool_]) -> Intervals:
    """The kept pieces between neighbouring cuts, those that touch made one."""
    edges = np.diff(np.concatenate(([False], kept, [False])).astype(np.int8))
    return np.column_stack((cuts[np.flatnonzero(edges == 1)], cuts[np.flatnonzero(edges == -1)]))
