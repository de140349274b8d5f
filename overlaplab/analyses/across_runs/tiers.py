"""Which of several settings are faster than which others, as far as their recordings tell.

A setting is what was recorded once or several times: a bucket_cap_mb of a sweep, a strategy.

**With two recordings or more of each** the recordings decide, each by its median step. Two parts of the recordings
differ if an exact two-sided rank-sum test says so at 5 % (Mann and Whitney, "On a test of whether one of two random
variables is stochastically larger than the other", 1947): of all the orders in which recordings of equal settings
could have come, at most 5 % are as extreme. It assumes nothing of how step times are distributed, only that recordings
of equal settings could have been exchanged; `overlaplab sweep` records the caps in random order for that reason.

Settings are put in order of their medians and cut into a faster and a slower part wherever *each* setting of either
part differs from all of the other part together. Of several such cuts the cleanest is taken (fewest recordings in the
wrong order), and each part is then judged by itself in the same way (as Scott and Knott cut means, "A cluster analysis
method for grouping means in the analysis of variance", 1974). What is never cut is a **tier**. So each setting is in
one tier, all of a tier are faster than all of the next, and to tie, to be of one tier, is transitive.

What this can decide, and what not: two settings with R recordings each come in one of the two extreme orders by chance
in 2·R!·R!/(2R)! of all cases: 33 % for 2 recordings, 10 % for 3, 2.9 % for 4. So 4 recordings of each are the fewest
that tell two settings apart, and then only if all of one are faster than all of the other; 3 tell at most two settings
from two others, 2 only four from four. In simulations a group of equals is cut in 5 % of cases at most
(`test_equals_seldom_have_a_fastest`, `test_equals_beside_others_seldom_differ`). A tie does not say that settings are
equal: more recordings may tell them apart.

**With one recording of any setting** differences between recordings are unseen, and the steps' spread decides: there
is a cut where each setting of the faster part has a median step that is shorter than that of each setting of the slower
part by more than the larger of the two spreads (see `spread`), and each of its recordings has a shorter median, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from overlaplab.analyses.across_runs.spread import Steps, spread

__all__ = ["FEWEST_RECORDINGS", "LEVEL", "chance", "is_fastest", "tiers"]

LEVEL = 0.05
"""Of cases: how often equals may be told apart."""
FEWEST_RECORDINGS = 4
"""The fewest recordings of two settings that can tell them apart at this level."""

Medians: TypeAlias = npt.NDArray[np.float64]


def tiers(settings: Sequence[Sequence[Steps]]) -> list[int]:
    """The tier of each setting, 1 for the fastest; all 1 if nothing can be told.

    Each setting is its recordings, each an array of shape (ranks, steps) of step times in any one unit, NaN where a
    rank lacks a step.
    """
    if any(np.isfinite(one).sum() == 0 for recordings in settings for one in recordings):
        return [1] * len(settings)
    medians = [np.array([np.nanmedian(one) for one in recordings]) for recordings in settings]
    if min(map(len, settings), default=0) > 1:
        order = sorted(range(len(settings)), key=lambda place: float(np.median(medians[place])))
        parts = _cut([medians[place] for place in order])
    else:
        pooled = [float(np.nanmedian(np.concatenate([one.ravel() for one in own]))) for own in settings]
        order = sorted(range(len(settings)), key=pooled.__getitem__)
        parts = _by_steps([(pooled[place], spread(settings[place]), medians[place]) for place in order])
    tier_of = np.repeat(np.arange(len(parts)), parts) + 1
    return [int(tier_of[order.index(place)]) for place in range(len(settings))]


def is_fastest(tier: int, all_tiers: Sequence[int]) -> bool:
    """Whether a setting of this tier is faster than all others: alone in the first of several tiers."""
    return tier == 1 and len(all_tiers) > 1 == all_tiers.count(1)


def chance(faster: Medians, slower: Medians) -> float:
    """The p-value of an exact two-sided rank-sum test that the first are lower: equals are in the wrong order."""
    many, more = len(faster), len(slower)
    as_extreme = sum(_orders(many, more)[: _wrong(faster, slower) + 1])
    return min(2 * as_extreme / comb(many + more, many), 1.0)


def _cut(settings: Sequence[Medians]) -> list[int]:
    """How many settings each tier has, of settings in order of their medians."""
    cuts = []
    for place in range(1, len(settings)):
        faster, slower = settings[:place], settings[place:]
        low, high = np.concatenate(faster), np.concatenate(slower)
        if all(chance(own, high) <= LEVEL for own in faster) and all(chance(low, own) <= LEVEL for own in slower):
            cuts.append((_wrong(low, high) / (len(low) * len(high)), chance(low, high), place))
    if not cuts:
        return [len(settings)]
    *_, place = min(cuts)
    return _cut(settings[:place]) + _cut(settings[place:])


def _by_steps(settings: Sequence[tuple[float, float, Medians]]) -> list[int]:
    """The same by the steps' spread, of each setting's median step, spread and recordings' medians."""
    cuts = [
        place
        for place in range(1, len(settings))
        if all(
            middle - best > max(own, wide) and medians.max() < others.min()
            for best, own, medians in settings[:place]
            for middle, wide, others in settings[place:]
        )
    ]
    return [int(number) for number in np.diff([0, *cuts, len(settings)])]


def _wrong(faster: Medians, slower: Medians) -> int:
    """How many pairs of a faster and a slower recording are in the wrong order (Mann and Whitney's U)."""
    return int((faster[:, None] >= slower[None, :]).sum())


@cache
def _orders(many: int, more: int) -> tuple[int, ...]:
    """How many orders of so many faster and slower recordings have 0, 1, 2, … pairs in the wrong order.

    The coefficients of a Gaussian binomial: the product of (1 − q^(more+i)) / (1 − q^i) for i = 1 … many.
    """
    found = [1] + [0] * (many * more)
    for size in range(1, many + 1):
        for wrong in range(many * more, more + size - 1, -1):
            found[wrong] -= found[wrong - more - size]
        for wrong in range(size, many * more + 1):
            found[wrong] += found[wrong - size]
    return tuple(found)
