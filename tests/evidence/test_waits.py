"""Exposed time split into wait and transfer."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from made.ranks import carried, groups_of
from made.traces import event, op, run_of, step

import overlaplab
from overlaplab.selection import Selection


def split(*ranks: list[dict[str, Any]], folder: Path) -> list[tuple[Any, Any, Any]]:
    """Per rank exposed time, its wait and its transfer, in µs."""
    columns = ["exposed_comm_ns", "exposed_wait_ns", "exposed_transfer_ns"]
    rows = overlaplab.totals(run_of(folder, *ranks))[columns].to_numpy(dtype=object).tolist()
    return [tuple(None if pd.isna(value) else value / 1000 for value in row) for row in rows]


def test_wait_ends_when_the_last_rank_arrives(tmp_path: Path) -> None:
    """Rank 0 arrives at 10 and computes until 12, rank 1 arrives at 30. Both end at 50."""
    rank0 = [step(0, 0, 60), op("mm", 0, 12), *carried(0, 10, 50, launch=10)]
    rank1 = [step(0, 0, 60), op("mm", 0, 25), *carried(0, 30, 50, launch=30)]
    assert split(rank0, rank1, folder=tmp_path) == [(38, 18, 20), (20, 0, 20)]


def test_each_moment_counts_once_and_transfer_wins(tmp_path: Path) -> None:
    """From 20 to 30 one collective waits and another transfers."""
    rank0 = [*carried(0, 0, 40, group="a"), *carried(0, 20, 30, group="b"), op("mm", 90, 91)]
    rank1 = [*carried(0, 35, 40, group="a"), *carried(0, 15, 30, group="b"), op("mm", 90, 91)]
    info = [{"pg_name": name, "pg_desc": "", "pg_size": 2, "ranks": [0, 1]} for name in "ab"]
    assert split(rank0, rank1, folder=tmp_path / "untold")[0] == (40, None, None)  # the groups' sizes
    run = groups_of(tmp_path, (rank0, info), (rank1, info))
    columns = ["exposed_comm_ns", "exposed_wait_ns", "exposed_transfer_ns"]
    assert overlaplab.totals(run)[columns].to_numpy().tolist() == [[40_000, 25_000, 15_000], [20_000, 5_000, 15_000]]


def test_unknown_where_something_exposed_has_no_counterpart(tmp_path: Path) -> None:
    """The second step has a message of unknown ends; the third a hidden collective that one rank did not record."""
    steps = [step(0, 0, 100), step(1, 100, 200), step(2, 200, 300)]
    both = [*carried(0, 10, 50, launch=10), *carried(1, 110, 150, launch=110, kind="send_recv")]
    rank0 = [*steps, *both, *carried(2, 210, 220, launch=210), op("mm", 205, 225)]
    rank1 = [*steps, *both, op("mm", 205, 225)]
    table = overlaplab.summary(run_of(tmp_path, rank0, rank1), Selection(ranks=[0]))
    assert table["exposed_wait_ns"].tolist() == [0, pd.NA, 0]
    assert table["exposed_transfer_ns"].tolist() == [40_000, pd.NA, 0]
    totals = overlaplab.totals(run_of(tmp_path, rank0, rank1))
    assert totals["exposed_wait_ns"].isna().tolist() == [True, True]


def test_unknown_where_a_rank_has_no_trace(tmp_path: Path) -> None:
    run = run_of(tmp_path, carried(0, 0, 9), carried(0, 0, 9), carried(0, 0, 9))
    (tmp_path / "rank2.pt.trace.json.gz").unlink()
    del run
    run = overlaplab.load_run(tmp_path)
    assert overlaplab.totals(run)["exposed_wait_ns"].isna().all()
    assert overlaplab.collectives(run)["wait_ns"].isna().all()


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=3, max_size=3)


@settings(max_examples=int(os.environ.get("FUZZ", "15")), deadline=None)
@given(st.lists(st.tuples(spans, spans), min_size=1, max_size=5), st.sets(st.integers(0, 70), max_size=40))
def test_against_looking_at_every_microsecond(
    collectives: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]], computing: set[int]
) -> None:
    """Three ranks. Some are messages of unknown ends. Ends are random, so a rank may leave before another arrives."""
    chosen = [spans for spans, _ in collectives]
    ranks: list[list[dict[str, Any]]] = [[op("mm", at, at + 1) for at in sorted(computing)] for _ in range(3)]
    for seq, starts in enumerate(chosen):
        for rank, (start, length) in enumerate(starts):
            kind = "send_recv" if seq == 3 else "all_to_all"
            ranks[rank] += carried(seq, start, start + length, kind=kind)
    with tempfile.TemporaryDirectory() as folder:
        table = overlaplab.totals(run_of(Path(folder), *([*events, event("x", 0, 1)] for events in ranks)))
    for rank in range(3):
        wait = transfer = unknown = 0
        for at in range(70):
            states = set()
            for seq, starts in enumerate(chosen):
                start, length = starts[rank]
                if start <= at < start + length:
                    last = max(one for one, _ in starts)
                    states.add("unknown" if seq == 3 else "wait" if at < last else "transfer")
            if at in computing or not states:
                continue
            transfer += "transfer" in states
            unknown += "unknown" in states and "transfer" not in states
            wait += states == {"wait"}
        row = table.iloc[rank]
        assert row["exposed_comm_ns"] == 1000 * (wait + transfer + unknown)
        if unknown:
            assert pd.isna(row["exposed_wait_ns"])
            assert pd.isna(row["exposed_transfer_ns"])
        else:
            assert (row["exposed_wait_ns"], row["exposed_transfer_ns"]) == (1000 * wait, 1000 * transfer)
