"""What a rank does in each step by phase, and what longer kinds of steps do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from made.hosts import evaluating_loop, loop
from made.step_rows import summary_rows
from made.traces import run_of

import overlaplab
from overlaplab.analyses import kind_phases
from overlaplab.analyses.phases import phase_times
from overlaplab.findings import kinds_finding

MS = 1_000_000


def test_times_by_phase_add_up_to_the_step_without_exposed_communication(tmp_path: Path) -> None:
    run = run_of(tmp_path, evaluating_loop(), evaluating_loop())
    times = {phase: ns.tolist() for (phase, _), ns in phase_times(run.traces[0]).items()}
    assert times["before"] == [100_000] * 6
    assert times["forward"] == [200_000, 200_000, 800_000] * 2
    assert times["backward"] == [300_000] * 6, "100 us of waiting left out"
    assert times["optimizer"] == [50_000] * 6
    summary = overlaplab.summary(run)
    worked = (summary["span_ns"] - summary["exposed_comm_ns"])[summary["rank"] == 0]
    assert [sum(each) for each in zip(*times.values(), strict=True)] == worked.tolist()


def test_a_kind_is_told_by_what_takes_it_longer(tmp_path: Path) -> None:
    run = run_of(tmp_path, evaluating_loop(), evaluating_loop())
    first = kind_phases(run).iloc[0]
    assert first.drop("what").tolist() == [1, "forward", 800_000, 200_000, 4, 1]
    said = kinds_finding(overlaplab.summary(run), kind_phases(run))
    assert str(said).endswith("In one step in 3, forward passes take 0.80 ms (4 of them), in the others 0.20 ms.")


def test_steps_of_one_kind_have_nothing_to_tell(tmp_path: Path) -> None:
    assert kind_phases(run_of(tmp_path, loop(), loop(), backend="nccl")).empty


def test_what_the_host_does_by_name_is_said_by_its_name() -> None:
    rows = summary_rows(*[(0, number, *((280, 20) if number % 4 == 3 else (60, 20))) for number in range(8)])
    table = rows.assign(step_kind=[int(number % 4 == 3) for number in range(8)])
    row = {"step_kind": 1, "phase": "between", "what": "save", "own_ns": 215 * MS, "others_ns": 0, "own": float("nan")}
    phases = pd.DataFrame([row | {"others": float("nan")}])
    assert str(kinds_finding(table, phases)).endswith("115.0 ms. In one step in 4, save takes 215.0 ms.")
    little = phases.assign(own_ns=90 * MS)
    assert str(kinds_finding(table, little)).endswith("115.0 ms."), "less than half of the 220 ms"
