"""All ways to cut gradients into buckets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise


def cuttings(count: int) -> Iterator[tuple[int, ...]]:
    """How many each bucket holds, of so many gradients that stay in their order."""
    for borders in (chosen for number in range(count) for chosen in combinations(range(1, count), number)):
        edges = (0, *borders, count)
        yield tuple(later - earlier for earlier, later in pairwise(edges))
