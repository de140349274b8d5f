"""What each chart draws of a table without rows, such as a filter in a notebook leaves: a title, and no failure."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt
import pandas as pd
import pytest
from samples import TRACES

from overlaplab import analyses, charts, load_run
from overlaplab.events import Run


def sweep_runs(path: str) -> list[Run]:
    return [load_run(f"{path}/cap-{cap}") for cap in (1, 4)]


DRAWN: list[tuple[str, Callable[[pd.DataFrame], alt.LayerChart], Callable[[str], pd.DataFrame]]] = [
    ("zero3", charts.gathered, lambda path: analyses.gathered_bytes(analyses.schedule(load_run(path)))),
    ("zero3", charts.schedule, lambda path: analyses.schedule(load_run(path))),
    ("zero3", charts.gather_waits, lambda path: analyses.schedule_steps(analyses.schedule(load_run(path)))),
    ("zero3", charts.summary, lambda path: analyses.summary(load_run(path))),
    ("zero3", charts.bus_bandwidth, lambda path: analyses.collectives(load_run(path))),
    ("zero3", charts.waits, lambda path: analyses.collectives(load_run(path))),
    ("zero3", charts.late_ranks, lambda path: analyses.stragglers(load_run(path))),
    ("bucketed", charts.buckets, lambda path: analyses.buckets(load_run(path))),
    ("bucketed", charts.compare, lambda path: analyses.compare([load_run(path)])),
    ("sweep", charts.caps, lambda path: analyses.sweep(sweep_runs(path))),
    ("sweep", charts.links, lambda path: analyses.sweep_links(sweep_runs(path))),
    ("course/gpipe", lambda table: charts.pipeline(table, title=""), lambda path: analyses.pipeline(load_run(path))),
    ("parameter-server", charts.staleness, lambda path: analyses.staleness(load_run(path))),
    ("ring", lambda table: charts.hops(table, table), lambda path: analyses.hops(load_run(path))),
]


@pytest.mark.parametrize(("sample", "draw", "tabulate"), DRAWN)
def test_a_table_without_rows_is_drawn(
    sample: str, draw: Callable[[pd.DataFrame], alt.LayerChart], tabulate: Callable[[str], pd.DataFrame]
) -> None:
    table = tabulate(str(TRACES / sample))
    assert len(table)
    title = draw(table.head(0)).to_dict()["title"]["text"]
    assert title
