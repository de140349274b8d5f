"""Whether recordings confirm that one setting is faster than another, as was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlaplab.analyses.across_runs.spread import Steps
from overlaplab.analyses.across_runs.tiers import LEVEL, chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
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
