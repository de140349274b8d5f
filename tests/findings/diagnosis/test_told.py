"""What nothing can hide is told apart by the same rule from collectives and from their moments."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from samples import each_sample, sample_run

from overlaplab import analyses, simulate
from overlaplab.analyses.exposed import COLUMNS
from overlaplab.causes import Cause
from overlaplab.findings import split_unhideable

SHOWN = ["step", "cause", "collective", "exposed_ns", "start_ns", "end_ns"]
LAST, TIMES = Cause.UNHIDEABLE, ("exposed_ns", "start_ns", "end_ns")


def rows(*cells: tuple[int, Cause, int, int, int]) -> pd.DataFrame:
    """Moments of all-reduces, given step, cause, collective, start and end."""
    table = pd.DataFrame(cells, columns=["step", "cause", "collective", "start_ns", "end_ns"])
    table = table.assign(rank=0, kind="all_reduce", what=None, axis=None, late_rank=None, cause=table["cause"].map(str))
    return table.assign(exposed_ns=table["end_ns"] - table["start_ns"])[list(COLUMNS)].astype(COLUMNS)


def bounds(*cells: tuple[int, int, int | None]) -> pd.DataFrame:
    """Bounds, given step, what all transfers, and what the best buckets take longer than computation."""
    table = pd.DataFrame(cells, columns=["step", "transfer_ns", "any_cap_ns"]).assign(rank=0, compute_ns=100)
    return table.assign(**{name: table[name] + 100 for name in ("transfer_ns", "any_cap_ns")}).astype("Int64")


def test_the_last_moments_of_the_last_collectives_cannot_be_hidden() -> None:
    table = rows(
        (0, Cause.TAIL, 1, 100, 110),
        (0, Cause.TAIL, 2, 120, 130),
        (0, Cause.TAIL, 1, 140, 150),  # later than 2's, but 1 began before
        (0, Cause.GAP, 2, 160, 170),
        (1, Cause.TAIL, 3, 200, 210),
    )
    split = split_unhideable(table, bounds((0, 0, 14)))
    assert list(split[SHOWN].itertuples(index=False, name=None)) == [
        (0, Cause.TAIL, 1, 10, 100, 110),
        (0, LAST, 2, 10, 120, 130),
        (0, Cause.TAIL, 1, 6, 140, 146),
        (0, LAST, 1, 4, 146, 150),
        (0, Cause.GAP, 2, 10, 160, 170),
        (1, Cause.TAIL, 3, 10, 200, 210),
    ]
    assert split.dtypes.to_dict() == table.dtypes.to_dict()


@pytest.mark.parametrize(
    ("bound", "causes"),
    [
        ((0, 0, 0), {Cause.QUEUED: 10, Cause.LINK: 10, Cause.STRAGGLER: 10}),
        ((0, 99, 15), {Cause.QUEUED: 5, LAST: 15, Cause.STRAGGLER: 10}),
        ((0, 15, None), {Cause.QUEUED: 5, Cause.LINK: 15, Cause.STRAGGLER: 10}),
        ((0, 0, 99), {LAST: 20, Cause.STRAGGLER: 10}),
        ((7, 0, 99), {Cause.QUEUED: 10, Cause.LINK: 10, Cause.STRAGGLER: 10}),
    ],
)
def test_causes_lend_in_order_and_waiting_for_ranks_never(
    bound: tuple[int, int, int | None], causes: dict[Cause, int]
) -> None:
    table = rows((0, Cause.QUEUED, 1, 0, 10), (0, Cause.LINK, 2, 20, 30), (0, Cause.STRAGGLER, 3, 40, 50))
    split = split_unhideable(table, bounds(bound))
    assert split.groupby("cause")["exposed_ns"].sum().to_dict() == causes


def test_nothing_is_told_of_nothing() -> None:
    assert split_unhideable(rows(), bounds()).empty
    assert len(split_unhideable(rows((0, Cause.TAIL, 1, 0, 1)), pd.DataFrame())) == 1


@pytest.mark.parametrize("folder", each_sample())
def test_moments_and_collectives_tell_the_same(folder: Path) -> None:
    run = sample_run(folder)
    moments, each = (
        split_unhideable(table, simulate.bound(run)) for table in (analyses.exposed_moments(run), analyses.exposed(run))
    )
    alike = [name for name in COLUMNS if name not in TIMES]
    of_moments, of_each = (table.groupby(alike, dropna=False)["exposed_ns"].sum() for table in (moments, each))
    pd.testing.assert_series_equal(of_moments, of_each)
    assert (moments["end_ns"] - moments["start_ns"]).equals(moments["exposed_ns"])
    assert moments["exposed_ns"].sum() == analyses.summary(run)["exposed_comm_ns"].sum()
