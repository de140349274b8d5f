"""The figures of earlier recordings of one setting, kept to hold later runs against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from overlaplab.analyses.across_runs.regression import Condition
from overlaplab.analyses.across_runs.settings import is_predicted, settings_differ, work_settings
from overlaplab.analyses.scalars import Scalars, scalars
from overlaplab.costs import link_attained
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run, is_on_gpus
from overlaplab.evidence.selection import selected_traces
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.words import numbers_named, shorten

_VERSION = 2
"""Version 1 had other rules for causes: whatever held up the host got all the time before it, waits included."""
_COMMAND = "overlaplab baseline RUN… -o FILE"


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """Recordings of one setting, by their figures."""

    settings: dict[str, Any] | None
    """`work_settings` of the recordings; None where they have no run.json."""
    recordings: Annotated[tuple[dict[str, float | None], ...], msgspec.Meta(min_length=1)]
    """`scalars` of each."""
    skip_steps: int = 0
    """How many first steps of each rank were left out."""
    ranks: tuple[int, ...] | None = None
    """The ranks whose figures these are; None where it does not say."""
    steps: tuple[int, ...] | msgspec.UnsetType | None = msgspec.UNSET
    """The only steps whose figures these are; None for all; unset where it does not say."""
    on_gpus: bool | None = None
    """Whether they were recorded on GPUs; None where it does not say."""
    format: Literal["overlaplab baseline"] = "overlaplab baseline"
    format_version: int = _VERSION

    def text(self) -> str:
        """Return the text of a JSON file, which `stored_baseline` reads."""
        return json.dumps(msgspec.to_builtins(self), indent=1, allow_nan=False) + "\n"


_BASELINE = msgspec.json.Decoder(Baseline)


def baseline(runs: Sequence[Run], selection: Selection = EVERYTHING) -> Baseline:
    """The figures of these recordings. Raises `OverlaplabError` where they did different work, or on other devices."""
    settings, on_gpus = [_settings(run) for run in runs], is_on_gpus(runs[0])
    for run, run_settings in zip(runs, settings, strict=True):
        _require_same(settings[0], run_settings, run)
        _require_device(run, on_gpus, runs[0].path)
    figures = tuple(scalars(run, selection) for run in runs)
    ranks = tuple(sorted(set.intersection(*(_ranks(run, selection) for run in runs))))
    return Baseline(
        settings=settings[0],
        recordings=figures,
        skip_steps=selection.skip_steps,
        ranks=ranks,
        steps=_steps(selection),
        on_gpus=on_gpus,
    )


def stored_baseline(path: Path) -> Baseline:
    """Read a baseline's file. Raises `OverlaplabError` where there is none, or it is something else."""
    remedy = f"Write one with: {_COMMAND}"
    try:
        stored = _BASELINE.decode(path.read_bytes())
    except OSError as error:
        raise OverlaplabError(f"cannot be read ({error.strerror or error})", path=path, remedy=remedy) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OverlaplabError(f"is no baseline ({shorten(str(error), 200)})", path=path, remedy=remedy) from None
    if stored.format_version > _VERSION:
        raise OverlaplabError("was written by a newer overlaplab", path=path, remedy="Upgrade, or write it anew.")
    return stored


def recordings_before(
    run: Run,
    selection: Selection,
    stored: Baseline | None,
    other: Run | None,
    *,
    conditions: Sequence[Condition] = (),
    path: Path | None = None,
) -> tuple[Scalars, ...]:
    """The figures that changes are measured from: a baseline's recordings, else another run's, else none.

    `path` is the baseline's file. Another run's figures of causes are there only where the conditions ask for them.

    Raises `OverlaplabError` where the run cannot be compared with them: it did other work, other steps or ranks count,
    a rank's trace is missing, one ran on GPUs and the other on CPUs, or they ask for changes of causes that the
    baseline has by earlier rules; and where it, or the other run, was predicted or did not attain its emulated link.
    """
    for judged_run in (run,) if other is None else (run, other):
        _require_judgeable(judged_run)
    of_causes = [condition for condition in conditions if condition.is_of_cause]
    if stored is not None:
        changes = [condition.column for condition in of_causes if condition.is_change]
        if changes and stored.format_version < _VERSION:
            what = f"has {changes[0]} by the rules of an earlier overlaplab"
            raise OverlaplabError(what, path=path, remedy=f"Write it again: {_COMMAND}")
        _require_same(stored.settings, _settings(run), run)
        _require_device(run, stored.on_gpus, "the baseline")
        _require_ranks(run, selection, set(stored.ranks or ()))
        if stored.ranks and (more := _ranks(run, selection) - set(stored.ranks)):
            remedy = "Compare the same ranks."
            raise OverlaplabError("is not in the baseline", path=run.path, rank=min(more), remedy=remedy)
        if stored.skip_steps != selection.skip_steps:
            raise OverlaplabError(
                f"the baseline leaves out the first {stored.skip_steps} steps of each rank, this comparison"
                f" {selection.skip_steps}",
                remedy=f"Compare with --skip-steps {stored.skip_steps}.",
            )
        if stored.steps is not msgspec.UNSET and stored.steps != (steps := _steps(selection)):
            what = f"the baseline is of {_steps_words(stored.steps)}, this comparison of {_steps_words(steps)}"
            raise OverlaplabError(what, remedy="Compare the same steps.")
        return stored.recordings
    if other is None:
        return ()
    _require_same(_settings(other), _settings(run), run, others=other.path)
    _require_device(run, is_on_gpus(other), other.path)
    _require_ranks(run, selection, _ranks(other, selection))
    _require_ranks(other, selection, _ranks(run, selection))
    return (scalars(other, selection, causes=bool(of_causes)),)


def _require_judgeable(run: Run) -> None:
    """Raise for a run that is not a measurement of its link: predicted, or link not attained."""
    if is_predicted(run):
        remedy = "`overlaplab predict` says how far it may be off."
        raise OverlaplabError("was predicted, not recorded", path=run.path, remedy=remedy)
    if link_attained(run.manifest) is False:
        what = "its emulated link was not attained, so that its figures are not those of this link"
        raise OverlaplabError(what, path=run.path, remedy="Record on a quieter machine, or with a slower --link.")


def _require_device(run: Run, on_gpus: bool | None, others: str) -> None:
    """Raise where the run was recorded on another kind of device than `others`, where theirs is known."""
    if on_gpus is not None and is_on_gpus(run) != on_gpus:
        where = f"CPUs, and {others} on GPUs" if on_gpus else f"GPUs, and {others} on CPUs"
        remedy = "Compare recordings of one kind of device."
        raise OverlaplabError(f"was recorded on {where}", path=run.path, remedy=remedy)


def _require_ranks(run: Run, selection: Selection, others: set[int]) -> None:
    """Raise where a rank of `others` is in this run's world, and has no trace here."""
    size = run.manifest.world_size if run.manifest else max((trace.world_size or 1 for trace in run.traces), default=1)
    missing = {rank for rank in others - _ranks(run, selection) if rank < size}
    if missing:
        what = "is missing: what this run is compared with has it"
        raise OverlaplabError(what, path=run.path, rank=min(missing), remedy="Compare the same ranks.")


def _settings(run: Run) -> dict[str, Any] | None:
    return work_settings(run.manifest) if run.manifest else None


def _ranks(run: Run, selection: Selection) -> set[int]:
    return {trace.rank for trace in selected_traces(run, selection) if trace.rank is not None}


def _steps(selection: Selection) -> tuple[int, ...] | None:
    return None if selection.steps is None else tuple(sorted(set(selection.steps)))


def _steps_words(steps: Sequence[int] | None) -> str:
    if steps is None:
        return "all steps"
    return f"step{'' if len(steps) == 1 else 's'} {numbers_named(steps)}"


def _require_same(
    first: dict[str, Any] | None, other: dict[str, Any] | None, run: Run, *, others: str = "the other recordings"
) -> None:
    """Raise where the run's `work_settings` differ from those of `others`; runs without run.json are trusted."""
    if first is not None and other is not None and (differ := settings_differ(first, other)):
        remedy = "Only recordings of one model, input, machine and link can be compared."
        raise OverlaplabError(f"differs from {others} in {', '.join(differ)}", path=run.path, remedy=remedy)
