"""What the training loop of a run does, and by whose options it can be changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from overlaplab.analyses.idle import HostRole
from overlaplab.manifest import Manifest, Swept, strategy_traits
from overlaplab.traits import BUCKETS, TRAITS, UNITS, Traits
from overlaplab.vocabulary import root_number


class Loop(Struct, frozen=True, kw_only=True):
    """What a run's training loop does, and by whose options it can be changed."""

    traits: Traits | None = None
    """None where neither run.json nor the trace tells."""
    framework: Literal["engine", "ddp", "fsdp2"] | None = None
    """The framework whose options a remedy names; None where unknown."""
    prefetch: int | None = None
    """Units gathered ahead, where run.json tells."""
    swept: Swept | None = None
    """The command that `overlaplab sweep` gave values to."""
    host: HostRole = "launches"
    """See `analyses.host_role`."""
    bucket_cap_mb: float | None = None
    """The recorded cap, where run.json tells."""
    sends_halves: bool = False
    """Whether gradients or parameters are sent in 16 bits, or compressed, already."""
    accumulates: bool = False
    """Whether some backward passes send nothing already."""
    units: int = 0
    """How many units are gathered, where that is known."""
    by_hand: bool = False
    """Whether it averages gradients with all-reduces of its own."""
    roots: int = 0
    """How many roots of FSDP2 are told apart, where there are several."""
    has_many_stages: bool = False
    """Whether each rank has several stages of a pipeline already."""
    loads_in_workers: bool = False
    """Whether its DataLoader has worker processes already."""

    @property
    def may_gather_units(self) -> bool:
        """Whether parameters may be gathered by units, so that they can be gathered earlier; unknown loops may."""
        return self.traits is None or self.traits.gathers == "units"


_FRAMEWORKS: dict[str, Literal["ddp", "fsdp2"]] = {"torch-ddp": "ddp", "torch-fsdp2": "fsdp2"}
"""The framework of a loop that a Recorder recorded, by the strategy in run.json."""
UNKNOWN_LOOP = Loop()


def loop_of(manifest: Manifest | None, sources: frozenset[str], units: Iterable[str] = ()) -> Loop:
    """The loop of a run, from the `source` of rows of `overlaplab.buckets` and `.schedule`, and the latter's `unit`.

    `by hand` is among the sources where the loop's own all-reduces average its gradients.
    """
    units = set(units)
    traits = strategy_traits(manifest)
    swept = None if manifest is None else manifest.swept
    roots = len({root_number(unit) for unit in units} - {None})
    if manifest is not None and traits is not None:
        engine = not manifest.by_recorder
        return Loop(
            traits=traits,
            framework="engine" if engine else _FRAMEWORKS.get(manifest.strategy or ""),
            prefetch=manifest.prefetch if engine else None,
            swept=swept,
            bucket_cap_mb=manifest.bucket_cap_mb,
            accumulates=(manifest.accumulate or 1) > 1,
            units=len(units),
            roots=0 if engine else roots,
            has_many_stages=manifest.pipeline is not None and manifest.pipeline.schedule not in ("gpipe", "1f1b"),
        )
    if "fsdp2" in sources:
        return Loop(traits=UNITS, framework="fsdp2", swept=swept, units=len(units), roots=roots)
    if "ddp" in sources:
        return Loop(traits=BUCKETS, framework="ddp", swept=swept)
    if "by hand" in sources:
        return Loop(traits=TRAITS["naive"], swept=swept, by_hand=True)
    return UNKNOWN_LOOP
