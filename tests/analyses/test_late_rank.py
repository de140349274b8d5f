"""Which rank is late, and what it does for longer than the others."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from made.hosts import loop
from made.traces import run_of
from samples import sample_run

from overlaplab.analyses import late_rank_phases, late_steps, latest_rank
from overlaplab.events import step_windows
from overlaplab.evidence.host_work import DATA_LOADING
from overlaplab.findings import late_reason

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


def test_of_a_rank_alone_nothing_is_compared() -> None:
    assert late_rank_phases(sample_run("h100/torch-ddp"), 0).empty


def late(*ranks: int) -> pd.DataFrame:
    return pd.DataFrame({"step": range(len(ranks)), "rank": ranks, "wait_ns": [9 * MS] * len(ranks)})


LOADS = pd.DataFrame({"phase": ["before"], "what": ["loading"], "own_ns": [41 * MS], "others_ns": [MS]})


def test_the_sentence_says_how_often_and_by_how_much() -> None:
    steps = late(1, 1, 1, 1, 0)
    assert latest_rank(steps) == 1
    said = late_reason(steps, LOADS, 5, 160 * MS)
    assert said == "Rank 1 was the latest in 4 of 5 steps: its loading takes 41.0 ms, the others' 1.0 ms."
    works = LOADS.assign(what=None)
    said = late_reason(steps, works, 5, 160 * MS)
    assert said == (
        "Rank 1 was the latest in 4 of 5 steps: before its forward pass it works for 41.0 ms, the others for 1.0 ms."
    )
    assert late_reason(steps, LOADS.head(0), 5, 160 * MS) == "Rank 1 was the latest in 4 of 5 steps."
    equal = LOADS.assign(others_ns=40 * MS)
    assert late_reason(steps, equal, 5, 160 * MS) == (
        "Rank 1 was the latest in 4 of 5 steps; what it does takes as long as what the others do."
    )


def test_where_the_late_rank_changes_no_rank_is_blamed() -> None:
    said = late_reason(late(1, 0, 1, 0, 1), LOADS, 5, 160 * MS)
    assert said == (
        "Which rank is late changes from step to step (of 5 steps rank 1 in 3 and rank 0 in 2): see whether their"
        " inputs are equally long."
    )
    assert late_reason(late(), LOADS, 5, 160 * MS) is None
