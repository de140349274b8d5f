"""What a rank does in each step by phase, and what longer kinds of steps do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from made.hosts import evaluating_loop
from made.step_rows import summary_rows
from made.traces import run_of

import overlaplab
from overlaplab.analyses import step_phases
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


def test_phases_of_each_step_are_rows(tmp_path: Path) -> None:
    table = step_phases(run_of(tmp_path, evaluating_loop(), evaluating_loop()))
    forward = table[(table["phase"] == "forward") & (table["rank"] == 1)]
    assert forward["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert forward["took_ns"].tolist() == [200_000, 200_000, 800_000] * 2
    assert forward["number"].tolist() == [1, 1, 4] * 2
    assert table[table["phase"] == "between"]["number"].isna().all()


def test_a_kind_is_told_by_what_takes_it_longer(tmp_path: Path) -> None:
    run = run_of(tmp_path, evaluating_loop(), evaluating_loop())
    sentence = kinds_finding(overlaplab.summary(run), step_phases(run))
    assert str(sentence).endswith("In one step in 3, forward passes take 0.80 ms (4 of them), 0.20 ms in other steps.")


def phases(rows: list[tuple[int, int, str, str | None, float]]) -> pd.DataFrame:
    """Rows of rank, step, phase, name, ms."""
    table = pd.DataFrame(rows, columns=["rank", "step", "phase", "what", "took_ns"])
    table["took_ns"] = (table["took_ns"] * MS).astype("int64")
    return table.assign(number=float("nan")).astype({"rank": "Int64", "step": "Int64"})


def two_kinds(*spans: tuple[float, int]) -> pd.DataFrame:
    """The summary of two ranks: how long each step takes in ms, and its kind."""
    rows = summary_rows(*[(rank, number, span, 20) for rank in (0, 1) for number, (span, _) in enumerate(spans)])
    return rows.assign(step_kind=[kind for _ in (0, 1) for _, kind in spans])


SAVES = two_kinds(*((280, 1) if number % 4 == 3 else (60, 0) for number in range(8)))


def saving(*ranks: int, ms: float = 215, **of_step: float) -> pd.DataFrame:
    """These ranks save in each fourth step, in some for another time."""
    every = range(8)
    rows = [
        (rank, number, "between", "save", of_step.get(f"step_{number}", ms) if number % 4 == 3 else 0)
        for rank in ranks
        for number in every
    ]
    return phases([*rows, *((rank, number, "forward", None, 20) for rank in (0, 1) for number in every)])


def test_what_the_host_does_by_name_is_said_by_its_name_and_rank() -> None:
    assert str(kinds_finding(SAVES, saving(0, 1))).endswith("115.0 ms. In one step in 4, save takes 215.0 ms.")
    assert str(kinds_finding(SAVES, saving(0))).endswith("In one step in 4, save takes 215.0 ms on rank 0.")
    assert str(kinds_finding(SAVES, saving(0, 1, ms=90))).endswith("115.0 ms."), "less than half of the 220 ms"
    of_one = SAVES[SAVES["rank"] == 1]
    assert str(kinds_finding(of_one, saving(0))).endswith("115.0 ms."), "rank 1 does not save"
    assert str(kinds_finding(of_one, saving(0, 1))).endswith("In one step in 4, save takes 215.0 ms.")


def test_outliers_do_not_count() -> None:
    """The list of kinds leaves them out, too: in the last step but one saving takes ten times as long."""
    spans = [(280.0, 1) if number % 3 == 2 else (60.0, 0) for number in range(12)]
    spans[8] = (2260.0, 1)
    rows = [(rank, n, "between", "save", span - 60) for rank in (0, 1) for n, (span, kind) in enumerate(spans) if kind]
    rows += [(rank, n, "between", "save", 0) for rank in (0, 1) for n, (_, kind) in enumerate(spans) if not kind]
    sentence = str(kinds_finding(two_kinds(*spans), phases(rows)))
    assert "(2, 5 and 11) with 280.0 ms" in sentence
    assert sentence.endswith("save takes 220.0 ms.")


def test_kinds_are_compared_with_the_shortest() -> None:
    """The first kind may be longer; of three, each is named by its steps where it comes as often as another."""
    halves = two_kinds(*((280, 0) if number % 2 == 0 else (60, 1) for number in range(8)))
    rows = [(rank, n, "between", "save", 220 * (n % 2 == 0)) for rank in (0, 1) for n in range(8)]
    assert str(kinds_finding(halves, phases(rows))).endswith("In one step in 2 (0, 2, 4 and 6), save takes 220.0 ms.")
    kind_of = [0, 0, 1, 0, 0, 2] * 2
    third = two_kinds(*((60 + 100 * kind, kind) for kind in kind_of))
    rows = [(rank, n, "forward", None, 20 + 100 * kind) for rank in (0, 1) for n, kind in enumerate(kind_of)]
    assert str(kinds_finding(third, phases(rows))).endswith(
        " In one step in 6 (2 and 8), forward passes take 120.0 ms, 20.0 ms in 8 of 12 steps."
        " In one step in 6 (5 and 11), forward passes take 220.0 ms, 20.0 ms in 8 of 12 steps."
    )
