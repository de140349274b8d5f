"""The best cutting into buckets, against all cuttings."""

from __future__ import annotations

import pytest
from cuttings import cuttings
from hypothesis import given
from hypothesis import strategies as st

from overlaplab.simulate.buckets.cutting import best_cutting, best_cuttings, last_end, transfer_table


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
    best: dict[int, int] = {}
    for held in cuttings(len(sizes)) if sizes else ():
        best[len(held)] = min(best.get(len(held), 10**9), launched(held, ready, sizes, launch_ns))
    found = list(best_cuttings(ready, transfer_table(sizes, slow), launch_ns))
    assert {len(counts): end_ns for end_ns, counts in found} == best
    for end_ns, counts in found:
        assert sum(counts) == len(sizes)
        assert launched(counts, ready, sizes, launch_ns) == end_ns


def launched(held: tuple[int, ...], ready: list[int], sizes: list[int], launch_ns: int) -> int:
    free = first = 0
    for number, many in enumerate(held, start=1):
        free = max(free, max(ready[: first + many]) + number * launch_ns) + slow(sum(sizes[first : first + many]))
        first += many
    return free


def test_no_more_buckets_than_asked_for() -> None:
    ready, sizes = [0, 100, 200, 300], [90, 90, 90, 90]
    found = list(best_cuttings(ready, transfer_table(sizes, slow), 0, most=2))
    assert [counts for _, counts in found] in [[(4,), (3, 1)], [(4,), (2, 2)]]
    assert last_end(ready, sizes, (1, 1, 1, 1), slow) == 400
    assert last_end(ready, sizes, (4,), slow) == 670
