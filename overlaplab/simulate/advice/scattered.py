"""Other caps for runs that reduce-scatter their gradients (zero1, zero2), played."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, once_per_run
from overlaplab.manifest import strategy_traits
from overlaplab.simulate.assign import MIB, assign
from overlaplab.simulate.buckets.caps import CapRange, cap_ranges
from overlaplab.simulate.player import Program, StuckError, launches_of, play
from overlaplab.simulate.programs import programs_of
from overlaplab.simulate.programs.options import strategy_options
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.recorded import plain_programs
from overlaplab.simulate.undisturbed import as_good_as_the_best

_MAX_CAPS = 8
"""Caps that are tried: programs of zero1 and zero2 are made anew for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapPlayed:
    """What a cap would have given."""

    cap_mb: float
    caps_mb: tuple[float, ...]
    """With the first bucket's own, where it has one."""
    bucket_sizes: tuple[int, ...]
    """Bytes of each bucket's gradients, in order of launch."""
    programs: Sequence[Program]
    spans_ns: npt.NDArray[np.int64]
    """How long the steps take, of shape (ranks, steps)."""


@once_per_run
def scattered_caps(run: Run) -> tuple[CapPlayed, ...]:
    """The caps that were tried, the smallest first; none without a link, since T of other sizes is not known then."""
    recorded, traits, manifest = plain_programs(run), strategy_traits(run.manifest), run.manifest
    if recorded is None or traits is None or traits.gradients != "reduce_scatter" or not traits.buckets:
        return ()
    if manifest is None or manifest.link is None:
        return ()
    sizes = {name: size for name, (size, _) in recorded.gradients.items()}
    buckets = [launch.parameters for launch in launches_of(recorded.programs[0], "bucket")]
    order = list(dict.fromkeys(name for parameters in buckets for name in parameters))
    if set(order) != set(sizes):
        return ()
    played: list[CapPlayed] = []
    tried = _spread(list(cap_ranges(order, sizes)))
    for each in tried:
        setting = Setting(bucket_cap_mb=each.cap_mb)
        with suppress(OverlaplabError, StuckError):
            programs = programs_of(run, setting)
            spans = play(programs).all_spans_ns()
            caps = strategy_options(run, manifest, setting).caps
            buckets_then = assign(order, sizes, caps)
            bucket_sizes = tuple(sum(sizes[name] for name in names) for names in buckets_then)
            played.append(
                CapPlayed(
                    cap_mb=each.cap_mb,
                    caps_mb=tuple(cap / MIB for cap in caps),
                    bucket_sizes=bucket_sizes,
                    programs=programs,
                    spans_ns=spans,
                )
            )
    return tuple(played) if len(played) == len(tried) else ()  # else at most the recorded one could be


def _spread(ranges: Sequence[CapRange[str]]) -> list[CapRange[str]]:
    """At most `_MAX_CAPS`, smallest and largest cap among them, evenly by the logarithm of their number of buckets."""
    if len(ranges) <= _MAX_CAPS:
        return list(ranges)
    counts = np.log([len(each.buckets) for each in ranges])
    wanted = np.linspace(counts[0], counts[-1], _MAX_CAPS)
    places = {int(np.abs(counts - count).argmin()) for count in wanted}
    return [ranges[place] for place in sorted(places)]


def best_scattered_cap(run: Run) -> CapPlayed | None:
    """The cap with the fewest buckets of those whose steps are shortest, as far as that can be told."""
    good = as_good_as_the_best(run, scattered_caps(run))
    return min(good, key=lambda each: len(each.bucket_sizes), default=None)
