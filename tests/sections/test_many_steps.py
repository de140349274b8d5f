"""Runs of many steps: what a step costs does not grow with their number, and long tables are summed up.

Calls are counted instead of time, which other programs on the machine would change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from cProfile import Profile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.ddp import ddp_ranks
from made.fsdp import fsdp
from made.runs import EMULATED, engine_step
from made.strangers import one_f_one_b
from made.strangers import run_of as run_of_strangers
from made.traces import gloo, launched, op, run_of, step

from overlaplab import Run, analyses
from overlaplab.report import documents, terminal
from overlaplab.report.page import report_page
from overlaplab.sections.blocks import MOST_ROWS
from overlaplab.sections.run_tables import RunTables
from overlaplab.sections.tables import summary_rows
from overlaplab.selection import Selection

Made = Callable[[Path, int], Run]

COMMANDS = ("summary", "exposed", "buckets", "schedule", "collectives", "pipeline")
MOST_CALLS = 800
"""Of Python and of C, for an event of the trace: some 50 for each of these commands, and 400 where caps are played. A
group-by of pandas is 1,500."""
LONG = 70
"""Steps."""


def on_hosts(folder: Path, steps: int) -> Run:
    """Steps of 100 µs on two ranks, the last of which is three times as long as the others."""
    ranks = []
    for rank in range(2):
        events = []
        for number in range(steps):
            at, length = 100 * number, 300 if number == steps - 1 else 100
            events += [step(number, at, at + length), op("mm", at + rank, at + 60), gloo(at + 40, at + length - 10)]
        ranks.append(events)
    return run_of(folder, *ranks)


def on_a_device(folder: Path, steps: int) -> Run:
    """A kernel and an all-reduce in each step of 1000 µs, the least that a step can be."""
    events = []
    for number in range(steps):
        at, first = 1000 * number, 2 * number
        events += [
            step(number, at, at + 990),
            *launched("gemm", at + 5, at + 50, at + 550, correlation=first),
            *launched(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 8, at + 400, at + 700, stream=9, correlation=first + 1
            ),
        ]
    return run_of(folder, events, backend="nccl")


def of_the_engine(folder: Path, steps: int) -> Run:
    events = [one for number in range(steps) for one in engine_step(number, 1000 * number)]
    machine = [
        {"rank": rank, "step": number, "took_ns": 1_000_000, "delayed_ns": 0, "busy_ns": 0, "foreign_ns": 0, "cores": 2}
        | {"busy": False}
        for rank in range(2)
        for number in range(steps)
    ]
    return run_of(folder, events, events, manifest={"link": EMULATED, "link_attained": True, "machine": machine})


def of_ddp(folder: Path, steps: int) -> Run:
    return run_of(folder, *ddp_ranks([2_000_000], steps=steps), backend="nccl")


def of_fsdp2(folder: Path, steps: int) -> Run:
    return run_of(folder, fsdp(1, steps=steps), fsdp(1, steps=steps), backend="nccl")


def of_a_pipeline(folder: Path, steps: int) -> Run:
    return run_of_strangers(folder, *one_f_one_b(steps=steps))


MADE: Sequence[Made] = (on_hosts, on_a_device, of_the_engine, of_ddp, of_fsdp2, of_a_pipeline)


@pytest.mark.parametrize("make", MADE)
def test_each_step_costs_the_same_however_many_there_are(tmp_path: Path, make: Made) -> None:
    calls, events = {}, {}
    for steps in (8, 27, 29, 39):  # at first what is computed once per process
        run = make(tmp_path / str(steps), steps)
        events[steps] = sum(len(trace.events) for trace in run.traces)
        calls[steps] = calls_of(run)
    few, many = ((calls[b] - calls[a]) / (events[b] - events[a]) for a, b in ((27, 29), (29, 39)))
    assert many < 1.1 * few
    assert many < MOST_CALLS


def calls_of(run: Run) -> int:
    """How many functions of Python and C are called for what commands show of the run."""
    with Profile() as profile:
        for command in (terminal.summary, terminal.buckets, terminal.collectives):
            list(command(RunTables(run=run)))
        documents.exposed_document(RunTables(run=run, selection=Selection(skip_steps=1)))
        documents.schedule_document(RunTables(run=run))
        documents.pipeline_document(RunTables(run=run))
    return sum(entry.callcount for entry in profile.getstats())


def test_a_long_table_is_summed_up_by_rank_and_names_the_outliers(tmp_path: Path) -> None:
    table = analyses.summary(on_hosts(tmp_path, LONG))
    assert not summary_rows(table.head(MOST_ROWS)).is_long
    means, outliers = summary_rows(table).summed_up()
    assert means.caption == f"Per rank, the mean of its {LONG} steps"
    assert means.frame["rank"].tolist() == [0, 1]
    assert means.frame["span_ns"].tolist() == pytest.approx([(100_000 * (LONG - 1) + 300_000) / LONG] * 2)
    parts = means.frame[list(analyses.PARTS)].sum(axis=1)
    assert parts.tolist() == pytest.approx(means.frame["span_ns"].tolist())
    assert outliers.frame[["step", "span_ns"]].to_numpy().tolist() == [[LONG - 1, 300_000]]


def test_what_is_unknown_in_one_step_is_unknown_in_the_mean(tmp_path: Path) -> None:
    table = analyses.summary(on_hosts(tmp_path, LONG))
    table.loc[(table["rank"] == 1) & (table["step"] == 3), "exposed_wait_ns"] = None
    means = summary_rows(table).summed_up()[0].frame
    assert means["exposed_wait_ns"].isna().tolist() == [False, True]


def test_of_many_ranks_those_with_most_exposed_time_are_shown(tmp_path: Path) -> None:
    table = analyses.summary(on_hosts(tmp_path, 3))
    ranks = [table[table["rank"] == 0].assign(rank=rank, exposed_comm_ns=rank) for rank in range(MOST_ROWS + 10)]
    (shown, *_) = summary_rows(pd.concat(ranks, ignore_index=True)).summed_up()
    assert shown.frame["rank"].tolist() == [*range(MOST_ROWS - 10, MOST_ROWS + 10)]
    assert shown.left_out == f"the 20 of {MOST_ROWS + 10} that were exposed most"


@pytest.mark.parametrize("name", COMMANDS)
def test_all_prints_every_row_and_json_is_never_cut(tmp_path: Path, command: Any, name: str) -> None:
    of_the_engine(tmp_path / "run", LONG)
    _, summed, _ = command(name, tmp_path / "run")
    _, every, _ = command(name, tmp_path / "run", "--all")
    rows = {"summary": 2 * LONG, "buckets": 2 * 2 * LONG, "collectives": 2 * LONG}.get(name, 0)
    assert len(summed.splitlines()) < 90
    assert len(every.splitlines()) >= max(rows, len(summed.splitlines()))
    document = json.loads(command(name, tmp_path / "run", "--json")[1])
    if name == "collectives":
        assert len(document["collectives"]) == 2 * LONG
    elif name != "pipeline" and name != "schedule":
        assert [len(rank["steps"]) for rank in document["ranks"]] == [LONG, LONG]


def test_a_report_does_not_grow_with_its_steps(tmp_path: Path) -> None:
    few, many = (len(report_page([of_the_engine(tmp_path / str(steps), steps)])) for steps in (10, 10 + LONG))
    assert many - few < 4_000 * LONG
