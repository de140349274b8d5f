"""A run as a flat dictionary of numbers, for experiment trackers, conditions and baselines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import pandas as pd

from overlaplab.analyses.exposed import CAUSES, exposed
from overlaplab.analyses.summary import FIGURES, summary
from overlaplab.analyses.worst import damaged_steps, undamaged, without_steps
from overlaplab.events import Run
from overlaplab.selection import EVERYTHING, Selection

__all__ = ["OF_CAUSE", "Scalars", "scalars"]

Scalars: TypeAlias = Mapping[str, float | None]
OF_CAUSE = {"exposed." + re.sub(r"\W", "_", cause): cause for cause in CAUSES}
"""Figures that are the exposed time of one cause: `exposed.tail`, `exposed.straggler_wait`."""
_RATIO = "overlap_ratio"


def scalars(run: Run, selection: Selection = EVERYTHING, *, causes: bool = True) -> dict[str, float | None]:
    """The figures of `summary`, by name, and the exposed time of each cause (`exposed.tail`, …): one number each.

    A time is the mean over all undamaged steps of all ranks in which it is known, in ns; `overlap_ratio` is the ratio
    of the sums. None where nothing is known. Without `causes` those are left out, which is quicker. Raises
    `OverlaplabError` for an unknown rank or step.
    """
    every = summary(run, selection)
    table = undamaged(every)
    found = {column: _mean(table[column]) for column in FIGURES if column != _RATIO}
    comm = int(table["comm_ns"].sum())
    found[_RATIO] = int(table["overlapped_ns"].sum()) / comm if comm else None
    return found | (_by_cause(run, selection, every) if causes else {})


def _by_cause(run: Run, selection: Selection, table: pd.DataFrame) -> dict[str, float | None]:
    rows, steps = without_steps(exposed(run, selection), damaged_steps(table)), len(undamaged(table))
    sums = rows.groupby("cause")["exposed_ns"].sum()
    return {name: float(sums.get(cause, 0)) / steps if steps else None for name, cause in OF_CAUSE.items()}


def _mean(column: pd.Series[int]) -> float | None:
    """Of the known ones; None if there are none."""
    return float(column.astype("Float64").mean()) if column.notna().any() else None
