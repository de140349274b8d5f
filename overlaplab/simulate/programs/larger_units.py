"""Units of FSDP2 that are larger than the recorded ones: a run's programs with so many as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from overlaplab.events import Run, missing_ranks, once_per_run
from overlaplab.evidence.fsdp2 import fsdp2_ranges
from overlaplab.manifest import Link
from overlaplab.simulate.edits.units import larger_units
from overlaplab.simulate.player import Move, Program, StuckError, play
from overlaplab.simulate.recorded import plain_programs
from overlaplab.simulate.transfers import takes_ns, transfers
from overlaplab.simulate.undisturbed import mean_step_ns


def join_units(
    run: Run, programs: Sequence[Program], together: int, link: Link | None, unknown: float = 0.5
) -> list[list[Move]] | None:
    """See `larger_units`; None also without FSDP2, and where ranks are missing, since T then contains their waits."""
    if missing_ranks(run) or not all(fsdp2_ranges(trace) for trace in run.traces):
        return None
    return larger_units(programs, together, partial(takes_ns, transfers(run, run.traces[0], link)), unknown)


def units_apart_ns(run: Run, together: int, link: Link | None) -> int:
    """By how much the mean step with so many units as one may be off, as T of larger collectives is unknown: half of
    what the least and the longest differ. 0 where T is known, or nothing can be played.
    """
    by_units = _apart_by_units(run)
    if (together, link) not in by_units:
        by_units[together, link] = _play_both(run, together, link)
    return by_units[together, link]


@once_per_run
def _apart_by_units(_run: Run) -> dict[tuple[int, Link | None], int]:
    """What `units_apart_ns` was asked for: a slider asks again with each move."""
    return {}


def _play_both(run: Run, together: int, link: Link | None) -> int:
    recorded, times = plain_programs(run), transfers(run, run.traces[0], link)
    if recorded is None or all(times.times_by_size(kind) is not None for kind in ("all_gather", "reduce_scatter")):
        return 0
    ends_ns = []
    for unknown in (0.0, 1.0):
        joined = join_units(run, recorded.programs, together, link, unknown)
        try:
            ends_ns.append(0.0 if joined is None else mean_step_ns(run, play(joined).all_spans_ns()))
        except StuckError:
            return 0
    return round(abs(ends_ns[1] - ends_ns[0]) / 2)
