"""Units of FSDP2 that are larger than the recorded ones, played."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

import numpy as np
import numpy.typing as npt

from overlaplab.events import Run, once_per_run
from overlaplab.simulate.advice.doubt import gains_miss_ns
from overlaplab.simulate.player import StuckError, play
from overlaplab.simulate.programs.larger_units import join_units, units_apart_ns
from overlaplab.simulate.recorded import plain_programs
from overlaplab.simulate.undisturbed import as_good_as_the_best

_TOGETHER = (2, 4, 8)
"""Units as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsPlayed:
    """What so many units as one would have given."""

    together: int
    spans_ns: npt.NDArray[np.int64]
    """How long the steps take, of shape (ranks, steps)."""
    half_ns: int | None
    """By how much a recorded gain may differ."""


@once_per_run
def units_played(run: Run) -> tuple[UnitsPlayed, ...]:
    """Two, four and eight units as one, as far as there are enough; none without FSDP2.

    Where all recorded collectives are of one size, T of more bytes is unknown: steps are played with the middle of what
    it could be, and the gain may be off by `units_apart_ns`.
    """
    recorded, link = plain_programs(run), run.manifest.link if run.manifest else None
    if recorded is None:
        return ()
    played: list[UnitsPlayed] = []
    for together in _TOGETHER:
        joined = join_units(run, recorded.programs, together, link)
        if joined is None:
            break
        try:
            spans_ns = play(joined).all_spans_ns()
        except StuckError:
            break
        doubt_ns = gains_miss_ns(run)
        half_ns = None if doubt_ns is None else round(hypot(doubt_ns, units_apart_ns(run, together, link)))
        played.append(UnitsPlayed(together=together, spans_ns=spans_ns, half_ns=half_ns))
    return tuple(played)


def best_units(run: Run) -> UnitsPlayed | None:
    """The fewest units as one of those whose steps are shortest: each unit more is held in full."""
    return next(iter(as_good_as_the_best(run, units_played(run))), None)
