"""Which rank is late, and what it does for longer than the others."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from made.hosts import loop
from made.traces import run_of
from samples import sample_run

from overlaplab.analyses import late_rank_names, late_rank_phases, late_steps, latest_rank
from overlaplab.analyses.late_rank import is_chronic
from overlaplab.events import step_windows
from overlaplab.findings import late_reason
from overlaplab.vocabulary import DATA_LOADING

MS = 1_000_000
RECORDED = Path(__file__).parents[1] / "situations" / "recorded"


@pytest.mark.parametrize(
    ("name", "phase", "what", "times"),
    [
        ("04-dataloader-of-one-rank", "before", DATA_LOADING, 100),
        ("05-longer-sequences", "backward", None, 1.4),
        ("16e-engine-straggler-bound", "backward", None, 1.5),
    ],
)
def test_the_late_rank_is_told_by_what_was_built_in(name: str, phase: str, what: str | None, times: float) -> None:
    run = sample_run(RECORDED / name)
    steps = late_steps(run)
    assert (set(steps["rank"]), len(steps)) == ({1}, len(step_windows(run.traces[0])))
    first = late_rank_phases(run, 1).iloc[0]
    assert (first["phase"], first["what"]) == (phase, what)
    assert first["own_ns"] / first["others_ns"] == pytest.approx(times, rel=0.4)


def test_phases_add_up_to_the_step_without_exposed_communication() -> None:
    run = sample_run("bucketed")
    steps = step_windows(run.traces[0])
    table = late_rank_phases(run, 0)
    assert set(table["phase"]) >= {"before", "forward", "backward", "optimizer", "between"}
    assert table["own_ns"].sum() <= sum(step.end_ns - step.start_ns for step in steps) / len(steps)


@pytest.mark.parametrize(
    ("how", "phase", "what", "own_us", "others_us"),
    [
        ({"pause_us": 500}, "pause", None, 250, 0),
        ({"load_us": 400}, "loading", DATA_LOADING, 200, 0),
        ({"kernel_us": 25}, "same_kernels", None, 250, 100),
        ({"op_us": 60}, "launching", None, 490, 190),
    ],
)
def test_on_gpus_the_late_rank_is_told_by_device_and_host(
    tmp_path: Path, how: dict[str, int], phase: str, what: str | None, own_us: int, others_us: int
) -> None:
    """The first of two steps begins with its first kernel, after what the host does before that."""
    run = run_of(tmp_path, loop(), loop(), loop(**how), backend="nccl")
    first = late_rank_phases(run, 2).iloc[0]
    assert (first["phase"], first["what"]) == (phase, what)
    assert first["own_ns"] / 1000 == pytest.approx(own_us, abs=20 if phase != "launching" else 60)
    assert first["others_ns"] / 1000 == pytest.approx(others_us, abs=20)


def test_what_a_late_rank_computes_is_told_by_name(tmp_path: Path) -> None:
    """Two steps of four kernels of 25 us, where the others' take 10."""
    run = run_of(tmp_path, loop(), loop(), loop(kernel_us=25), backend="nccl")
    phase = late_rank_phases(run, 2).iloc[0]
    table = late_rank_names(run, 2, phase["phase"])
    assert table["own_ns"].sum() == phase["own_ns"]
    assert table["others_ns"].sum() == phase["others_ns"]
    assert table["own"].tolist() == table["others"].tolist()
    assert late_rank_names(run, 2, "launching").empty


def test_operators_of_a_pass_are_those_that_no_other_contains() -> None:
    """The sample's layers sleep 1.4 times as long on rank 1: six operators forward, six backward, little else."""
    table = late_rank_names(sample_run(RECORDED / "05-longer-sequences"), 1, "backward")
    assert set(table["name"].head(6)) == {f"sleep::layer{number}" for number in range(6)}
    assert (table["own"].head(6) == 1).all()
    assert (table["own_ns"] / table["others_ns"]).head(6).tolist() == pytest.approx([1.4] * 6, rel=0.15)


def test_of_a_rank_alone_nothing_is_compared() -> None:
    assert late_rank_phases(sample_run("h100/torch-ddp"), 0).empty


def late(*ranks: int) -> pd.DataFrame:
    return pd.DataFrame({"step": range(len(ranks)), "rank": ranks, "wait_ns": [9 * MS] * len(ranks)})


LOADS = pd.DataFrame({"phase": ["before"], "what": ["loading"], "own_ns": [41 * MS], "others_ns": [MS]})


@pytest.mark.parametrize(
    ("waits_ms", "chronic"),
    [([40, 1, 1, 38, 1, 1], True), ([40, 1, 1, 2, 1, 1], False), ([40, 9, 9, 2, 1, 1], False)],
)
def test_a_rank_that_causes_most_of_the_waiting_is_late_as_such(waits_ms: list[int], chronic: bool) -> None:
    """Not by its longest wait alone."""
    steps = pd.DataFrame({"step": range(6), "rank": [0, 1, 2, 0, 1, 2], "wait_ns": [ms * MS for ms in waits_ms]})
    assert is_chronic(steps, 6) is chronic


def test_the_sentence_says_how_often_and_by_how_much() -> None:
    steps = late(1, 1, 1, 1, 0)
    assert latest_rank(steps) == 1
    sentence = late_reason(steps, LOADS, 5, 160 * MS, ranks=2)
    assert sentence == "Rank 1 was the latest in 4 of 5 steps: its loading takes 41.0 ms, the other's 1.0 ms."
    works = LOADS.assign(what=None)
    sentence = late_reason(steps, works, 5, 160 * MS, ranks=2)
    assert sentence == (
        "Rank 1 was the latest in 4 of 5 steps: before its forward pass it works for 41.0 ms, the other for 1.0 ms."
    )
    of_eight = late_reason(steps, works, 5, 160 * MS, ranks=8)
    assert of_eight is not None
    assert of_eight.endswith("it works for 41.0 ms, the others in the median for 1.0 ms.")
    assert late_reason(steps, LOADS.head(0), 5, 160 * MS, ranks=2) == "Rank 1 was the latest in 4 of 5 steps."
    equal = LOADS.assign(others_ns=40 * MS)
    assert late_reason(steps, equal, 5, 160 * MS, ranks=2) == (
        "Rank 1 was the latest in 4 of 5 steps; what it does takes as long as what the others do."
    )


def names(*rows: tuple[str, int, int, int, int]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["name", "own_ns", "others_ns", "own", "others"])
    return table.assign(own_ns=table["own_ns"] * MS, others_ns=table["others_ns"] * MS)


@pytest.mark.parametrize(
    ("by_name", "words"),
    [
        (
            [("mm", 50, 20, 8, 8)],
            "Most of it goes into mm: 50.0 ms against 20.0 ms, in as many calls.",
        ),
        (
            [("mm", 50, 20, 8, 3)],
            "Most of it goes into mm: 50.0 ms against 20.0 ms, in 8 calls against 3.",
        ),
        (
            [("mm", 30, 15, 8, 8), ("add", 29, 10, 4, 4), ("relu", 1, 9, 1, 9)],
            "It runs the same operators, and most take longer: its inputs are larger, or its processor is slower.",
        ),
        ([("mm", 30, 15, 8, 4), ("add", 29, 10, 4, 4)], "It computes in 12 calls, the others in 8."),
        ([("mm", 30, 25, 8, 8)], "For most of it no operator runs: see on the timeline what its host does."),
    ],
)
def test_the_sentence_names_what_takes_longer(by_name: list[tuple[str, int, int, int, int]], words: str) -> None:
    phases = LOADS.assign(phase="backward", what=None)
    sentence = late_reason(late(1, 1), phases, 2, 160 * MS, names(*by_name), ranks=2)
    assert (
        sentence
        == f"Rank 1 was the latest in 2 of 2 steps: its backward passes take 41.0 ms, the other's 1.0 ms. {words}"
    )


def test_where_the_late_rank_changes_no_rank_is_blamed() -> None:
    sentence = late_reason(late(1, 0, 1, 0, 1), LOADS, 5, 160 * MS, ranks=2)
    assert sentence == (
        "Which rank is late changes from step to step (of 5 steps rank 1 in 3 and rank 0 in 2): see whether their"
        " inputs are equally long, and what their hosts do before."
    )
    assert late_reason(late(), LOADS, 5, 160 * MS, ranks=2) is None


def test_what_another_rank_does_for_much_longer_comes_last(tmp_path: Path) -> None:
    """Rank 4's kernels take 9 us longer than the others' and its host pauses for 300 us, but rank 3's for 900."""
    paused = [loop(pause_us=900), loop(pause_us=300, kernel_us=20)]
    run = run_of(tmp_path, loop(), loop(), loop(), *paused, backend="nccl")
    phases = late_rank_phases(run, 4)["phase"].tolist()
    assert phases.index("kernels" if "kernels" in phases else "same_kernels") < phases.index("pause")
    assert late_rank_phases(run, 3)["phase"].iloc[0] == "pause"
