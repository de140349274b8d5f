"""How much the gains may be off that replays tell."""

from __future__ import annotations

from statistics import fmean

from overlaplab.events import Run, once_per_run
from overlaplab.simulate.player import StuckError
from overlaplab.simulate.predictions.error import gain_half_ns, interval, measured_steps
from overlaplab.simulate.replayed import replayed

__all__ = ["gains_miss_ns"]


@once_per_run
def gains_miss_ns(run: Run) -> int | None:
    """Half of the 95 % interval of a gain that was played, see `gain_half_ns`; None where nothing can be played."""
    try:
        table = replayed(run)
    except StuckError:
        return None
    steps = measured_steps(run)
    played = table["replayed_ns"].to_numpy().reshape(len(run.traces), -1).mean(axis=0) if len(table) else []
    if len(played) != len(steps) or not len(steps):
        return None
    return gain_half_ns(fmean(steps), interval(fmean(steps), steps, list(played)))
