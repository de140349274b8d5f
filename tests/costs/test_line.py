"""A line through measured transfers, against a grid of lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaplab.costs import fit_line


@pytest.mark.parametrize(
    ("sizes", "times", "line"),
    [
        ([8], [40], (0, 5)),  # one size: all of it by bytes
        ([0, 0], [40, 42], (41, 0)),
        ([10, 20], [30, 50], (10, 2)),
        ([10, 20, 30], [30, 50, 70], (10, 2)),
        ([10, 20, 30, 40], [30, 50, 900, 90], (10, 2)),  # an outlier bends nothing
        ([10, 10, 10, 20], [30, 31, 99, 50], (12, 1.9)),  # through the medians 31 and 50
        ([10, 20], [30, 30], (30, 0)),
        ([10, 20, 20], [90, 30, 30], (30, 0)),  # never less for more bytes
        ([10, 20, 20], [1, 30, 30], (0, 1.5)),  # never a latency below zero
    ],
)
def test_by_hand(sizes: list[int], times: list[int], line: tuple[float, float]) -> None:
    assert fit_line(sizes, times) == pytest.approx(line)


def test_nothing_to_fit() -> None:
    with pytest.raises(ValueError, match="no transfers"):
        fit_line([], [])


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 60)), min_size=2, max_size=8, unique_by=lambda each: each[0])
)
def test_no_other_line_is_closer(points: list[tuple[int, int]]) -> None:
    sizes, times = [size for size, _ in points], [time for _, time in points]

    def deviation(latency: float, slope: float) -> float:
        return sum(abs(latency + slope * size - time) for size, time in points)

    latency, slope = fit_line(sizes, times)
    assert latency >= 0
    assert slope >= 0
    grid = ((each, steep / 4) for each in range(61) for steep in range(60))
    assert deviation(latency, slope) <= min(deviation(*line) for line in grid) + 1e-9


def test_many_sizes_are_thinned_out_but_all_are_judged() -> None:
    sizes = list(range(1, 1001))
    assert fit_line(sizes, [7 + 3 * size for size in sizes]) == pytest.approx((7, 3))
