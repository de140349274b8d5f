"""The arithmetic of a batch."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaplab import OverlaplabError
from overlaplab.costs.batch import Batch, planned_batch

FOUR_M = 4 * 1024**2


@pytest.mark.parametrize(("ranks", "accumulate"), [(128, 4), (512, 1)])
def test_four_million_tokens(ranks: int, accumulate: int) -> None:
    found = planned_batch(tokens=FOUR_M, seq=4096, microbatch=2, ranks=ranks)
    assert found == Batch(seq=4096, microbatch=2, accumulate=accumulate, ranks=ranks)
    assert (found.samples, found.tokens) == (1024, FOUR_M)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranks": 96}, "among 96 GPUs × 2 .* 64 or 128 GPUs; or 960 or 1,152 samples per step."),
        ({"microbatch": 3}, "128 GPUs × 3 samples each. What would do: 2 or 4 samples each; or 768 or 1,152 samples"),
        ({"ranks": 1024}, "1,024 GPUs × 2 .* 512 GPUs; or 1 samples each; or 2,048 samples"),
        ({"tokens": 4_000_000}, "4,000,000 tokens are no whole number of sequences of 4,096. 4,001,792 tokens"),
        ({"tokens": 100}, "4,096 tokens would be"),
        ({"ranks": 0}, "--gpus 0: not a positive number"),
    ],
)
def test_what_does_not_divide_says_what_would(given: dict[str, int], said: str) -> None:
    usual = {"tokens": FOUR_M, "seq": 4096, "microbatch": 2, "ranks": 128}
    with pytest.raises(OverlaplabError, match=said):
        planned_batch(**(usual | given))


@given(st.integers(1, 500), st.integers(1, 12), st.integers(1, 40))
def test_what_it_says_would_do_does(samples: int, microbatch: int, ranks: int) -> None:
    try:
        found = planned_batch(tokens=samples * 8, seq=8, microbatch=microbatch, ranks=ranks)
    except OverlaplabError as error:
        assert samples % (microbatch * ranks)
        for many, what in re.findall(r"([\d, or]+) (GPUs|samples each|samples per step)", str(error).split("do: ")[1]):
            for number in (int(word.replace(",", "")) for word in many.split(" or ") if word.strip()):
                change = {"GPUs": {"ranks": number}, "samples each": {"microbatch": number}}.get(what, {})
                tokens = 8 * (number if what == "samples per step" else samples)
                planned_batch(**({"tokens": tokens, "seq": 8, "microbatch": microbatch, "ranks": ranks} | change))
    else:
        assert found.samples == samples == found.microbatch * found.accumulate * found.ranks
