"""A pipeline's orders, its bubble, and when its actions could begin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaplab.costs.pipeline import BACKWARD, FORWARD, StageAction, bubble, held_counts, order, starts


def times(orders: list[list[StageAction]], forward: int = 1, backward: int = 2) -> dict[StageAction, int]:
    return {action: forward if action.kind == FORWARD else backward for own in orders for action in own}


def test_the_orders() -> None:
    f, b = (lambda m, k=kind: StageAction(k, 1, m) for kind in (FORWARD, BACKWARD))  # type: ignore[misc]
    assert order("gpipe", 2, 2)[1] == [f(0), f(1), b(0), b(1)]
    assert order("1f1b", 2, 3)[1] == [f(0), b(0), f(1), b(1), f(2), b(2)]
    assert [str(a.microbatch) + a.kind[0] for a in order("1f1b", 3, 4)[0]] == [
        *("0f", "1f", "2f", "0b", "3f", "1b", "2b", "3b")
    ]


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(1, 9))
def test_equal_stages_leave_the_bubble_of_the_formula(schedule: str, stages: int, microbatches: int) -> None:
    orders = order(schedule, stages, microbatches)
    done = starts(orders, times(orders))
    whole = max(end for _, end in done.values())
    assert 1 - 3 * microbatches / whole == pytest.approx(bubble(stages, microbatches))
    limit = [min(microbatches, stages - stage) if schedule == "1f1b" else microbatches for stage in range(stages)]
    assert [max(held_counts(own)) for own in orders] == limit


@given(st.data())
def test_every_action_begins_when_the_last_of_what_it_needs_is_over(data: st.DataObject) -> None:
    """Every start is the latest of its constraints, and none is violated."""
    stages, microbatches = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    orders = order(data.draw(st.sampled_from(["gpipe", "1f1b"])), stages, microbatches)
    took = {action: data.draw(st.integers(0, 9)) for own in orders for action in own}
    done = starts(orders, took)
    for own in orders:
        for before, action in zip([None, *own], own, strict=False):
            needed = [done[one][1] for one in action.needs if one in done]
            assert done[action][0] == max([0 if before is None else done[before][1], *needed])


def test_orders_that_wait_for_each_other() -> None:
    late = [
        [StageAction(BACKWARD, 0, 0), StageAction(FORWARD, 0, 0)],
        [StageAction(FORWARD, 1, 0), StageAction(BACKWARD, 1, 0)],
    ]
    with pytest.raises(ValueError, match="wait for each other"):
        starts(late, times(late))
