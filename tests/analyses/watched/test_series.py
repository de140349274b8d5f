"""A watched training in pieces: step time by kind of step, and who was late when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made.watched import MS, Cells, eventful, step, write_watched

from overlaplab.analyses.watched.kinds import is_periodic
from overlaplab.analyses.watched.series import round_width, watched_strip
from overlaplab.load.watched import CellKind, load_watched
from overlaplab.sections.watched import WatchedTables


def tables(folder: Path) -> WatchedTables:
    return WatchedTables(load_watched(folder))


def listed(table: pd.DataFrame) -> list[list[Any]]:
    return [[None if pd.isna(value) else value for value in row] for row in table.to_numpy(object)]


def test_pieces_have_round_widths() -> None:
    widths = [round_width(np.arange(steps), 100) for steps in (1, 100, 101, 201, 501, 1_000_000)]
    assert widths == [1, 1, 2, 5, 10, 10_000]
    assert round_width(np.arange(0), 100) == 1


def test_a_piece_has_the_shortest_the_median_and_the_longest_step(tmp_path: Path) -> None:
    first = [*step(0, 10, {CellKind.EXPOSED_GRADIENTS: 4}), *step(1, 30), *step(2, 20, {})]
    second = [*step(0, 30, {CellKind.EXPOSED_GRADIENTS: 6}), *step(1, 30), *step(2, 40, {})]
    series = tables(write_watched(tmp_path, first, second)).series
    assert listed(series) == [
        [None, 0, 0, 1, 20, 20, 20, 1, 4, 5, 6, pytest.approx((0.4 + 0.2) / 2)],
        [None, 1, 1, 1, 30, 30, 30, 0, None, None, None, None],  # not measured: unknown, not 0
        [None, 2, 2, 1, 30, 30, 30, 0, None, None, None, None],  # measured, and no wait was seen
    ]


@pytest.mark.parametrize("seed", range(2))
def test_of_many_steps_it_agrees_with_the_definition(tmp_path: Path, seed: int) -> None:
    of = tables(eventful(tmp_path, seed=seed))
    assert of.series["period"].drop_duplicates().tolist() == [pd.NA, 100]
    for row in of.series.to_dict("records"):
        within = of.times.loc[row["first_step"] : row["last_step"]]
        periodic = is_periodic(within.index.to_numpy(), [(100, 99)])
        spans = within[~periodic if pd.isna(row["period"]) else periodic]
        low, median, high = spans.min(), spans.median(), spans.max()
        assert [row["span_low_ns"], row["span_ns"], row["span_high_ns"]] == pytest.approx([low, median, high], abs=1)
        measured = of.bursts[of.bursts["step"].isin(spans.index)]
        assert row["measured_steps"] == measured["step"].nunique()
        if len(measured):
            exposed = measured["exposed_comm_ns"]
            assert row["exposed_comm_ns"] == exposed.median()
            assert [row["exposed_low_ns"], row["exposed_high_ns"]] == [exposed.min(), exposed.max()]
            assert row["exposed_share"] == pytest.approx((exposed / measured["span_ns"]).median())


def test_the_strip_counts_late_steps_per_rank_where_all_reduces_tell(tmp_path: Path) -> None:
    def rank(number: int) -> Cells:
        cells: Cells = []
        for n in (0, 1, 100, 350):
            late = number == 1 and n >= 1
            cells += step(n, 100 * MS, {CellKind.ALL_REDUCE: MS if late else 9 * MS})
        return cells

    of = tables(write_watched(tmp_path, rank(0), rank(1), rank(2)))
    assert listed(watched_strip(of.watched, of.late, [0, 1])) == [
        [0, 0, 99, 2, 0, 0.0, None],
        [0, 100, 199, 1, 0, 0.0, None],
        [0, 300, 350, 1, 0, 0.0, None],  # from 200 to 299 nothing tells
        [1, 0, 99, 2, 1, 0.5, 8 * MS],
        [1, 100, 199, 1, 1, 1.0, 8 * MS],
        [1, 300, 350, 1, 1, 1.0, 8 * MS],
    ]


def test_a_group_says_nothing_of_ranks_beyond_it(tmp_path: Path) -> None:
    cells = [step(0, 100 * MS, {CellKind.ALL_REDUCE: took * MS}) for took in (9, 1)]
    write_watched(tmp_path, *cells, [*step(0, 100 * MS, {})], groups=[{"name": "dp", "ranks": [0, 1]}])
    of = tables(tmp_path)
    assert watched_strip(of.watched, of.late, [0, 1, 2])["rank"].tolist() == [0, 1]
