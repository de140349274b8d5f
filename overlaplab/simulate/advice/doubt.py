"""How much the gains may be off that replays tell."""

from __future__ import annotations

from overlaplab.events import Run, once_per_run
from overlaplab.simulate.player import StuckError
from overlaplab.simulate.predictions.error import gain_half_ns, replay_interval
from overlaplab.simulate.replayed import replay_steps
from overlaplab.simulate.undisturbed import mean_step_ns, recorded_spans_ns


@once_per_run
def gains_miss_ns(run: Run) -> int | None:
    """Half of the 95 % interval of a gain that was played, see `gain_half_ns`; None where nothing can be played."""
    try:
        table = replay_steps(run)
    except StuckError:
        return None
    if table.empty:
        return None
    played = table["replayed_ns"].to_numpy().reshape(len(run.traces), -1).mean(axis=0)
    step_ns = mean_step_ns(run, recorded_spans_ns(run))
    return gain_half_ns(step_ns, replay_interval(run, step_ns, list(played)))
