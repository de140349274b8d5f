"""Whether a file's times are µs or ns."""

from __future__ import annotations

from decimal import Decimal

import pytest

from overlaplab.load.file.times import Time, counts_ns


@pytest.mark.parametrize(
    ("values", "ns"),
    [
        ([], None),
        ([0, None, "x", 0.0], None),
        ([1.5, 2.5, 3.5], False),
        ([10**17, 10**17 + 1, 5], True),
        ([99_999_999_999_999_000.0, 0, 1.7e15], False),
        ([Decimal("1711964646000000000.5"), "1711964646000000000", 1], True),
        ([float("nan"), float("inf"), 1.7e18], True),
        ([10**400, 3, 4], False),
    ],
)
def test_the_middle_time_tells(values: list[Time], ns: bool | None) -> None:
    assert counts_ns(values) is ns
