"""How much the gains may be off that replays tell."""

from __future__ import annotations

from statistics import fmean

from overlaplab.events import Run, once_per_run
from overlaplab.simulate.player import StuckError, play
from overlaplab.simulate.predictions.error import by_step, gain_half_ns, interval, measured_steps
from overlaplab.simulate.recorded import plain_programs

__all__ = ["gains_miss_ns"]


@once_per_run
def gains_miss_ns(run: Run) -> int | None:
    """Half of the 95 % interval of a gain that was played, see `gain_half_ns`; None where nothing can be played."""
    recorded = plain_programs(run)
    if recorded is None:
        return None
    try:
        played = play(recorded.programs)
    except StuckError:
        return None
    replayed = by_step(played.spans_ns(rank) for rank in range(len(recorded.programs)))
    steps = measured_steps(run)
    return gain_half_ns(fmean(steps), interval(fmean(steps), steps, replayed))
