"""A line through measured transfers: latency, and time per byte."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

_MOST_SIZES = 32
"""Sizes through whose medians lines are tried; of more, every n-th."""


def fit_line(num_bytes: Sequence[int], times_ns: Sequence[int]) -> tuple[float, float]:
    """`(latency_ns, ns_per_byte)`, neither negative: the line with the least sum of absolute deviations.

    Of the lines that are tried, each goes through the median times of two sizes, or through one of them with no latency
    or no time per byte: a line of least absolute deviation goes through two points (Bloomfield and Steiger, 1983), and
    medians keep single outliers from being such points. With one size the whole time is taken to be proportional.
    Raises ValueError without measurements.
    """
    if not num_bytes:
        raise ValueError("no transfers to fit")
    by_size: dict[int, list[int]] = {}
    for size, took in zip(num_bytes, times_ns, strict=True):
        by_size.setdefault(size, []).append(took)
    points = [(size, float(median(by_size[size]))) for size in sorted(by_size)]
    if len(points) == 1:
        ((size, time),) = points
        return (0.0, time / size) if size else (time, 0.0)
    points = points[:: -(-len(points) // _MOST_SIZES)]
    lines = [(0.0, time / size) for size, time in points if size] + [(time, 0.0) for _, time in points]
    for (size, time), (larger, longer) in combinations(points, 2):
        slope = (longer - time) / (larger - size)
        if slope >= 0 and time >= slope * size:
            lines.append((time - slope * size, slope))
    return min(lines, key=lambda line: _deviation(line, num_bytes, times_ns))


def _deviation(line: tuple[float, float], num_bytes: Sequence[int], times_ns: Sequence[int]) -> float:
    latency, slope = line
    return sum(abs(latency + slope * size - took) for size, took in zip(num_bytes, times_ns, strict=True))
