"""A line through measured transfers: latency, and time per byte."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist, median

_MOST_SIZES = 32
"""Sizes through whose medians lines are tried; of more, every n-th."""

_Z = NormalDist().inv_cdf(0.975)
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for 95 %, two-sided, with 1 to 10 degrees of freedom."""


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


def students_t(freedom: int) -> float:
    """Student's t for 95 %, two-sided: by the table, then by the first term of its expansion around the normal."""
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _Z + (_Z**3 + _Z) / (4 * freedom)
