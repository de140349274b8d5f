"""How buckets are filled, every `bucket_cap_mb` that makes a difference, and whose bytes buckets hold.

docs/design/plays.md, What a remedy gains.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import floor, log10
from typing import Generic, TypeVar

from msgspec import Struct

MIB = 1 << 20
CAP_MB = 25.0
"""What the engine and torch's DDP take where no cap is given."""

Name = TypeVar("Name", bound=Hashable)


def assign(order: Sequence[Name], sizes: Mapping[Name, int], caps: Sequence[int]) -> list[list[Name]]:
    """Gradients in order, cut into buckets that close once they hold their cap in bytes; the last cap serves on.

    Source: compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp.
    """
    buckets: list[list[Name]] = [[]]
    held = 0
    for name in order:
        buckets[-1].append(name)
        held += sizes[name]
        if held >= caps[min(len(buckets), len(caps)) - 1]:
            buckets.append([])
            held = 0
    return [bucket for bucket in buckets if bucket]


def share_bytes(num_bytes: int, elements: Sequence[int]) -> list[int]:
    """A bucket's bytes divided among its gradients in proportion to their elements; they add up to all of them."""
    sums = [*accumulate(elements, initial=0)]
    ends = [num_bytes * each // max(sums[-1], 1) for each in sums]
    return [end - begin for begin, end in pairwise(ends)]


class CapRange(Struct, Generic[Name], frozen=True, kw_only=True):
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
        upto = min(full, default=2 * cap)  # where one bucket holds all, every larger cap gives it, too
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
    """A cap in MiB for each bucket, so that it closes with its last gradient; `buckets` has their gradients' bytes."""
    return [cap_for(sum(sizes[:-1]) + 1, sum(sizes)) for sizes in buckets]
