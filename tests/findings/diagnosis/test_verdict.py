"""The verdict on a run: a few sentences about one rank's step."""

from __future__ import annotations

import re
from pathlib import Path

from made.step_rows import BOUND, exposed_rows, summary_rows
from made.traces import event, launched, op, run_of, step

import overlaplab
from overlaplab.analyses import idle, worst_step
from overlaplab.findings import diagnose, verdict
from overlaplab.findings.diagnosis.other_problems import other_problem
from overlaplab.sections.run_tables import RunTables


def test_the_verdict_has_one_denominator_and_says_which_step_it_is() -> None:
    table = summary_rows((0, 1, 100, 10), (0, 2, 120, 10), (5, 1, 100, 25), (5, 2, 100, 26))
    causes = exposed_rows((5, 2, "straggler wait", 20, 3), (5, 2, "tail", 6, None))
    found = diagnose(
        table,
        worst_step(table),
        causes,
        table,
        chosen="the most exposed rank, its median step by exposed time",
        bound=BOUND,
    )
    assert verdict(table, None, found).replace("\u00a0", " ") == (
        "Foreign traces, 2 ranks, median step 100.0 ms; rank 5, step 2 (the most exposed rank, its median step by"
        " exposed time): 26 % of the step is exposed communication (26.0 ms of 100.0 ms). For 20.0 ms of it, the rank"
        " waited for rank 3 (bucket 0). That step takes 100.0 ms: at best 78.0 ms with other buckets and no delays"
        " or late ranks, and 74.0 ms without any communication. 20.0 ms of 46.0 ms of communication is hidden."
    )


def advice_of(tables: RunTables) -> str:
    assert tables.diagnosis is not None
    return tables.diagnosis.advice


def test_the_verdict_says_what_the_problem_is_where_communication_is_not(tmp_path: Path) -> None:
    events = launched("gemm", 0, 0, 10, correlation=1) + launched("gemm", 88, 90, 100, correlation=2)
    tables = RunTables(run=run_of(tmp_path / "idle", events))
    assert tables.verdict == (
        "Foreign traces, 1 rank, median trace 0.10 ms; rank 0 (the only one): 80\u00a0% of the trace is idle, as"
        " the device waits for its host."
    )
    assert "finding what blocks the host" in advice_of(tables)
    short = [
        each
        for place in range(200)
        for each in launched("gemm", 3 * place, 3 * place + 1, 3 * place + 2, correlation=place)
    ]
    slow = RunTables(run=run_of(tmp_path / "slow", short))
    assert "fewer launches: CUDA graphs, torch.compile" in advice_of(slow)
    for call in (one for one in short if one["cat"] == "cuda_runtime"):
        call["name"] = "cudaGraphLaunch"
    graphs = RunTables(run=run_of(tmp_path / "graphs", short))
    assert "the device waits for its host" in graphs.verdict
    assert "torch.compile" not in advice_of(graphs)
    assert "CUDA graphs leave gaps" in advice_of(graphs)
    host = RunTables(run=run_of(tmp_path / "host", [op("mm", 10 * place, 10 * place + 2) for place in range(10)]))
    assert host.verdict.endswith("78\u00a0% of the trace is idle, as no operator runs.")
    assert not re.search("launch|CUDA|device", host.verdict + advice_of(host))
    events = [op("mm", 0, 97), event("gloo:all_reduce", 96, 98, cat="user_annotation", tid=7), op("mm", 98, 100)]
    busy = run_of(tmp_path / "busy", events)
    assert other_problem(overlaplab.summary(busy), overlaplab.exposed(busy), idle(busy)) == (
        "Communication is not the problem: for 99\u00a0% of the trace the rank computes."
    )
    events = [op("mm", 0, 50), event("gloo:all_reduce", 40, 100, cat="user_annotation", tid=7)]
    assert other_problem(overlaplab.summary(run_of(tmp_path / "exposed", events)), None, None) is None


def test_where_nothing_counts_the_verdict_says_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, [event("a note", 0, 10, cat="user_annotation")])
    assert RunTables(run=run).diagnosis is None
    assert "there is nothing to show" in RunTables(run=run).verdict


def test_a_busy_machine_is_said_first(tmp_path: Path) -> None:
    """The thread waited for a core most of the step, which the loop's operators count as computation."""
    events = [step(3, 0, 100), op("mm", 0, 97), event("gloo:all_reduce", 96, 98, cat="user_annotation", tid=7)]
    machine = {"rank": 0, "step": 3, "took_ns": 100_000, "cores": 2, "ran_ns": 12_000, "delayed_ns": 88_000}
    figures = {**machine, "used_ns": 12_000, "busy_ns": None, "foreign_ns": None}
    advice = []
    for busy in (False, True):
        run = run_of(tmp_path / str(busy), events, manifest={"machine": [{**figures, "busy": busy}]})
        found = RunTables(run=run).diagnosis
        assert found is not None
        advice.append((found.headline.replace("\u00a0", " "), found.advice))
    quiet, disturbed = advice
    assert "the rank computes" in quiet[0]
    assert "fused kernels" in quiet[1]
    assert disturbed[0] == (
        "The machine was busy in this step: computation waited for a core 88 % of the time."
        " This step's timings are unreliable."
    )
    assert disturbed[1].startswith("Leave the cores to the ranks")


def test_exposed_communication_stays_said_on_a_busy_machine() -> None:
    table = summary_rows((5, 1, 100, 25))
    causes = exposed_rows((5, 1, "tail", 25, None))
    plain, busy = (diagnose(table, worst_step(table), causes, table, busy=share) for share in (None, 0.33))
    lead = "The machine was busy in this step: computation waited for a core 33\u00a0% of the time. "
    assert busy.headline == lead + plain.headline
    assert busy.advice == plain.advice
