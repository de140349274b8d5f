"""The figures of earlier recordings of one setting, kept to hold later runs against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from overlaplab.analyses.across_runs.settings import settings_differ, work_settings
from overlaplab.analyses.scalars import Scalars, scalars
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.selection import EVERYTHING, Selection

__all__ = ["Baseline", "baseline", "recordings_before", "stored_baseline"]

_FORMAT = "overlaplab baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Recordings of one setting, by their figures."""

    settings: dict[str, Any] | None
    """`work_settings` of the recordings; None where they have no run.json."""
    recordings: tuple[dict[str, float | None], ...]
    """`scalars` of each."""
    skip_steps: int = 0
    """How many first steps of each rank were left out."""
    format: str = _FORMAT
    format_version: int = 1

    def text(self) -> str:
        """As a JSON file, which `stored_baseline` reads."""
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"


_BASELINE = msgspec.json.Decoder(Baseline)


def baseline(runs: Sequence[Run], selection: Selection = EVERYTHING) -> Baseline:
    """The figures of these recordings. Raises `OverlaplabError` where they did different work."""
    settings = [work_settings(run.manifest) if run.manifest else None for run in runs]
    for run, own in zip(runs, settings, strict=True):
        _require_same(settings[0], own, run)
    figures = tuple(scalars(run, selection) for run in runs)
    return Baseline(settings=settings[0], recordings=figures, skip_steps=selection.skip_steps)


def stored_baseline(path: Path) -> Baseline:
    """Read a baseline's file. Raises `OverlaplabError` where there is none, or it is something else."""
    remedy = "Write one with: overlaplab baseline RUN… -o FILE"
    try:
        found = _BASELINE.decode(path.read_bytes())
    except OSError as error:
        raise OverlaplabError(f"cannot be read ({error.strerror or error})", path=path, remedy=remedy) from None
    except msgspec.DecodeError as error:
        raise OverlaplabError(f"is no baseline ({error})", path=path, remedy=remedy) from None
    if found.format != _FORMAT or not found.recordings:
        raise OverlaplabError("is no baseline", path=path, remedy=remedy)
    if found.format_version != 1:
        raise OverlaplabError("was written by a newer overlaplab", path=path, remedy="Upgrade, or write it anew.")
    return found


def recordings_before(
    run: Run, selection: Selection, stored: Baseline | None, other: Run | None, *, causes: bool = True
) -> tuple[Scalars, ...]:
    """The figures that changes are measured from: a baseline's recordings, else another run's, else none.

    Raises `OverlaplabError` where the run did other work than the baseline's recordings, or other steps count.
    """
    if stored is not None:
        _require_comparable(stored, run, selection)
        return stored.recordings
    return () if other is None else (scalars(other, selection, causes=causes),)


def _require_comparable(found: Baseline, run: Run, selection: Selection) -> None:
    _require_same(found.settings, work_settings(run.manifest) if run.manifest else None, run)
    if found.skip_steps != selection.skip_steps:
        raise OverlaplabError(
            f"the baseline leaves out the first {found.skip_steps} steps of each rank, this comparison"
            f" {selection.skip_steps}",
            remedy=f"Compare with --skip-steps {found.skip_steps}.",
        )


def _require_same(one: dict[str, Any] | None, other: dict[str, Any] | None, run: Run) -> None:
    """Runs without run.json are trusted to be what they are said to be."""
    if one is None or other is None:
        return
    if differ := settings_differ(one, other):
        raise OverlaplabError(
            f"differs from the other recordings in {', '.join(differ)}",
            path=run.path,
            remedy="A baseline is of one model, input, machine and link.",
        )
