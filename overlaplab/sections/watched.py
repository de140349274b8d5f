"""What is shown of a watched training: its sentences and its tables, composed once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pandas as pd

from overlaplab.analyses import (
    watched_bursts,
    watched_changes,
    watched_kinds,
    watched_late,
    watched_ranks,
    watched_series,
    watched_step_times,
    watched_steps,
    watched_stopped,
)
from overlaplab.columns import columns
from overlaplab.findings import watched_notes, watched_sentences
from overlaplab.load.watched import Watched
from overlaplab.sections.blocks import TableBlock

_RANKS = columns(
    "watched_ranks",
    *("rank", "steps", "span_ns", "data_ns", "forward_ns", "backward_ns", "exposed_gradients_ns"),
    *("exposed_gathers_ns", "exposed_others_ns", "late_share", "late_median_ns"),
)


class WatchedTables:
    """The tables of a watched training; each is computed when it is first asked for."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched

    @cached_property
    def steps(self) -> pd.DataFrame:
        return watched_steps(self.watched)

    @cached_property
    def bursts(self) -> pd.DataFrame:
        return watched_bursts(self.watched, self.steps)

    @cached_property
    def times(self) -> pd.Series[Any]:
        return watched_step_times(self.steps)

    @cached_property
    def late(self) -> pd.DataFrame:
        return watched_late(self.watched, self.times)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        return watched_ranks(self.steps, self.bursts, self.late)

    @cached_property
    def kinds(self) -> pd.DataFrame:
        return watched_kinds(self.times)

    @cached_property
    def series(self) -> pd.DataFrame:
        return watched_series(self.times, self.kinds, self.bursts)

    @cached_property
    def changes(self) -> pd.DataFrame:
        return watched_changes(self.bursts, self.late, self.times, self.kinds)

    @cached_property
    def stopped(self) -> pd.DataFrame:
        return watched_stopped(self.watched)

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
        narrow=_RANKS,
        legend="grads, gathers, others: exposed; late: of the measured steps, and by how much",
    )
