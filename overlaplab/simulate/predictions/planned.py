"""The mean step of a planned number of GPUs and microbatches, from a recorded run of the same model."""

from __future__ import annotations

import pandas as pd
from msgspec import Struct

from overlaplab.costs.batch import Batch
from overlaplab.events import Run
from overlaplab.simulate.play_errors import refusal
from overlaplab.simulate.predictions import what_if
from overlaplab.simulate.predictions.answer import Question, interval
from overlaplab.simulate.predictions.device import device_manifest
from overlaplab.simulate.predictions.error import Interval
from overlaplab.simulate.predictions.predict import caps_beside
from overlaplab.simulate.programs.setting import Setting

_MAX_RANKS = 100_000
"""More do not fit into memory at once."""


class PlannedStep(Struct, frozen=True, kw_only=True):
    run: Run
    """The recording."""
    step_ns: int
    """The mean over all ranks' steps that nothing disturbed."""
    interval: Interval
    extrapolated: dict[str, float]
    """See `error.extrapolations`."""


def planned_step(run: Run, batch: Batch, recorded: pd.DataFrame | None = None) -> PlannedStep:
    """The step on the batch's ranks with its accumulation. Raises `OverlaplabError` where the run cannot tell.

    `recorded`: rows of `recorded_caps`; those of the recordings beside the run where not given.
    """
    if batch.ranks > _MAX_RANKS:
        raise refusal(run, f"no more than {_MAX_RANKS:,} ranks are predicted")
    recorded_accumulate = (run.manifest.accumulate if run.manifest else None) or 1
    setting = Setting(
        ranks=None if batch.ranks == device_manifest(run).world_size else batch.ranks,
        accumulate=None if batch.accumulate == recorded_accumulate else batch.accumulate,
    )
    answer = what_if.answer(run, Question(setting=setting))
    return PlannedStep(
        run=run,
        step_ns=answer.step_ns,
        interval=interval(run, answer, caps_beside(run) if recorded is None else recorded),
        extrapolated=answer.extrapolated,
    )
