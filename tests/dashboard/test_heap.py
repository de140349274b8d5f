from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from overlaplab.dashboard import heap
from overlaplab.dashboard.heap import Resting, rest_modules


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """The garbage collector without what an app in this process, run by another test, has it call."""
    callbacks = list(gc.callbacks)
    gc.callbacks.clear()
    gc.collect()
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()


def frozen_after_collecting(generation: int, slow_s: float, thawed_s: float) -> int:
    gc.callbacks.append(Resting(slow_s, thawed_s))
    before = gc.get_freeze_count()
    gc.collect(generation)
    return gc.get_freeze_count() - before


def test_what_a_slow_look_leaves_is_passed_over() -> None:
    kept = [[number] for number in range(1000)]
    assert frozen_after_collecting(2, slow_s=0.0, thawed_s=1000.0) > len(kept)


def test_a_quick_look_changes_nothing() -> None:
    assert frozen_after_collecting(2, slow_s=1000.0, thawed_s=1000.0) == 0


def test_a_look_at_the_young_alone_changes_nothing() -> None:
    assert frozen_after_collecting(0, slow_s=0.0, thawed_s=1000.0) == 0


def test_once_in_a_while_everything_is_looked_at_again() -> None:
    class Node:
        """A member of a cycle."""

    node = Node()
    node.itself = node  # type: ignore[attr-defined]
    left = weakref.ref(node)
    gc.freeze()
    del node
    gc.collect()
    assert left() is not None, "what is passed over is not looked at"
    assert frozen_after_collecting(2, slow_s=0.0, thawed_s=0.0) < 0
    gc.collect()
    assert left() is None


def test_pages_that_are_first_at_once_settle_it_once() -> None:
    heap._rest_modules.cache_clear()
    with ThreadPoolExecutor(8) as pages:
        list(pages.map(lambda _: rest_modules(), range(8)))
    assert [type(callback) for callback in gc.callbacks] == [Resting]
