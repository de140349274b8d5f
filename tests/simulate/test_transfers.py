"""How far beyond what was measured T is known."""

from __future__ import annotations

import pytest

from overlaplab.simulate.transfers import times_beyond


@pytest.mark.parametrize(
    ("predicted", "recorded", "expected"),
    [([100], [60], None), ([100], [50], None), ([101], [50], 2.02), ([10, 49], [50, 25], 2.5), ([], [50], None)],
)
def test_more_than_twice_as_far_out_is_extrapolated(
    predicted: list[float], recorded: list[float], expected: float | None
) -> None:
    assert times_beyond(predicted, recorded) == expected
