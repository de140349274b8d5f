"""The best cutting into buckets, against all cuttings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaplab.simulate.cutting import best_cutting, best_launched, last_end


def slow(num_bytes: int) -> int:
    """A link with a latency of 10 ns, and 1 ns per byte."""
    return 10 + num_bytes


@pytest.mark.parametrize(
    ("ready", "sizes", "end", "held"),
    [
        ([], [], 0, ()),
        ([7], [5], 22, (1,)),
        ([0, 0, 0], [5, 5, 5], 25, (3,)),  # together: one latency
        ([0, 100], [50, 5], 115, (1, 1)),  # the first is hidden
        ([0, 1, 100], [20, 20, 5], 115, (2, 1)),  # as early with three buckets: fewer are chosen
        ([0, 40, 41], [20, 5, 5], 61, (1, 2)),
        ([9, 3], [5, 5], 29, (2,)),  # one that arrived before its place counts from its place
    ],
)
def test_by_hand(ready: list[int], sizes: list[int], end: int, held: tuple[int, ...]) -> None:
    assert best_cutting(ready, sizes, slow) == (end, held)


def cuttings(count: int) -> Iterator[tuple[int, ...]]:
    for borders in (chosen for number in range(count) for chosen in combinations(range(1, count), number)):
        edges = (0, *borders, count)
        yield tuple(later - earlier for earlier, later in pairwise(edges))


def played(held: tuple[int, ...], ready: list[int], sizes: list[int]) -> int:
    free = first = 0
    for number in held:
        free = max(free, *ready[: first + number]) + slow(sum(sizes[first : first + number]))
        first += number
    return free


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=9))
def test_against_all_cuttings(gradients: list[tuple[int, int]]) -> None:
    ready, sizes = [at for at, _ in gradients], [size for _, size in gradients]
    end, held = best_cutting(ready, sizes, slow)
    assert sum(held) == len(sizes)
    assert end == played(held, ready, sizes) == min(played(cut, ready, sizes) for cut in cuttings(len(sizes)))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=8), st.integers(0, 25))
def test_with_launches_against_all_cuttings(gradients: list[tuple[int, int]], launch_ns: int) -> None:
    """Each launch delays what is computed after it, and so every later gradient."""
    ready, sizes = [own for own, _ in gradients], [own for _, own in gradients]
    found = best_launched(ready, sizes, slow, launch_ns)
    assert sum(found) == len(sizes)
    if sizes:
        assert launched(found, ready, sizes, launch_ns) == min(
            launched(held, ready, sizes, launch_ns) for held in cuttings(len(sizes))
        )


def launched(held: tuple[int, ...], ready: list[int], sizes: list[int], launch_ns: int) -> int:
    free = first = 0
    for number, many in enumerate(held, start=1):
        free = max(free, max(ready[: first + many]) + number * launch_ns) + slow(sum(sizes[first : first + many]))
        first += many
    return max(free, max(ready) + len(held) * launch_ns)


def test_few_buckets_are_kept_to() -> None:
    ready, sizes = [0, 100, 200, 300], [90, 90, 90, 90]
    assert best_launched(ready, sizes, slow, 0) == (1, 1, 1, 1)
    assert best_launched(ready, sizes, slow, 0, most=2) in [(3, 1), (2, 2)]
    assert best_launched(ready, sizes, slow, 1000) == (4,)
    assert last_end(ready, sizes, (1, 1, 1, 1), slow) == 400
    assert last_end(ready, sizes, (4,), slow) == 670
