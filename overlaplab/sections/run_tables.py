"""A run and its tables, each computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from overlaplab import analyses, findings, simulate
from overlaplab.events import Run
from overlaplab.manifest import Manifest
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.timeline.timeline import timeline_events

__all__ = ["RunTables", "one_window"]

T = TypeVar("T")


def _selected(analysis: Callable[[Run, Selection], pd.DataFrame]) -> cached_property[pd.DataFrame]:
    return cached_property(lambda tables: analysis(tables.run, tables.selection))


def _whole(analysis: Callable[[Run], T]) -> cached_property[T]:
    return cached_property(lambda tables: analysis(tables.run))


@dataclass(frozen=True, kw_only=True)
class RunTables:
    """A run's tables of the selected ranks and steps, each under its analysis' name."""

    run: Run
    selection: Selection = EVERYTHING

    summary = _selected(analyses.summary)
    totals = _selected(analyses.totals)
    exposed = _selected(analyses.exposed)
    idle = _selected(analyses.idle)
    buckets = _selected(analyses.buckets)
    schedule = _selected(analyses.schedule)
    scatters = _selected(analyses.scatters)
    collectives = _selected(analyses.collectives)
    stragglers = _selected(analyses.stragglers)
    communication_by = _selected(analyses.communication_by)
    volume = _selected(analyses.volume)
    theory = _whole(analyses.volume_theory)
    memory = _whole(analyses.memory)
    peaks = _whole(analyses.peaks)
    timeline = _whole(timeline_events)
    warnings = _whole(findings.run_warnings)
    unseen = _whole(findings.unseen)

    @cached_property
    def bound(self) -> dict[str, Any] | None:
        """The bound of the step that the verdict is about, see `step_bound`."""
        return self.step_bound(self.summary)

    def step_bound(self, table: pd.DataFrame) -> dict[str, Any] | None:
        """The row of `simulate.bound` for the step that the verdict on these rows of `summary` is about; None without.

        Each is computed once.
        """
        if table.empty:
            return None
        worst = analyses.worst_step(table)
        rank, step = (None if pd.isna(worst[name]) else int(worst[name]) for name in ("rank", "step"))
        if (rank, step) not in self._bounds:
            chosen = Selection(ranks=None if rank is None else [rank], steps=None if step is None else [step])
            rows = simulate.bound(self.run, chosen).to_dict("records")
            self._bounds[rank, step] = {str(name): value for name, value in rows[0].items()} if rows else None
        return self._bounds[rank, step]

    @cached_property
    def _bounds(self) -> dict[tuple[int | None, int | None], dict[str, Any] | None]:
        return {}

    @cached_property
    def exposed_advice(self) -> str:
        """What to do about exposed communication."""
        return findings.exposed_advice(self.summary, self.exposed, self.idle, self.unseen, self.bound)

    @cached_property
    def verdict(self) -> str:
        """The verdict on the selected ranks and steps, or why there is none."""
        missing = findings.not_recorded(self.run) if self.summary.empty else None
        return missing or findings.verdict(
            self.summary, self.manifest, self.exposed, self.idle, self.unseen, self.bound
        )

    @property
    def manifest(self) -> Manifest | None:
        """The run's manifest."""
        return self.run.manifest


def one_window(table: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of the wanted rank and step where the table has them, else of its lowest rank and last step."""
    for column, place in (("rank", 0), ("step", -1)):
        known = sorted(int(value) for value in table[column].dropna().unique())
        if known:
            chosen = wanted.get(column)
            table = table[(table[column] == (chosen if chosen in known else known[place])).fillna(False)]
    return table
