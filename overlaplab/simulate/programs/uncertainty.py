"""By how much edited steps may be off, as how long collectives of other sizes take is not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, once_per_run
from overlaplab.manifest import Link
from overlaplab.simulate.player import Launch, StuckError, find_launches, play
from overlaplab.simulate.programs.edits import EditChoice, Programs, apply_edits
from overlaplab.simulate.programs.larger_units import join_units
from overlaplab.simulate.recorded import plain_programs
from overlaplab.simulate.transfers import transfers
from overlaplab.simulate.undisturbed import mean_step_ns


def transfers_miss_ns(run: Run, edits: Sequence[EditChoice], link: Link | None) -> int:
    """By how much the mean step with these edits of a run on CPUs may be off, as T of other sizes is unknown."""
    link = link or (run.manifest.link if run.manifest else None)
    units = sum(units_apart_ns(run, int(value), link) for name, value in edits if name == "larger-units" and value)
    return units + (_halving_gains_ns(run) if link is None and ("half-bytes", None) in edits else 0)


@once_per_run
def units_apart_ns(run: Run, together: int, link: Link | None) -> int:
    """By how much the mean step with so many units as one may be off: half its range by least and longest T."""
    recorded, times = plain_programs(run), transfers(run, run.traces[0], link)
    if recorded is None or all(times.times_by_size(kind) is not None for kind in ("all_gather", "reduce_scatter")):
        return 0
    joined = [join_units(run, recorded.programs, together, link, unknown) for unknown in (0.0, 1.0)]
    return round(_apart_ns(run, *joined) / 2)


@once_per_run
def _halving_gains_ns(run: Run) -> int:
    """What half the bytes gains where collectives are of one size: their T may not depend on it. Else 0."""
    recorded = plain_programs(run)
    launches = [launch for program in recorded.programs for launch in find_launches(program)] if recorded else []
    if recorded is None or not have_one_size(launch for launch in launches if launch.role):
        return 0
    with suppress(OverlaplabError):  # T is not known at all
        return _apart_ns(run, recorded.programs, apply_edits(run, recorded.programs, [("half-bytes", None)], None))
    return 0


def have_one_size(launches: Iterable[Launch]) -> bool:
    """Whether collectives of the same kind are all of one size, so that their T may be latency alone."""
    sent = {(launch.kind, launch.bytes) for launch in launches}
    return len(sent) == len({kind for kind, _ in sent})


def _apart_ns(run: Run, first: Programs | None, other: Programs | None) -> int:
    """How much shorter or longer the mean step is with other programs; 0 where they cannot be played."""
    if first is None or other is None:
        return 0
    try:
        means = [mean_step_ns(run, play(programs).all_spans_ns()) for programs in (first, other)]
    except StuckError:
        return 0
    return round(abs(means[1] - means[0]))
