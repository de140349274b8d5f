"""Which layers each stage holds, and what a pipeline cannot be."""

import pytest
from overlaplab_engine.errors import EngineError
from overlaplab_engine.schedules import Schedule, cut, parse_stages, ranks_for, require_microbatches, stages_of_rank

GPIPE, INTERLEAVED, ZBV = Schedule.GPIPE, Schedule.INTERLEAVED, Schedule.ZBV


@pytest.mark.parametrize(
    ("schedule", "ranks", "stages", "sizes"),
    [
        (GPIPE, 4, None, [2, 2, 2, 2]),
        (GPIPE, 3, (3, 3, 2), [3, 3, 2]),
        (INTERLEAVED, 2, None, [2, 2, 2, 2]),
        (INTERLEAVED, 2, (8,), [1] * 8),
        (ZBV, 2, (4,), [2, 2, 2, 2]),
    ],
)
def test_layers_of_stages(schedule: Schedule, ranks: int, stages: tuple[int, ...] | None, sizes: list[int]) -> None:
    found = cut(8, ranks, schedule, stages)
    assert [len(layers) for layers in found] == sizes
    assert [number for layers in found for number in layers] == list(range(8))


def test_stages_of_ranks() -> None:
    assert [stages_of_rank(rank, 2, 4, INTERLEAVED) for rank in range(2)] == [[0, 2], [1, 3]]
    assert [stages_of_rank(rank, 2, 4, ZBV) for rank in range(2)] == [[0, 3], [1, 2]]
    assert [ranks_for(parse_stages("4"), schedule) for schedule in (GPIPE, ZBV)] == [4, 2]


@pytest.mark.parametrize(
    ("schedule", "ranks", "stages", "said"),
    [
        (GPIPE, 1, "1", "a pipeline needs two ranks or more"),
        (GPIPE, 2, "4", "--schedule gpipe has one stage on each rank: 4 stages do not fit 2 ranks"),
        (ZBV, 2, "6", "--schedule zbv has two stages on each rank: 6 stages do not fit 2 ranks"),
        (INTERLEAVED, 2, "2", "--schedule interleaved-1f1b has two or more stages on each rank: 2 stages"),
        (GPIPE, 16, "16", "16 stages need as many layers, and --layers is 8"),
        (GPIPE, 3, "3", "3 stages do not divide --layers 8; say how many each has: --stages 3,3,2"),
        (GPIPE, 2, "3,3", "--stages 3,3 are 6 layers, and --layers is 8"),
        (GPIPE, 2, "two", "--stages 'two' is neither a number such as 4 nor the layers of each stage"),
        (GPIPE, 2, "4,0", "--stages '4,0' is neither"),
    ],
)
def test_what_cannot_be(schedule: Schedule, ranks: int, stages: str, said: str) -> None:
    with pytest.raises(EngineError) as error:
        cut(8, ranks, schedule, parse_stages(stages))
    assert str(error.value).startswith(said)


def test_rounds_of_microbatches() -> None:
    require_microbatches(7, 3, GPIPE)
    require_microbatches(10, 4, INTERLEAVED)
    with pytest.raises(EngineError, match="--microbatches 3 is less than 4; use --schedule gpipe"):
        require_microbatches(3, 4, Schedule.ONE_F_ONE_B)
    with pytest.raises(EngineError, match="--microbatches 7 does not fit 3 ranks, 6 does"):
        require_microbatches(7, 3, INTERLEAVED)
