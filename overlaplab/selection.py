"""Which part of a run a figure is about."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["EVERYTHING", "Selection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Ranks and steps of a run."""

    ranks: Collection[int] | None = None
    """Only these; None: all of them."""
    steps: Collection[int] | None = None
    """Only these, by their ProfilerStep numbers; None: all of them."""
    skip_steps: int = 0
    """How many of each rank's first steps are left out."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self.ranks is None and self.steps is None and not self.skip_steps


EVERYTHING = Selection()
