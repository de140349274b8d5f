"""Tiers of settings: the settings that are faster than others, as far as their recordings show.

A setting is what was recorded once or several times: a bucket_cap_mb of a sweep, a strategy.

Two settings **differ** if their own recordings say so.

- *With two recordings or more of both* the recordings decide, each by its median step: an exact two-sided rank-sum test
  at 5 % (Mann and Whitney, "On a test of whether one of two random variables is stochastically larger than the other",
  1947): of all the orders in which recordings of equal settings could have come, at most 5 % are as extreme. It assumes
  nothing of how step times are distributed, only that recordings of equal settings could have been exchanged;
  `overlaplab sweep` records the caps in random order for that reason.
- *With one recording of either* differences between recordings are unseen, and the steps decide: either the median
  steps differ by more than the larger of the two spreads (see `spread`), and each recording of the one has a shorter
  median than each of the other; or every step of the one is shorter than every one of the other, and there are so many
  (four of both, or three and five) that this comes by chance in at most 5 % of cases. One long step widens the spread,
  but no step of the others.

A **tier** is the setting with the shortest median step, all that do not differ from it, and all whose median is not
longer than that of one of these; the next tier begins with the shortest of those that are left. So tiers are in the
order of the medians: none is called slower than the fastest while one with a longer median ties with it. What is in
another tier differs from the fastest. Who else is listed can make two tie, and never tells them apart. Two others of
one tier may well differ from each other: of them nothing is said.

What this can decide, and what not: two settings with R recordings each come in one of the two extreme orders by chance
in 2·R!·R!/(2R)! of all cases: 33 % for 2 recordings, 10 % for 3, 2.9 % for 4. So 4 recordings of each are the fewest
that tell two settings apart, and then only if all of one are faster than all of the other. Each pair is tested at 5 %,
not all pairs together, since a correction would depend on who else is listed. So among several equals the slowest
differs from the fastest more often than that: simulated, in 6 % of cases among three with four recordings each, in 12 %
among four. One of several equals is called the fastest of all in 5 % at most (`test_equals_seldom_have_a_fastest`).
That two tie does not say that they are equal: more recordings may tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from overlaplab.words import to_ms

FEWEST = 3
"""The fewest steps with a spread."""
_QUARTILES = 8
"""The fewest steps whose quartiles are used."""

Steps = npt.NDArray[np.float64]


def step_times(table: pd.DataFrame) -> Steps:
    """The spans of `summary`'s rows in ms, of shape (ranks, steps), NaN where a rank lacks a step."""
    of_rank = [to_ms(spans.to_numpy()) for _, spans in table.groupby("rank", dropna=False)["span_ns"]]
    times = np.full((len(of_rank), max(map(len, of_rank), default=0)), np.nan)
    for row, spans in zip(times, of_rank, strict=True):
        row[: len(spans)] = spans
    return times


def spread(recordings: Sequence[Steps]) -> float:
    """The interquartile range of a setting's steps; infinite with fewer than three.

    With fewer than eight quartiles mean little, so it is the whole range. The ranks of a step wait for each other, so a
    step counts once.
    """
    steps = sum(recording.shape[1] for recording in recordings)
    values = np.concatenate([recording.ravel() for recording in recordings])
    if steps < FEWEST:
        return float("inf")
    if steps < _QUARTILES:
        return float(np.nanmax(values) - np.nanmin(values))
    low, high = np.nanquantile(values, [0.25, 0.75])
    return float(high - low)


LEVEL = 0.05
"""Equal settings may differ in at most 5 % of cases."""
FEWEST_RECORDINGS = 4
"""The fewest recordings of two settings that can tell them apart at this level."""

Medians: TypeAlias = npt.NDArray[np.float64]


def tiers(settings: Sequence[Sequence[Steps]]) -> list[int]:
    """The tier of each setting, 1 for the fastest; all 1 if nothing can be told.

    Each setting is its recordings, each an array of shape (ranks, steps) of step times in any one unit, NaN where a
    rank lacks a step.
    """
    if any(np.isfinite(recording).sum() == 0 for recordings in settings for recording in recordings):
        return [1] * len(settings)
    times = [_setting_times(recordings) for recordings in settings]
    left = sorted(range(len(times)), key=lambda place: times[place].middle)
    tier_of = [1] * len(settings)
    tier = 0
    while left:
        tier += 1
        first = times[left[0]]
        limit = max(times[place].middle for place in left if not _is_slower(times[place], first))
        for place in [place for place in left if times[place].middle <= limit]:
            tier_of[place] = tier
            left.remove(place)
    return tier_of


def is_fastest(tier: int, all_tiers: Sequence[int]) -> bool:
    """Whether a setting of this tier is faster than all others: alone in the first of several tiers."""
    return tier == 1 and len(all_tiers) > 1 == all_tiers.count(1)


def chance(faster: Medians, slower: Medians) -> float:
    """The p-value of an exact two-sided rank-sum test that the first are lower: equals are in the wrong order."""
    many, more = len(faster), len(slower)
    as_extreme = sum(_orders(many, more)[: _count_inversions(faster, slower) + 1])
    return min(2 * as_extreme / comb(many + more, many), 1.0)


class _SettingTimes(Struct, frozen=True, kw_only=True):
    middle: float
    """The median step of all of them."""
    spread: float
    medians: Medians
    """The median step of each recording."""
    steps: int
    lowest: float
    highest: float
    """The longest step of any rank."""


def _setting_times(recordings: Sequence[Steps]) -> _SettingTimes:
    medians = np.array([np.nanmedian(recording) for recording in recordings])
    middle = float(np.nanmedian(np.concatenate([recording.ravel() for recording in recordings])))
    return _SettingTimes(
        middle=middle,
        spread=spread(recordings),
        medians=medians,
        steps=sum(int(np.isfinite(recording).any(axis=0).sum()) for recording in recordings),
        lowest=min(float(np.nanmin(recording)) for recording in recordings),
        highest=max(float(np.nanmax(recording)) for recording in recordings),
    )


def _is_slower(setting: _SettingTimes, first: _SettingTimes) -> bool:
    """Whether a setting is told apart from one with a shorter median step, by the recordings of the two alone."""
    if min(len(setting.medians), len(first.medians)) > 1:
        return chance(first.medians, setting.medians) <= LEVEL
    beyond = setting.middle - first.middle > max(setting.spread, first.spread)
    if beyond and bool(first.medians.max() < setting.medians.min()):
        return True
    return steps_can_tell(setting.steps, first.steps) and first.highest < setting.lowest


def steps_can_tell(many: int, more: int) -> bool:
    """Whether so many steps of two settings tell them apart, if all of one are shorter than all of the other."""
    return min(many, more) >= FEWEST and 2 / comb(many + more, many) <= LEVEL


def _count_inversions(faster: Medians, slower: Medians) -> int:
    """How many pairs of a faster and a slower recording are in the wrong order (Mann and Whitney's U)."""
    return int((faster[:, None] >= slower[None, :]).sum())


@cache
def _orders(many: int, more: int) -> tuple[int, ...]:
    """How many orders of so many faster and slower recordings have 0, 1, 2, … pairs in the wrong order.

    The coefficients of a Gaussian binomial: the product of (1 − q^(more+i)) / (1 − q^i) for i = 1 … many.
    """
    counts = [1] + [0] * (many * more)
    for size in range(1, many + 1):
        for wrong in range(many * more, more + size - 1, -1):
            counts[wrong] -= counts[wrong - more - size]
        for wrong in range(size, many * more + 1):
            counts[wrong] += counts[wrong - size]
    return tuple(counts)


class Verified(Struct, frozen=True, kw_only=True):
    """What recordings of two settings say of a predicted gain; times in ms, medians over the recordings' medians."""

    before_ms: float
    after_ms: float
    faster: bool
    """Whether the second setting is faster by an exact one-sided rank-sum test, since the direction was predicted."""
    error_ms: float
    """The gain's error: the root of the added squares of half the range of each setting's recordings."""
    recordings: int
    """Recordings of the setting with fewer."""

    @property
    def gained_ms(self) -> float:
        """How much shorter the median step became."""
        return self.before_ms - self.after_ms


def verify_gain(before: Sequence[Steps], after: Sequence[Steps]) -> Verified:
    """Compare recordings of two settings, each an array of shape (ranks, steps) of step times in ms."""
    first, second = (
        np.array([np.nanmedian(np.nanmax(recording, axis=0)) for recording in recordings])
        for recordings in (before, after)
    )
    return Verified(
        before_ms=float(np.median(first)),
        after_ms=float(np.median(second)),
        faster=chance(second, first) / 2 <= LEVEL,
        error_ms=float(np.hypot(np.ptp(first), np.ptp(second)) / 2),
        recordings=min(len(first), len(second)),
    )
