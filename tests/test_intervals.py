"""Interval arithmetic against counting moments one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlaplab.intervals import (
    EMPTY,
    clip,
    intersect,
    length_before,
    lengths_within,
    pieces,
    reduce_ranges,
    subtract,
    total,
    union,
)

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12)


def moments(spans: list[tuple[int, int]]) -> set[int]:
    return {moment for start, length in spans for moment in range(start, start + length)}


def covered(intervals: np.ndarray) -> set[int]:
    return {moment for start, end in intervals for moment in range(start, end)}


def as_set(spans: list[tuple[int, int]]) -> np.ndarray:
    return union([start for start, _ in spans], [start + length for start, length in spans])


def assert_canonical(intervals: np.ndarray) -> None:
    assert intervals.dtype == np.int64
    assert intervals.shape[1] == 2
    assert (intervals[:, 0] < intervals[:, 1]).all()
    assert (intervals[1:, 0] > intervals[:-1, 1]).all()


def test_union_merges_what_overlaps_and_what_touches() -> None:
    assert union([5, 0, 3, 9], [8, 3, 5, 9]).tolist() == [[0, 8]]
    assert union([0, 4], [3, 6]).tolist() == [[0, 3], [4, 6]]
    assert union([], []).tolist() == []


def test_nanoseconds_since_the_epoch_stay_exact() -> None:
    now = 1_795_217_237_667_871_915
    assert total(intersect(union([now], [now + 1]), union([now - 1], [now + 3]))) == 1


@given(pairs)
def test_union_covers_the_same_moments(spans: list[tuple[int, int]]) -> None:
    assert_canonical(as_set(spans))
    assert covered(as_set(spans)) == moments(spans)
    assert total(as_set(spans)) == len(moments(spans))


@given(pairs, pairs)
def test_intersect_and_subtract_split_a_set(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    both, only = intersect(as_set(a), as_set(b)), subtract(as_set(a), as_set(b))
    assert_canonical(both)
    assert_canonical(only)
    assert covered(both) == moments(a) & moments(b)
    assert covered(only) == moments(a) - moments(b)


@given(pairs)
def test_what_lies_before_a_moment(spans: list[tuple[int, int]]) -> None:
    length = length_before(as_set(spans))
    assert [length(moment) for moment in range(-1, 54)] == [
        len([own for own in moments(spans) if own < moment]) for moment in range(-1, 54)
    ]


def test_pieces_tell_whose_they_are() -> None:
    found = pieces(np.array([4, 0, 9, 9]), np.array([12, 3, 9, 20]), union([0, 10], [5, 15]))
    assert [part.tolist() for part in found] == [[0, 0, 1, 3], [4, 10, 0, 10], [5, 12, 3, 15]]


@given(pairs, pairs)
def test_pieces_of_any_intervals_are_each_ones_moments_in_the_set(
    spans: list[tuple[int, int]], within: list[tuple[int, int]]
) -> None:
    starts, lengths = (np.array([span[i] for span in spans], dtype=np.int64) for i in (0, 1))
    of, *bounds = pieces(starts, starts + lengths, as_set(within))
    for place, span in enumerate(spans):
        parts = np.column_stack(bounds)[of == place]
        assert_canonical(parts)
        assert covered(parts) == moments([span]) & moments(within)


@given(pairs, st.integers(0, 50), st.integers(0, 50))
def test_clip_keeps_the_moments_between(spans: list[tuple[int, int]], start: int, end: int) -> None:
    clipped = clip(as_set(spans), start, end)
    assert_canonical(clipped)
    assert covered(clipped) == moments(spans) & set(range(start, end))


def test_the_shared_empty_set_cannot_be_changed() -> None:
    assert not EMPTY.flags.writeable


def test_edges_shared_by_both_sets_are_cut_once() -> None:
    a, b = union([0, 5], [5, 9]), union([5, 9, 20], [9, 12, 20])
    assert intersect(a, b).tolist() == [[5, 9]]
    assert subtract(union([], []), union([], [])).tolist() == []


@given(pairs, pairs)
def test_how_much_of_a_set_lies_within(spans: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in windows], dtype=np.int64)
    ends = starts + np.array([length for _, length in windows], dtype=np.int64)
    expected = [
        len(moments(spans) & set(range(*window))) for window in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    assert lengths_within(as_set(spans), starts, ends).tolist() == expected


places = st.integers(0, 6)


@given(st.lists(st.integers(-9, 9), max_size=6), st.lists(st.tuples(places, places), max_size=5))
def test_ranges_are_reduced_one_by_one(values: list[int], ranges: list[tuple[int, int]]) -> None:
    """They may overlap, be empty, and be in any order."""
    bounds = [(min(first, len(values)), min(last, len(values))) for first, last in ranges]
    first, last = np.array(bounds, dtype=np.int64).reshape(-1, 2).T
    found = reduce_ranges(np.maximum, np.array(values, dtype=np.int64), first, last, empty=-100)
    assert found.tolist() == [max(values[begin:end], default=-100) for begin, end in bounds]
