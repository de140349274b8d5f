"""Numerics of one rank of an emulated group, whose phantoms are stepped outside the timed region: each rank in turn."""

import pytest
from overlaplab_engine.network.phantoms import Phantoms
from overlaplab_engine.strategy_names import StrategyName
from ranks.engine_trials import COLLECTIVE, transformer
from ranks.phantom_trials import Stepped, train

RANKS = 3  # the last one's parts end in padding
ELEMENTS = sum(p.numel() for p in transformer().parameters())


@pytest.mark.parametrize("name", COLLECTIVE)
def test_every_rank_among_phantoms_trains_as_one_process_does(name: StrategyName) -> None:
    compared = [train(name, rank, RANKS, accumulate=1 + rank % 2) for rank in range(RANKS)]
    sharded = name.startswith("zero")
    assert sum(compared) == (ELEMENTS if sharded else RANKS * ELEMENTS)


class OneTooFew(Stepped):
    """The sum over the ranks lacks one."""

    def _factor(self, op: object) -> int:
        return super()._factor(op) - 1


class Stale(Stepped):
    """What peers send is not their updated parameters."""

    _receive = Phantoms._receive


class Elsewhere(Stepped):
    """This rank uses another rank's number."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__((rank + 1) % size, size)


@pytest.mark.parametrize(
    ("peers", "name"),
    [
        *((OneTooFew, name) for name in COLLECTIVE),
        *((mutant, name) for mutant in (Stale, Elsewhere) for name in COLLECTIVE if name.startswith("zero")),
    ],
)
def test_mutants_are_caught(peers: type[Stepped], name: StrategyName) -> None:
    with pytest.raises(AssertionError, match="off by"):
        train(name, 0, RANKS, peers=peers)


def test_a_model_that_is_not_tiny_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors larger than a block."""
    monkeypatch.setattr("overlaplab_engine.network.phantoms.BLOCK_ELEMENTS", {"cpu": 100})
    assert train(StrategyName.ZERO3, 1, RANKS) > 100
