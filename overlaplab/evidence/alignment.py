"""Aligning two ranks' sequences of collectives where there are no sequence numbers to match them by.

Both ranks ran the same collectives in the same order, but their recordings start and stop at different ones. So one
shift between the two sequences is right. With it, matching collectives end together, up to the ranks' clock offset.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlaplab.intervals import Integers, Mask

LIMIT_NS = 1_000_000
"""The ends of one collective lie no further apart (docs/design.md, "Matching")."""

FEWEST = 3
"""The fewest differences whose spread is meaningful."""

NEAR_NS = 50_000
"""Spreads that differ by less are not compared: steps are alike, so a wrong one fits almost as well."""

_LEAST = np.iinfo(np.int64).min + 1  # its negative fits into 64 bits, too

Signatures = Integers
"""Each collective's fields as numbers, of shape (collectives, fields). 0 means unknown and fits anything."""

Spans = Integers
"""When each collective started and ended in ns, of shape (collectives, 2)."""


class Fit(Struct, frozen=True, kw_only=True):
    """Collective i of the first rank is collective i + shift of the second."""

    shift: int
    offset_ns: int
    """How much later the second rank's clock shows a collective's end; the median."""
    spread_ns: int
    """The median deviation from that. Of an even number the upper middle: of two the lower is always 0."""


def align(a: Signatures, a_end_ns: Integers, b: Signatures, b_end_ns: Integers) -> Fit | None:
    """Find the shift between the two ranks' sequences (signatures, and ends in ns); None where none fits.

    A shift fits only if the signatures of all its pairs agree. Shifts whose median offset is within `LIMIT_NS` come
    first. If there are none, the clocks differ. Then shifts are considered that pair at least `FEWEST` collectives, and
    at least half as many as the best shift does. Of these the one with the smallest spread wins; among spreads within
    `NEAR_NS` of the smallest, the one with the smallest offset. A spread above `LIMIT_NS` never fits.
    """
    near = [shift for shift in _near_shifts(a_end_ns, b_end_ns).tolist() if _agree(a, b, shift)]
    fits = [fit for shift in near if abs((fit := _fit(a_end_ns, b_end_ns, shift)).offset_ns) <= LIMIT_NS]
    if not fits:
        agreeing = [shift for shift in range(1 - len(a), len(b)) if _agree(a, b, shift)]
        most = max((_pairs(len(a), len(b), shift) for shift in agreeing), default=0)
        enough = [shift for shift in agreeing if _pairs(len(a), len(b), shift) >= max(FEWEST, most / 2)]
        fits = [_fit(a_end_ns, b_end_ns, shift) for shift in enough]
    least = min((fit.spread_ns for fit in fits), default=LIMIT_NS + 1)
    if least > LIMIT_NS:
        return None
    return min(
        (fit for fit in fits if fit.spread_ns <= least + NEAR_NS),
        key=lambda fit: (abs(fit.offset_ns), fit.spread_ns, abs(fit.shift), fit.shift),
    )


def align_by_overlap(a: Signatures, a_spans: Spans, b: Signatures, b_spans: Spans) -> Fit | None:
    """Find the shift with which all pairs overlap in time, by clocks that do not differ; None where there is none.

    No rank is done with a collective before the last one has begun it. So this holds where ends say nothing, as on
    hosts that share their cores. Spans are starts and ends in ns, of shape (collectives, 2). The shift pairs at least
    half of the shorter sequence; of several the one whose ends lie closest.
    """
    fits = []
    for shift in range(1 - len(a), len(b)):
        mine, other = _overlap(len(a), len(b), shift)
        left, right = a_spans[mine], b_spans[other]
        if 2 * len(left) < min(len(a), len(b)) or not _all_overlap(left[:8], right[:8]):  # most shifts fail early
            continue
        if _all_overlap(left, right) and _agree(a, b, shift):
            spread_ns = _nth_smallest(np.abs(left[:, 1] - right[:, 1]), len(left) // 2)
            fits.append(Fit(shift=shift, offset_ns=0, spread_ns=spread_ns))
    return min(fits, key=lambda fit: (fit.spread_ns, abs(fit.shift), fit.shift), default=None)


def _all_overlap(a_spans: Spans, b_spans: Spans) -> bool:
    return bool((np.maximum(a_spans[:, 0], b_spans[:, 0]) <= np.minimum(a_spans[:, 1], b_spans[:, 1]) + NEAR_NS).all())


def allows_one_group(spans: Integers, hosts: Sequence[str]) -> bool:
    """Whether no rank is done with one of these collectives before all have begun it.

    `spans` are starts and ends in ns, of shape (ranks, collectives, 2). Ranks of one host share a clock; those of
    different hosts may be apart by any one offset.
    """
    of_host = np.array(hosts)
    begun, done = [], []
    for host in sorted(set(hosts)):
        begun.append(spans[of_host == host, :, 0].max(axis=0))
        done.append(spans[of_host == host, :, 1].min(axis=0) + NEAR_NS)
    if any((first > last).any() for first, last in zip(begun, done, strict=True)):
        return False
    pairs = [(a, b) for a in range(len(begun)) for b in range(a)]
    return all((begun[a] - done[b]).max(initial=_LEAST) <= (done[a] - begun[b]).min(initial=-_LEAST) for a, b in pairs)


def has_waited_for_others(spans: Integers, part: Mask) -> bool:
    """Whether the ranks of `part` waited for the others, at least once: longer than they need for a collective alone.

    `spans` as in `allows_one_group`, of ranks that share a clock, and that no rank is done before all have begun.
    """
    last_of_part = spans[part, :, 0].max(axis=0)
    waited_ns = spans[:, :, 0].max(axis=0) - last_of_part
    least_ns = (spans[part, :, 1].min(axis=0) - last_of_part).min()
    return bool((waited_ns > max(NEAR_NS, least_ns)).any())


def sequences_fit(a: Signatures, b: Signatures) -> bool:
    """Whether some shift fits the two sequences, times aside, and pairs at least half of the shorter one."""
    shifts = range(1 - len(a), len(b))
    return any(2 * _pairs(len(a), len(b), shift) >= min(len(a), len(b)) and _agree(a, b, shift) for shift in shifts)


def _near_shifts(a_end_ns: Integers, b_end_ns: Integers) -> Integers:
    """All shifts that bring at least one pair of ends within the limit."""
    order = np.argsort(b_end_ns, kind="stable")
    first = np.searchsorted(b_end_ns[order], a_end_ns - LIMIT_NS, side="left").tolist()
    last = np.searchsorted(b_end_ns[order], a_end_ns + LIMIT_NS, side="right").tolist()
    shifts = [order[begin:end] - place for place, (begin, end) in enumerate(zip(first, last, strict=True))]
    return np.unique(np.concatenate([np.empty(0, np.int64), *shifts]))


def _overlap(a: int, b: int, shift: int) -> tuple[slice, slice]:
    """The parts of two sequences of these lengths that the shift pairs."""
    first, last = max(0, -shift), min(a, b - shift)
    return slice(first, last), slice(first + shift, last + shift)


def _pairs(a: int, b: int, shift: int) -> int:
    return max(0, min(a, b - shift) - max(0, -shift))


def _agree(a: Signatures, b: Signatures, shift: int) -> bool:
    mine, other = _overlap(len(a), len(b), shift)
    for part in (slice(0, 16), slice(None)):  # most shifts fail early
        left, right = a[mine][part], b[other][part]
        if not ((left == right) | (left == 0) | (right == 0)).all():
            return False
    return True


def _fit(a_end_ns: Integers, b_end_ns: Integers, shift: int) -> Fit:
    mine, other = _overlap(len(a_end_ns), len(b_end_ns), shift)
    differences = b_end_ns[other] - a_end_ns[mine]
    offset = _nth_smallest(differences, (len(differences) - 1) // 2)
    spread = _nth_smallest(np.abs(differences - offset), len(differences) // 2)
    return Fit(shift=shift, offset_ns=offset, spread_ns=spread)


def _nth_smallest(values: Integers, place: int) -> int:
    """The value at this place in ascending order."""
    return int(np.partition(values, place)[place])
