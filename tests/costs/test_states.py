"""What training keeps of each parameter, by ZeRO's stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaplab.costs.states import PRECISIONS, STAGES, fits_from, held_bytes, quick_look


def test_bytes_per_parameter() -> None:
    assert {name: precision.total for name, precision in PRECISIONS.items()} == {
        "fp32": 16,
        "bf16": 16,
        "bf16-fp32-gradients": 18,
        "bf16-main-grad": 20,
    }
    assert quick_look(7_000_000_000) == 14_000_000_000


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_figures_of_zeros_paper(stage: int, gigabytes: float) -> None:
    """Figure 1 of arXiv 1910.02054: 7.5 billion parameters on 64 GPUs."""
    assert held_bytes(7_500_000_000, PRECISIONS["bf16"], stage, 64).total / 1e9 == pytest.approx(gigabytes, abs=0.05)


@given(
    st.integers(1, 10**6),
    st.sampled_from(list(PRECISIONS.values())),
    st.sampled_from(STAGES),
    st.integers(1, 10**7),
    st.integers(0, 10**5),
)
def test_it_fits_from_the_smallest_number(
    parameters: int, precision: object, stage: int, memory: int, kept: int
) -> None:
    def total(ranks: int) -> int:
        return held_bytes(parameters, precision, stage, ranks, kept).total

    ranks = fits_from(parameters, precision, stage, memory, kept)
    if ranks is None:
        assert total(10**9) > memory
    else:
        assert total(ranks) <= memory
        assert ranks == 1 or total(ranks - 1) > memory
