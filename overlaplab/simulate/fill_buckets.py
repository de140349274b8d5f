"""How buckets are filled, and whose bytes they hold."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

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
