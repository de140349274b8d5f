"""Which settings are faster than which others, by the order of their recordings."""

from __future__ import annotations

from itertools import chain, combinations
from math import comb, factorial
from typing import Any

import numpy as np
import pytest

from overlaplab.analyses.across_runs.tiers import FEWEST_RECORDINGS, LEVEL, chance, is_fastest, tiers


def steps_of(*recordings: list[float]) -> list[Any]:
    return [np.array([one]) for one in recordings]


def recorded(*medians: float) -> list[Any]:
    """A setting's recordings, of one step each."""
    return steps_of(*([median] for median in medians))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([steps_of([10, 11, 12]), steps_of([20, 21, 22])], [1, 2]),
        ([steps_of([20, 21, 22]), steps_of([10, 11, 12])], [2, 1]),
        ([steps_of([10, 11, 20]), steps_of([18, 19, 20])], [1, 1]),  # the range is 10, the lead 8
        ([steps_of([10, 10, 10]), steps_of([12, 18, 22])], [1, 1]),  # so it is the other way round
        ([steps_of([10, 10]), steps_of([20, 20])], [1, 1]),  # two steps tell no spread
        ([steps_of([10] * 7 + [50]), steps_of([20] * 8)], [1, 2]),  # eight steps: one outlier is not the spread
        ([steps_of([10] * 6 + [50]), steps_of([20] * 7)], [1, 1]),
        ([steps_of([10] * 9, [30] * 3), steps_of([20] * 9)], [1, 1]),  # one recording is slower than the others
        ([steps_of([30] * 3), steps_of([10] * 3), steps_of([11] * 3), steps_of([20] * 3)], [4, 1, 2, 3]),
        ([steps_of([30] * 3), steps_of([10, 11, 12]), steps_of([11, 12, 13])], [2, 1, 1]),
        # All steps of the one are shorter, and four of both are enough to say so: 2.9 % by chance.
        ([steps_of([56, 58, 61, 63]), steps_of([107, 120, 146, 245.7])], [1, 2]),
        ([steps_of([56, 58, 63]), steps_of([107, 133, 245.7])], [1, 1]),  # 10 %, and the range is 139
        ([steps_of([56, 58, 63]), steps_of([107, 120, 133, 146, 245.7])], [1, 2]),  # 3.6 %
        ([steps_of([56, 63]), steps_of([107, 120, 133, 146, 160, 170, 180, 245.7])], [1, 1]),  # two steps tell nothing
        ([steps_of([56, 58, 61, 107]), steps_of([107, 120, 146, 245.7])], [1, 1]),  # one as long
        # Two ranks of one step are one step.
        ([[np.array([[56, 58], [61, 63]])], [np.array([[107, 120], [146, 245.7]])]], [1, 1]),
        # Who ties with the first has all of a shorter median beside it.
        ([steps_of([56, 59, 63]), steps_of([107, 133, 246]), steps_of([98, 99.3, 101])], [1, 1, 1]),
        ([steps_of([56, 59, 63]), steps_of([107, 133, 246]), steps_of([198, 199.3, 201])], [1, 1, 2]),
        ([steps_of([10] * 3)], [1]),
        ([steps_of([]), steps_of([10] * 3)], [1, 1]),
        ([], []),
    ],
)
def test_with_one_recording_the_steps_decide(settings: list[Any], expected: list[int]) -> None:
    assert tiers(settings) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([recorded(1, 2, 3), recorded(7, 8, 9)], [1, 1]),  # by chance in 10 % of cases
        ([recorded(1, 2, 3, 4), recorded(6, 7, 8, 9)], [1, 2]),  # 2.9 %
        ([recorded(6, 7, 8, 9), recorded(1, 2, 3, 4)], [2, 1]),
        ([recorded(1, 2, 3, 7), recorded(6, 7.5, 8, 9)], [1, 1]),  # 5.7 %
        ([recorded(1, 2, 3, 6), recorded(6, 7, 8, 9)], [1, 1]),  # as long: as good as the wrong order
        ([recorded(1, 2, 3, 4, 7), recorded(6, 7.5, 8, 9, 10)], [1, 2]),  # 1.6 %: one more, and an outlier may be
        ([recorded(1, 2, 3, 4), recorded(1.5, 2.5, 3.5, 4.5), recorded(6, 7, 8, 9)], [1, 1, 2]),
        ([recorded(1, 2, 3, 4), recorded(5, 6, 7, 8), recorded(9, 10, 11, 12)], [1, 2, 3]),
        # The first is faster than the third, although neither differs from the second.
        ([recorded(1, 2, 3, 4), recorded(3, 4, 5, 6), recorded(5, 6, 7, 8)], [1, 1, 2]),
        # Three recordings tell no two settings apart.
        ([recorded(1, 2, 3), recorded(1, 2, 3), recorded(7, 8, 9), recorded(7, 8, 9)], [1, 1, 1, 1]),
        # Of a pair with a single recording the steps decide: here none has a spread, and so nothing is told of all.
        ([recorded(1, 2, 3, 4), recorded(6, 7, 8, 9), recorded(20)], [1, 1, 1]),
        ([recorded(1, 2), recorded(7, 8), recorded(17, 18), recorded(27, 28)], [1, 1, 1, 1]),
        (  # those of traces/sweep: every recording of the last cap is slower than every other one
            [
                recorded(178.0, 172.7, 180.4, 199.6),
                recorded(186.2, 169.0, 188.4, 177.5),
                recorded(187.5, 184.4, 179.5, 187.7),
                recorded(204.8, 206.9, 214.2, 220.1),
            ],
            [1, 1, 1, 2],
        ),
        ([recorded(1, 2, 3, 4, 5), recorded(6, 7, 8)], [1, 2]),  # not all recorded as often: 3.6 %
    ],
)
def test_the_order_of_recordings_decides(settings: list[Any], expected: list[int]) -> None:
    assert tiers(settings) == expected


@pytest.mark.parametrize(
    ("one", "other", "beside"),
    [
        (steps_of([10] * 3), steps_of([20] * 3), [steps_of([5, 14, 16]), steps_of([14, 15, 30])]),
        (recorded(1, 2, 3, 4), recorded(6, 7, 8, 9), [recorded(2, 4, 6, 8), recorded(3, 4.5, 7, 10)]),
    ],
)
def test_who_else_is_compared_changes_nothing_for_the_fastest(one: Any, other: Any, beside: list[Any]) -> None:
    assert tiers([one, other]) == [1, 2]
    for others in (beside[:1], beside[1:], beside):
        first, second, *_ = tiers([one, other, *others])
        assert (first, second) == (1, 2)


def by_all_orders(faster: list[float], slower: list[float]) -> float:
    """The p-value of the two-sided rank-sum test, by trying every order."""
    pooled = [*faster, *slower]
    wrongs = []
    for chosen in combinations(range(len(pooled)), len(faster)):
        not_chosen = set(range(len(pooled))) - {*chosen}
        wrongs.append(sum(place > other for place in chosen for other in not_chosen))
    seen = sum(fast >= slow for fast in faster for slow in slower)
    return min(2 * sum(wrong <= seen for wrong in wrongs) / len(wrongs), 1)


def differ(first: list[list[float]], second: list[list[float]]) -> bool:
    """The rule for two settings as the module's text has it; the first has the shorter median."""
    steps, more = [*chain(*first)], [*chain(*second)]
    medians, others = ([float(np.median(recording)) for recording in each] for each in (first, second))
    if len(first) > 1 < len(second):
        return by_all_orders(medians, others) <= 0.05

    def spread_of(values: list[float]) -> float:
        if len(values) >= 8:
            return float(np.subtract(*np.quantile(values, [0.75, 0.25])))
        return max(values) - min(values) if len(values) > 2 else float("inf")

    apart = float(np.median(more)) - float(np.median(steps)) > max(spread_of(steps), spread_of(more))
    if apart and max(medians) < min(others):
        return True
    return min(len(steps), len(more)) > 2 and max(steps) < min(more) and by_all_orders(steps, more) <= 0.05


def by_rule(settings: list[list[list[float]]]) -> list[int]:
    """The tiers by trying every cut of the settings in the order of their medians."""
    middles = [float(np.median([*chain(*setting)])) for setting in settings]
    order = sorted(range(len(settings)), key=middles.__getitem__)
    tier_of = [0] * len(settings)
    start = tier = 0
    while start < len(order):
        first = order[start]
        end = next(
            cut
            for cut in range(start + 1, len(order) + 1)
            if all(
                differ(settings[first], settings[later]) and middles[later] > middles[order[cut - 1]]
                for later in order[cut:]
            )
        )
        tier += 1
        for place in order[start:end]:
            tier_of[place] = tier
        start = end
    return tier_of


@pytest.mark.parametrize("seed", range(8))
def test_tiers_are_those_of_the_rule(seed: int) -> None:
    """Against trying everything, on few and many steps, with ties and long steps."""
    dice = np.random.default_rng(seed)
    tier_counts: set[int] = set()
    for _ in range(40):
        settings = []
        for _ in range(dice.integers(2, 6)):
            often = dice.choice([1, 1, 1, 4])
            base = dice.integers(10, 80)
            lengths = [dice.integers(1, 6) if often == 1 else 1 for _ in range(often)]
            settings.append(
                [
                    [float(base + dice.integers(0, 12) + 100 * (dice.random() < 0.1)) for _ in range(length)]
                    for length in lengths
                ]
            )
        tier_of = tiers([steps_of(*setting) for setting in settings])
        assert tier_of == by_rule(settings), settings
        middles = [float(np.median([*chain(*setting)])) for setting in settings]
        ordered = [tier for _, tier in sorted(zip(middles, tier_of, strict=True))]
        assert ordered == sorted(ordered)
        tier_counts |= {max(tier_of)}
    assert len(tier_counts) > 2


def test_who_is_fastest() -> None:
    assert [is_fastest(tier, [2, 1, 2]) for tier in (2, 1, 2)] == [False, True, False]
    assert not is_fastest(1, [1, 1, 2])
    assert not is_fastest(1, [1])


@pytest.mark.parametrize(("many", "more"), [(1, 1), (1, 4), (3, 3), (4, 3), (2, 6), (4, 4)])
def test_the_chance_is_that_of_all_orders(many: int, more: int) -> None:
    """Against every order there is."""
    places = range(many + more)
    wrongs = [
        sum(low > high for low in chosen for high in set(places) - set(chosen)) for chosen in combinations(places, many)
    ]
    for chosen in combinations(places, many):
        rest = sorted(set(places) - set(chosen))
        wrong = sum(low > high for low in chosen for high in rest)
        expected = min(2 * sum(one <= wrong for one in wrongs) / comb(many + more, many), 1)
        assert chance(np.array(chosen, float), np.array(rest, float)) == pytest.approx(expected)


def test_the_fewest_recordings_that_tell_two_settings_apart() -> None:
    def least(number: int) -> float:
        return 2 * factorial(number) ** 2 / factorial(2 * number)

    assert least(FEWEST_RECORDINGS) <= LEVEL < least(FEWEST_RECORDINGS - 1)


def simulated(shifts: list[float], recordings: int, between: float, trials: int = 300) -> list[list[int]]:
    """The tiers of settings whose steps, five to a recording, differ by 1, and their recordings by `between`."""
    dice = np.random.default_rng(0)
    number = len(shifts)
    steps = dice.normal(100, 1, (trials, number, recordings, 1, 5))
    steps += between * dice.normal(size=(trials, number, recordings, 1, 1))
    steps += np.array(shifts)[:, None, None, None]
    return [tiers([list(setting) for setting in trial]) for trial in steps]


@pytest.mark.parametrize("between", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("settings", "recordings"), [(4, 3), (4, 4), (2, 4), (3, 6)])
def test_equals_seldom_have_a_fastest(settings: int, recordings: int, between: float) -> None:
    """Settings of equal speed, whose recordings differ as much as given, in units of what steps differ by. Of one
    recording alone nothing could be told where `between` is not 0."""
    found = simulated([0.0] * settings, recordings, between)
    assert sum(any(is_fastest(tier, tier_of) for tier in tier_of) for tier_of in found) <= 0.05 * len(found)
    # Each pair is tested alone, so that of several some best and some worst are called different more often.
    assert sum(len({*tier_of}) > 1 for tier_of in found) <= 0.15 * len(found)


@pytest.mark.parametrize("shifts", [[0, 0, 6], [0, 6, 6], [0, 6, 6, 12], [0, 0, 2]])
def test_equals_beside_others_seldom_differ(shifts: list[float]) -> None:
    """Two equals among faster and slower settings, recorded four times with as much between recordings as steps."""
    found = simulated(shifts, FEWEST_RECORDINGS, between=1.0)
    one, other = (place for place, shift in enumerate(shifts) if shifts.count(shift) > 1)
    assert sum(tier_of[one] != tier_of[other] for tier_of in found) <= 0.05 * len(found)


def test_what_differs_much_is_told_apart() -> None:
    found = simulated([0, 0, 8, 16], FEWEST_RECORDINGS, between=1.0)
    assert sum(tier_of == [1, 1, 2, 3] for tier_of in found) >= 0.9 * len(found)
