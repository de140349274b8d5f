"""Two ranks' sequences lined up without numbers."""

from __future__ import annotations

from statistics import median_high, median_low

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaplab.evidence.alignment import LIMIT_NS, NEAR_NS, Fit, align

MS = 1_000_000


def aligned(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> Fit | None:
    """From pairs of a signature and an end."""
    columns = [(np.array([[what] for what, _ in one]), np.array([end for _, end in one])) for one in (a, b)]
    return align(*columns[0], *columns[1])


def by_trying_all_shifts(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> Fit | None:
    """As documented, one pair at a time."""
    fits = []
    for shift in range(1 - len(a), len(b)):
        pairs = [(a[i], b[i + shift]) for i in range(len(a)) if 0 <= i + shift < len(b)]
        if all(x == y or 0 in (x, y) for (x, _), (y, _) in pairs):
            offset = median_low([late - early for (_, early), (_, late) in pairs])
            spread = median_high([abs(late - early - offset) for (_, early), (_, late) in pairs])
            fits.append((len(pairs), Fit(shift=shift, offset_ns=offset, spread_ns=spread)))
    chosen = [fit for _, fit in fits if abs(fit.offset_ns) <= LIMIT_NS]
    most = max((pairs for pairs, _ in fits), default=0)
    chosen = chosen or [fit for pairs, fit in fits if pairs >= 3 and 2 * pairs >= most]
    if not chosen or min(fit.spread_ns for fit in chosen) > LIMIT_NS:
        return None
    least = min(fit.spread_ns for fit in chosen)
    close = [fit for fit in chosen if fit.spread_ns <= least + NEAR_NS]
    return sorted(close, key=lambda fit: (abs(fit.offset_ns), fit.spread_ns, abs(fit.shift), fit.shift))[0]


@pytest.mark.parametrize(
    ("first_of_b", "ahead", "shift"),
    [(0, 0, 0), (3, 0, -3), (3, 7 * MS, -3), (0, -40 * MS, 0), (5, 2_310_000, -5)],
)
def test_ranks_begin_at_different_ones_and_clocks_differ(first_of_b: int, ahead: int, shift: int) -> None:
    gaps = [3, 9, 4, 11, 2, 14, 6, 5, 13, 8, 7, 12]
    ends = (MS * np.cumsum(gaps)).tolist()
    rank0 = [(1 + i % 2, end) for i, end in enumerate(ends)]
    rank1 = [(what, end + ahead + 900 * (i % 3)) for i, (what, end) in enumerate(rank0)][first_of_b:]
    fit = aligned(rank0, rank1)
    assert fit is not None
    assert fit.shift == shift
    assert fit.offset_ns == pytest.approx(ahead, abs=2000)


def test_regular_steps_are_distinguished_by_the_clock() -> None:
    """All steps are equally long, so every shift fits; the right one agrees with the clocks."""
    rank0 = [(1, 20 * MS * i) for i in range(10)]
    rank1 = [(1, 20 * MS * i + 1000) for i in range(4, 14)]
    assert aligned(rank0, rank1) == Fit(shift=-4, offset_ns=1000, spread_ns=0)


def test_two_collectives_are_too_few_for_a_clock() -> None:
    rank0 = [(1, 0), (1, 10 * MS)]
    assert aligned(rank0, [(1, 5000 * MS), (1, 5010 * MS)]) is None
    assert aligned(rank0, [(1, MS), (1, 11 * MS)]) == Fit(shift=0, offset_ns=MS, spread_ns=0)


def test_what_ended_at_other_times_fits_nothing() -> None:
    rank0 = [(1, end * MS) for end in (0, 31, 60, 75, 190)]
    rank1 = [(1, end * MS) for end in (900, 950, 1500, 1504, 1790)]
    assert aligned(rank0, rank1) is None
    assert aligned(rank0, [(2, end) for _, end in rank0]) is None
    assert aligned(rank0, [(0, end) for _, end in rank0]) == Fit(shift=0, offset_ns=0, spread_ns=0)


sequences = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), min_size=1, max_size=9).map(
    lambda rows: [(what, 50_000 * sum(gap for _, gap in rows[: i + 1])) for i, (what, _) in enumerate(rows)]
)


@settings(max_examples=300, deadline=None)
@given(sequences, sequences, st.integers(-60, 60))
def test_against_trying_all_shifts(a: list[tuple[int, int]], b: list[tuple[int, int]], ahead: int) -> None:
    b = [(what, end + ahead * 100_000) for what, end in b]
    assert aligned(a, b) == by_trying_all_shifts(a, b)
