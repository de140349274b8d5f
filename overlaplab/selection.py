"""The part of a run that a figure covers."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct


class Selection(Struct, frozen=True, kw_only=True):
    """Ranks and steps of a run."""

    ranks: Collection[int] | None = None
    """Only these ranks; None for all."""
    steps: Collection[int] | None = None
    """Only these steps, by ProfilerStep number; None for all."""
    skip_steps: int = 0
    """How many of each rank's first steps to skip."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self.ranks is None and self.steps is None and not self.skip_steps


EVERYTHING = Selection()
