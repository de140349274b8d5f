"""What is shown of a watched training: its sentences and its tables, composed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pandas as pd

from overlaplab import analyses
from overlaplab.columns import columns
from overlaplab.findings.watched import watched_notes, watched_sentences
from overlaplab.load.watched import Watched
from overlaplab.sections.blocks import TableBlock

_RANKS = columns(
    "watched_ranks",
    *("rank", "steps", "span_ns", "data_ns", "forward_ns", "backward_ns", "exposed_gradients_ns"),
    *("exposed_gathers_ns", "exposed_others_ns", "late_share", "late_median_ns"),
)


def _table_property(analysis: Callable[..., pd.DataFrame], *names: str) -> cached_property[pd.DataFrame]:
    """The table that an analysis makes of the attributes with these names."""
    return cached_property(lambda tables: analysis(*(getattr(tables, name) for name in names)))


class WatchedTables:
    """The tables of a watched training; each is computed when it is first asked for."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched

    steps = _table_property(analyses.watched_steps, "watched")
    bursts = _table_property(analyses.watched_bursts, "watched", "steps")
    late = _table_property(analyses.watched_late, "watched", "times")
    ranks = _table_property(analyses.watched_ranks, "steps", "bursts", "late")
    kinds = _table_property(analyses.watched_kinds, "times")
    series = _table_property(analyses.watched_series, "times", "kinds", "bursts")
    changes = _table_property(analyses.watched_changes, "bursts", "late", "times", "kinds")
    stopped = _table_property(analyses.watched_stopped, "watched")

    @cached_property
    def times(self) -> pd.Series[Any]:
        return analyses.watched_step_times(self.steps)

    @property
    def sentences(self) -> list[str]:
        return watched_sentences(self.watched, self.ranks, self.late, self.kinds, self.changes, self.stopped)

    @property
    def notes(self) -> list[str]:
        return watched_notes(self.watched)


def watched_ranks_block(tables: WatchedTables) -> TableBlock:
    """Rows of `watched_ranks`."""
    return TableBlock(
        key="watched_ranks",
        caption="Ranks, medians of steps",
        frame=tables.ranks,
        columns=_RANKS,
        legend="grads, gathers, others: exposed; late: of the measured steps, and by how much",
    )
