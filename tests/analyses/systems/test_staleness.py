"""How stale the gradients were that an asynchronous server applied."""

from __future__ import annotations

from pathlib import Path

from made.runs import label
from made.traces import op, run_of, step

from overlaplab import charts
from overlaplab.analyses import staleness
from overlaplab.findings.systems.staleness import staleness_title
from overlaplab.selection import Selection

SERVER = [
    *(step(0, 0, 1000), op("mm", 0, 50), step(1, 1000, 2000)),
    label("serve worker=2 staleness=0", 100, 150, tid=3),
    label("serve worker=1 staleness=1", 160, 200, tid=4),
    label("serve worker=2 staleness=4", 1100, 1150, tid=3),
    label("serve worker=2", 1200, 1250, tid=3),
]


def test_each_update_is_a_row(tmp_path: Path) -> None:
    worker = [step(0, 0, 1000), op("mm", 0, 50), step(1, 1000, 2000)]
    run = run_of(tmp_path, SERVER, worker)
    table = staleness(run)
    assert table.to_numpy().tolist() == [
        [0, 0, 2, 0, 100_000, 150_000],
        [0, 0, 1, 1, 160_000, 200_000],
        [0, 1, 2, 4, 1_100_000, 1_150_000],
    ]
    assert staleness(run, Selection(steps=[1]))["staleness"].tolist() == [4]
    assert staleness(run, Selection(ranks=[1])).empty


def test_the_histogram_counts_them(tmp_path: Path) -> None:
    table = staleness(run_of(tmp_path, SERVER))
    assert staleness_title(table) == "Gradients were 1.7 updates old on average when they were applied, at most 4"
    drawn = charts.staleness(table).to_dict()
    rows = next(iter(drawn["datasets"].values()))
    assert [row["updates"] for row in rows] == [1, 1, 0, 0, 1]
