"""Sentences about gathers of parameters."""

from __future__ import annotations

import pytest

from overlaplab.findings import GatherCost, prefetch_gain

MS = 1_000_000


def cost(
    name: str, prefetch: int | None, wait: float | None, step: float, strategy: str = "zero3", layers: int | None = 8
) -> GatherCost:
    waited = None if wait is None else wait * MS
    setting = None if layers is None else (layers,)
    return GatherCost(
        name=name, strategy=strategy, prefetch=prefetch, wait_ns=waited, step_ns=step * MS, setting=setting
    )


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (
            cost("a", 0, 60, 200),
            cost("b", 1, 14, 160),
            "prefetch 1 waits 14.0 ms for gathers in a step of 160.0 ms, prefetch 0 waits 60.0 ms for gathers in a step"
            " of 200.0 ms. Prefetching hides 46.0 ms of gathering per step.",
        ),
        (
            cost("a", 1, 14, 160),
            cost("b", 0, 9, 150),
            "prefetch 1 waits 14.0 ms for gathers in a step of 160.0 ms, prefetch 0 waits 9.0 ms for gathers in a step"
            " of 150.0 ms. prefetch 0 waits 5.0 ms less per step.",
        ),
        (
            cost("a", 1, 14, 160),
            cost("b", 0, 60, 200, strategy="torch-fsdp2"),
            "a waits 14.0 ms for gathers in a step of 160.0 ms, b waits 60.0 ms for gathers in a step of 200.0 ms."
            " a waits 46.0 ms less per step.",
        ),
        (
            cost("a", None, None, 160),
            cost("b", None, 0, 200),
            "a waits an unknown time for gathers in a step of 160.0 ms, b waits 0 ms for gathers in a step of 200.0"
            " ms.",
        ),
    ],
)
def test_what_prefetching_hides(first: GatherCost, second: GatherCost, sentence: str) -> None:
    assert prefetch_gain(first, second) == f"Medians over all ranks' steps: {sentence}"


@pytest.mark.parametrize("layers", [(32, 1), (None, None)])
def test_prefetching_is_named_only_where_nothing_else_differs(layers: tuple[int | None, int | None]) -> None:
    said = prefetch_gain(cost("a", 0, 450, 900, layers=layers[0]), cost("b", 1, 15, 40, layers=layers[1]))
    assert "hides" not in said
    assert "a waits 450.0 ms for gathers in a step of 900.0 ms, b waits 15.0 ms" in said
