"""Units of FSDP2 that are larger than the recorded ones, played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import hypot

import numpy as np
import numpy.typing as npt

from overlaplab.events import Run, missing_ranks, once_per_run
from overlaplab.evidence.fsdp2 import fsdp2_ranges
from overlaplab.simulate.advice.doubt import gains_miss_ns
from overlaplab.simulate.edits.units import Takes, larger_units
from overlaplab.simulate.player import Move, StuckError, play
from overlaplab.simulate.recorded import plain_programs
from overlaplab.simulate.transfers import takes_ns, transfers
from overlaplab.simulate.undisturbed import as_good_as_the_best, mean_step_ns

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

    Where all recorded collectives are of one size, T of more bytes is unknown: it lies between theirs and their sum.
    Steps are then in the middle of what both give, and the gain may be off by half of what they differ.
    """
    recorded = plain_programs(run)
    if recorded is None or missing_ranks(run) or not all(fsdp2_ranges(trace) for trace in run.traces):
        return ()
    takes = partial(takes_ns, transfers(run, run.traces[0], run.manifest.link if run.manifest else None))
    played: list[UnitsPlayed] = []
    for together in _TOGETHER:
        low, high = (_spans_ns(recorded.programs, together, each) for each in (takes, _or_nothing(takes)))
        if low is None or high is None:
            break
        apart_ns = abs(mean_step_ns(run, low) - mean_step_ns(run, high)) / 2
        doubt_ns = gains_miss_ns(run)
        half_ns = None if doubt_ns is None else round(hypot(doubt_ns, apart_ns))
        played.append(UnitsPlayed(together=together, spans_ns=(low + high) // 2, half_ns=half_ns))
    return tuple(played)


def best_units(run: Run) -> UnitsPlayed | None:
    """The fewest units as one of those whose steps are shortest: each unit more is held in full."""
    return next(iter(as_good_as_the_best(run, units_played(run))), None)


def _or_nothing(takes: Takes) -> Takes:
    """The same T, but where it is unknown more bytes take no longer."""
    return lambda kind, num_bytes: 0 if takes(kind, num_bytes) is None else takes(kind, num_bytes)


def _spans_ns(programs: Sequence[Sequence[Move]], together: int, takes: Takes) -> npt.NDArray[np.int64] | None:
    larger = larger_units(programs, together, takes)
    if larger is None:
        return None
    try:
        return play(larger).all_spans_ns()
    except StuckError:
        return None
