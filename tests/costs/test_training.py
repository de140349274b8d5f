"""What training takes and costs, in literals."""

from __future__ import annotations

import pytest

from overlaplab.costs.batch import Batch, Training

BATCH = Batch(seq=1000, microbatch=2, accumulate=1, ranks=5)
"""10,000 tokens."""


def test_a_training() -> None:
    found = Training(step_ns=2 * 10**9, batch=BATCH, tokens=36_000_000, price=2.5)
    assert found.tokens_per_s == 5000
    assert found.hours == pytest.approx(2)
    assert found.gpu_hours == pytest.approx(10)
    assert found.cost == pytest.approx(25)


def test_what_is_unknown_is_none() -> None:
    without_goal = Training(step_ns=10**9, batch=BATCH, price=2.5)
    assert (without_goal.tokens_per_s, without_goal.hours, without_goal.cost) == (10_000, None, None)
    without_price = Training(step_ns=10**9, batch=BATCH, tokens=36_000_000)
    assert (without_price.hours, without_price.cost) == (pytest.approx(1), None)
    no_time = Training(step_ns=0, batch=BATCH, tokens=1, price=1)
    assert (no_time.tokens_per_s, no_time.hours, no_time.gpu_hours, no_time.cost) == (None, None, None, None)
