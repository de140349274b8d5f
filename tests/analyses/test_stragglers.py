"""Which rank arrived last, and what that cost."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median

import pytest
from made.gloo import launched_by_gloo
from made.ranks import carried_all
from made.traces import op, run_of
from samples import sample_run

import overlaplab
from overlaplab import OverlaplabError
from overlaplab.selection import Selection


def test_the_last_rank_is_charged_with_what_the_others_waited(tmp_path: Path) -> None:
    """Rank 2 is last twice, 40 and 6 µs after the median of the others; rank 0 once."""
    starts = [(0, 20, 50), (100, 104, 108), (230, 200, 210)]
    ranks = [carried_all([(one[rank], 60 + 100 * n + 30) for n, one in enumerate(starts)]) for rank in range(3)]
    table = overlaplab.stragglers(run_of(tmp_path, *ranks))
    assert table.astype(object).where(table.notna(), None).to_dict("list") == {
        "rank": [2, 0, 1],
        "collectives": [3, 3, 3],
        "last": [2, 1, 0],
        "late_median_ns": [23_000, 25_000, None],
        "late_max_ns": [40_000, 25_000, None],
        "cost_ns": [50_000 + 30_000 + 8_000 + 4_000, 30_000 + 20_000, 0],
        "alone_ns": [2 * 30_000 + 2 * 4_000, 2 * 20_000, 0],
    }


def test_of_a_reduce_the_wait_of_the_root_alone_is_known(tmp_path: Path) -> None:
    """Rank 0 waits 30 µs for rank 2, and would have waited 10 for rank 1; then both wait in an all-reduce."""
    ranks = [
        [
            *launched_by_gloo("reduce", 0, start, 50),
            *launched_by_gloo("allreduce", None, 60 + start, 120),
            op("mm", 130, 131),
        ]
        for start in (0, 10, 30)
    ]
    table = overlaplab.stragglers(run_of(tmp_path, *ranks))
    assert table.astype(object).where(table.notna(), None).to_dict("list") == {
        "rank": [2, 0, 1],
        "collectives": [2, 2, 2],
        "last": [2, 0, 0],
        "late_median_ns": [25_000, None, None],
        "late_max_ns": [25_000, None, None],
        "cost_ns": [30_000 + 30_000 + 20_000, 0, 0],
        "alone_ns": [20_000 + 2 * 20_000, 0, 0],
    }


def test_ranks_only_choose_rows(tmp_path: Path) -> None:
    run = run_of(tmp_path, carried_all([(0, 50)]), carried_all([(9, 50)]))
    assert overlaplab.stragglers(run, Selection(ranks=[0]))["cost_ns"].tolist() == [0]
    assert overlaplab.stragglers(run, Selection(ranks=[1]))["cost_ns"].tolist() == [9_000]
    with pytest.raises(OverlaplabError, match="rank 4"):
        overlaplab.stragglers(run, Selection(ranks=[4]))


def test_against_going_through_every_collective(tmp_path: Path) -> None:
    for case in range(6):
        chance = random.Random(case)
        starts = [[100 * n + chance.randint(0, 60) for _ in range(4)] for n in range(9)]
        ranks = [carried_all([(one[rank], 100 * n + 70) for n, one in enumerate(starts)]) for rank in range(4)]
        table = overlaplab.stragglers(run_of(tmp_path / str(case), *ranks)).set_index("rank")
        for rank in range(4):
            mine = [one for one in starts if one[rank] == max(one) and one[rank] > min(one)]
            if any(one.count(max(one)) > 1 for one in starts):
                continue
            rest = [[at for r, at in enumerate(one) if r != rank] for one in mine]
            late = [one[rank] - median(others) for one, others in zip(mine, rest, strict=True)]
            assert table.loc[rank, "last"] == len(mine)
            cost = sum(one[rank] - at for one, others in zip(mine, rest, strict=True) for at in others)
            assert table.loc[rank, "cost_ns"] == 1000 * cost
            if mine:
                assert table.loc[rank, "late_max_ns"] == 1000 * max(late)
                assert table.loc[rank, "late_median_ns"] == 1000 * median(late)


def test_the_last_rank_may_have_launched_in_a_neighbouring_step() -> None:
    """In an asynchronous server's steps the ranks' messages to it are not of one step."""
    run = sample_run("parameter-server")
    for number in overlaplab.summary(run)["step"].unique():
        table = overlaplab.stragglers(run, Selection(steps=[number]))
        assert table["late_max_ns"].dropna().ge(0).all()
        assert list(table["rank"])
