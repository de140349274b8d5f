"""Whether the emulated link was attained, step by step (docs/design.md, "Link attained")."""

from collections.abc import Sequence
from dataclasses import dataclass

from overlaplab_engine.network.carrier import Carried

MOST_RATIO = 1.05
"""A step's collectives may together take this multiple of their modelled time."""
MOST_LATE = 0.10
"""A single collective may be late by this share of the step."""
ENOUGH_STEPS = 3
"""A run is attained if so many steps are, or all where fewer are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStep:
    """What the link carried for one rank in one recorded step; times in ns."""

    rank: int
    step: int
    """The profiler's number of the step."""
    modelled_ns: int
    """Sum of the modelled times of the collectives that the rank launched in the step."""
    occupied_ns: int
    """Sum of the times that they took, each from its last arrival to its end."""
    latest_ns: int
    """The most that one of them took beyond its modelled time."""
    took_ns: int
    """The step itself."""

    @property
    def attained(self) -> bool:
        """Whether the link kept its model; always true where nothing is modelled, as with one rank."""
        on_time = self.occupied_ns <= MOST_RATIO * self.modelled_ns and self.latest_ns <= MOST_LATE * self.took_ns
        return self.modelled_ns == 0 or on_time


def link_step(rank: int, step: int, carried: Sequence[Carried], took_ns: int) -> LinkStep:
    """The step in which `carried` were launched."""
    return LinkStep(
        rank=rank,
        step=step,
        modelled_ns=sum(c.modelled_ns for c in carried),
        occupied_ns=sum(c.occupied_ns for c in carried),
        latest_ns=max((c.occupied_ns - c.modelled_ns for c in carried), default=0),
        took_ns=took_ns,
    )


def attained_steps(rows: Sequence[LinkStep]) -> set[int]:
    """The steps in which every rank's link was attained."""
    return {row.step for row in rows} - {row.step for row in rows if not row.attained}


def is_attained(rows: Sequence[LinkStep]) -> bool:
    """Whether the run's link was attained: in `ENOUGH_STEPS` steps, or in all where fewer were recorded."""
    return len(attained_steps(rows)) >= min(ENOUGH_STEPS, len({row.step for row in rows}))
