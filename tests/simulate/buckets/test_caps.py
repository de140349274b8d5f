"""Every cap that makes a difference: against trying many caps one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaplab.simulate.fill_buckets import MIB, assign, cap_for, cap_ranges


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_between_two_cliffs_all_caps_give_the_same_buckets(sizes: list[int]) -> None:
    order = list(range(len(sizes)))
    found = [own.buckets for own in cap_ranges(order, dict(enumerate(sizes)))]
    tried = [assign(order, dict(enumerate(sizes)), [cap]) for cap in range(1, sum(sizes) + 2)]
    distinct = [tuple(map(tuple, buckets)) for buckets in tried]
    assert found == [one for place, one in enumerate(distinct) if place == 0 or one != distinct[place - 1]]
    assert len(found[-1]) == 1


@given(st.lists(st.integers(1, 1 << 22), min_size=1, max_size=6))
def test_the_cap_of_a_range_gives_its_buckets(sizes: list[int]) -> None:
    """As the engine and DDP read it: a number of MiB, its bytes rounded down."""
    order = list(range(len(sizes)))
    for own in cap_ranges(order, dict(enumerate(sizes))):
        given_cap = int(float(f"{own.cap_mb:.17g}") * MIB)
        assert tuple(map(tuple, assign(order, dict(enumerate(sizes)), [given_cap]))) == own.buckets


@pytest.mark.parametrize(
    ("least", "most", "cap"),
    [
        (MIB - 1, MIB, 1.0),
        (int(1.05 * MIB), int(1.126 * MIB), 1.1),
        (int(1.121 * MIB), int(1.126 * MIB), 1.125),
        (int(6.58 * MIB), int(13.16 * MIB), 10.0),
        (1, 1, 1 / MIB),
    ],
)
def test_a_cap_has_the_fewest_digits(least: int, most: int, cap: float) -> None:
    assert cap_for(least, most) == pytest.approx(cap, rel=1e-9)
