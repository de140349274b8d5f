"""Units gathered further ahead than in a recorded run, played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, once_per_run
from overlaplab.manifest import strategy_traits
from overlaplab.simulate.player import Program, StuckError, play
from overlaplab.simulate.programs import made_programs
from overlaplab.simulate.programs.setting import Setting
from overlaplab.simulate.recorded import plain_programs
from overlaplab.simulate.undisturbed import as_good_as_the_best

_MAX_FURTHER_UNITS = 4
"""Units further ahead than recorded: each is held in full, so few have the memory for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthPlayed:
    """What a prefetch depth would have given."""

    prefetch: int
    programs: Sequence[Program]
    spans_ns: npt.NDArray[np.int64]
    """How long the steps take, of shape (ranks, steps)."""


@once_per_run
def depths_played(run: Run) -> tuple[DepthPlayed, ...]:
    """Each depth beyond the recorded one, the smallest first, until nothing more changes."""
    recorded, traits = plain_programs(run), strategy_traits(run.manifest)
    if recorded is None or traits is None or traits.gathers != "units":
        return ()
    if run.manifest is None or run.manifest.prefetch is None:
        return ()
    played: list[DepthPlayed] = []
    programs: Sequence[Program] = recorded.programs
    for depth in range(run.manifest.prefetch + 1, run.manifest.prefetch + 1 + _MAX_FURTHER_UNITS):
        try:
            deeper = made_programs(run, Setting(prefetch=depth))
            spans = play(deeper).all_spans_ns()
        except (OverlaplabError, StuckError):
            break
        if all(list(moves) == list(before) for moves, before in zip(deeper, programs, strict=True)):
            break
        played.append(DepthPlayed(prefetch=depth, programs=deeper, spans_ns=spans))
        programs = deeper
    return tuple(played)


def best_depth(run: Run) -> DepthPlayed | None:
    """The smallest of the depths whose steps are shortest, as far as that can be told: each unit more takes memory."""
    return next(iter(as_good_as_the_best(run, depths_played(run))), None)
