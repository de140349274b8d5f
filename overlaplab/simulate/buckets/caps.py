"""Every `bucket_cap_mb` that makes a difference.

docs/design/plays.md, What a remedy gains.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Generic, TypeVar

from overlaplab.simulate.fill_buckets import MIB, assign

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRange(Generic[Name]):
    """Caps that all give the same buckets."""

    cap_mb: float
    """The one with the fewest digits, in MiB."""
    buckets: tuple[tuple[Name, ...], ...]


def cap_ranges(order: Sequence[Name], sizes: Mapping[Name, int]) -> Iterator[CapRange[Name]]:
    """All ranges, the smallest caps first, of gradients in their order of arrival and their bytes."""
    cap = 1
    while order:
        buckets = assign(order, sizes, [cap])
        full = [sum(sizes[name] for name in bucket) for bucket in buckets[:-1]]
        upto = min(full, default=2 * cap)  # of one bucket for all every larger cap
        yield CapRange(cap_mb=cap_for(cap, upto), buckets=tuple(map(tuple, buckets)))
        if not full:
            return
        cap = upto + 1


def cap_for(least: int, most: int) -> float:
    """The cap in MiB with the fewest digits of those from `least` to `most` bytes; of several the largest."""
    for digits in range(1, 17):
        unit = 10.0 ** (floor(log10(most / MIB)) - digits + 1)
        cap = float(f"{floor(most / MIB / unit) * unit:.{digits}g}")
        if least <= int(cap * MIB) <= most:
            return cap
    return most / MIB


def closing_caps(buckets: Sequence[Sequence[int]]) -> list[float]:
    """A cap in MiB for each bucket, so that it closes with its last gradient; of each the gradients' bytes."""
    return [cap_for(sum(sizes[:-1]) + 1, sum(sizes)) for sizes in buckets]
