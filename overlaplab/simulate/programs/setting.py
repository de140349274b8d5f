"""What a prediction changes against the run that was recorded."""

from __future__ import annotations

from msgspec import Struct

from overlaplab.manifest import Link


class Setting(Struct, frozen=True, kw_only=True):
    """What is changed against the recorded run; None: as recorded."""

    strategy: str | None = None
    """A name of `overlaplab.traits.TRAITS`."""
    bucket_cap_mb: float | None = None
    """MiB; with another strategy than the recorded one and None its own default."""
    first_bucket_mb: float | None = None
    """MiB of the first bucket, which is ready first; None: as recorded, or as large as the others."""
    link: Link | None = None
    ranks: int | None = None
    prefetch: int | None = None
    """Units gathered ahead of the one in use."""
    accumulate: int | None = None
    """Microbatches per step."""
    schedule: str | None = None
    """The schedule of a pipeline, one of `pipelines.shape.PLAYED_SCHEDULES`."""
    microbatches: int | None = None
    """The number in a pipeline's step, each as large as recorded."""
    stages: tuple[int, ...] | None = None
    """The layers of each stage of a pipeline."""
    caps_mb: tuple[float, ...] | None = None
    """A cap for each bucket in MiB, the last of which serves on."""
    without_parameter: str | None = None
    """One whose gradient is not sent."""
    edits: tuple[tuple[str, str | None], ...] = ()
    """Names of `programs.edits.EDITS` with their values, which are made in this order."""
    straggler: bool = True
    """False: every rank's work is as the median rank's."""
