"""Lining up two ranks' collectives where no sequence numbers tell which belong together.

Both ranks ran the same collectives in the same order, but began and ended to record at different ones. So one shift
between the two sequences is right, and with it ends come together, but for the difference of the ranks' clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEWEST", "LIMIT_NS", "NEAR_NS", "Fit", "align"]

LIMIT_NS = 1_000_000
"""Ends of one collective lie no further apart (docs/design.md, "Matching")."""

FEWEST = 3
"""Differences of which a spread says something."""

NEAR_NS = 50_000
"""Spreads that differ by less say nothing: a step like the others fits almost as well as the right one."""

Signatures = NDArray[np.int64]
"""What each collective is, as numbers, of shape (collectives, fields); 0 where a field is unknown, fitting any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The first rank's collective i is the second one's i + shift."""

    shift: int
    offset_ns: int
    """The median of how much later the second rank's clock shows a collective's end."""
    spread_ns: int
    """The median deviation from that; of an even number the upper one, since the lower of two is always 0."""


def align(a: Signatures, a_end_ns: NDArray[np.int64], b: Signatures, b_end_ns: NDArray[np.int64]) -> Fit | None:
    """How the two ranks' sequences (signatures, and ends in ns) fit, or None where they do not.

    Every pair of a shift must agree in what it is. Shifts that bring the ends within `LIMIT_NS` by the clocks as they
    are, in the median, go before others; where there is none, the clocks differ, and shifts count that pair `FEWEST`
    collectives or more, and at least half as many as any shift does. Of these the spread of the ends around their
    median decides; among spreads within `NEAR_NS` of the smallest, the smaller offset. A spread above `LIMIT_NS` fits
    nothing.
    """
    near = _fits(a, a_end_ns, b, b_end_ns, _near_shifts(a_end_ns, b_end_ns))
    found = [fit for fit in near if abs(fit.offset_ns) <= LIMIT_NS]
    if not found:
        every = np.arange(1 - len(a), len(b), dtype=np.int64)
        agreeing = [int(shift) for shift in every if _agree(a, b, int(shift))]
        most = max((_pairs(len(a), len(b), shift) for shift in agreeing), default=0)
        enough = [shift for shift in agreeing if _pairs(len(a), len(b), shift) >= max(FEWEST, most / 2)]
        found = [_fit(a_end_ns, b_end_ns, shift) for shift in enough]
    least = min((fit.spread_ns for fit in found), default=LIMIT_NS + 1)
    if least > LIMIT_NS:
        return None
    return min(
        (fit for fit in found if fit.spread_ns <= least + NEAR_NS),
        key=lambda fit: (abs(fit.offset_ns), fit.spread_ns, abs(fit.shift), fit.shift),
    )


def _near_shifts(a_end_ns: NDArray[np.int64], b_end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every shift that brings some pair of ends within the limit."""
    order = np.argsort(b_end_ns, kind="stable")
    ends = b_end_ns[order]
    first = np.searchsorted(ends, a_end_ns - LIMIT_NS, side="left")
    counts = np.searchsorted(ends, a_end_ns + LIMIT_NS, side="right") - first
    mine = np.repeat(np.arange(len(a_end_ns)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    shifts: NDArray[np.int64] = np.unique(order[np.repeat(first, counts) + within] - mine)
    return shifts


def _fits(
    a: Signatures, a_end_ns: NDArray[np.int64], b: Signatures, b_end_ns: NDArray[np.int64], shifts: NDArray[np.int64]
) -> list[Fit]:
    return [_fit(a_end_ns, b_end_ns, int(shift)) for shift in shifts if _agree(a, b, int(shift))]


def _overlap(a: int, b: int, shift: int) -> tuple[slice, slice]:
    """The parts of two sequences of these lengths that the shift pairs."""
    first, last = max(0, -shift), min(a, b - shift)
    return slice(first, last), slice(first + shift, last + shift)


def _pairs(a: int, b: int, shift: int) -> int:
    return max(0, min(a, b - shift) - max(0, -shift))


def _agree(a: Signatures, b: Signatures, shift: int) -> bool:
    mine, other = _overlap(len(a), len(b), shift)
    for part in (slice(0, 16), slice(None)):  # most shifts fail at once
        left, right = a[mine][part], b[other][part]
        if not ((left == right) | (left == 0) | (right == 0)).all():
            return False
    return True


def _fit(a_end_ns: NDArray[np.int64], b_end_ns: NDArray[np.int64], shift: int) -> Fit:
    mine, other = _overlap(len(a_end_ns), len(b_end_ns), shift)
    differences = b_end_ns[other] - a_end_ns[mine]
    offset = _ranked(differences, (len(differences) - 1) // 2)
    return Fit(shift=shift, offset_ns=offset, spread_ns=_ranked(np.abs(differences - offset), len(differences) // 2))


def _ranked(values: NDArray[np.int64], place: int) -> int:
    """The value at this place in their order."""
    return int(np.partition(values, place)[place])
