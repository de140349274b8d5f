"""A step with events at impossible times: marked, its neighbours as they are without those, and in no median."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.traces import event, gloo, launched, op, run_of, step

import overlaplab
from overlaplab import Run
from overlaplab.analyses import scalars, worst_step
from overlaplab.events import step_windows
from overlaplab.findings import run_warnings
from overlaplab.load.cut import slice_run
from overlaplab.simulate.undisturbed import undisturbed_steps

Event = dict[str, Any]
START, STEP_US = 1_700_000_000_000_000, 10_000
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
DAMAGED_STEP = 1


def rank(*, without: str = "", late_us: int = 0) -> list[Event]:
    """Four steps: two kernels of 1 ms, then an all-reduce of 1.5 ms that half a ms of the second one hides."""
    found: list[Event] = []
    for number in range(4):
        at = START + number * STEP_US
        found.append(step(number, at, at + STEP_US - 100))
        kernels = [("gemm_0", 7, 500, 1500), ("gemm_1", 7, 1500, 2500), (REDUCE, 9, 2000 + late_us, 3500)]
        for place, (name, stream, start, end) in enumerate(kernels):
            call, kernel = launched(
                name, at + 20 + 10 * place, at + start, at + end, stream=stream, correlation=3 * number + place + 1
            )
            found += [call] if number == DAMAGED_STEP and name == without else [call, kernel]
    return found


def spoilt(name: str, **changes: Any) -> list[Event]:
    """The rank's events, of which one kernel has these values."""
    events = rank()
    chosen = [one for one in events if one["name"] == name][DAMAGED_STEP]
    chosen |= changes
    return events


def nccl(folder: Path, *ranks: list[Event]) -> Run:
    return run_of(folder, *ranks, backend="nccl")


SPOILT = {
    "no time": {"ts": 0, "dur": 0},
    "far in the future": {"ts": START + 10**12},
    "before its launch": {"ts": START - 10**8},
    "negative": {"dur": -2000.0},
}


@pytest.mark.parametrize("name", ["gemm_1", REDUCE])
@pytest.mark.parametrize("case", SPOILT)
def test_all_figures_are_those_without_the_event(tmp_path: Path, name: str, case: str) -> None:
    found = overlaplab.summary(nccl(tmp_path / "spoilt", spoilt(name, **SPOILT[case]), rank(late_us=100)))
    without = overlaplab.summary(nccl(tmp_path / "without", rank(without=name), rank(late_us=100)))
    assert found.loc[found["damaged"], ["rank", "step"]].to_numpy().tolist() == [[0, DAMAGED_STEP]]
    waits = ["damaged", "exposed_wait_ns", "exposed_transfer_ns"]  # it is unknown, not absent, whom rank 1 waited for
    pd.testing.assert_frame_equal(found.drop(columns=waits), without.drop(columns=waits))
    assert found["span_ns"].tolist() == [10_000_000, 10_000_000, 10_000_000, 3_000_000] * 2


@pytest.mark.parametrize("case", SPOILT)
def test_a_collectives_times_are_unknown(tmp_path: Path, case: str) -> None:
    run = nccl(tmp_path, spoilt(REDUCE, **SPOILT[case]), rank())
    table = overlaplab.collectives(run)
    own = table[table["step"] == DAMAGED_STEP].set_index("rank")
    times = ["start_ns", "end_ns", "wait_ns", "transfer_ns", "exposed_ns"]
    assert own.loc[0, times].isna().all()
    assert own["unmatched"].tolist() == ["when it ran was not recorded", "rank 0 did not record it"]
    others = table[table["step"] != DAMAGED_STEP]
    assert others["unmatched"].isna().all()
    assert others["transfer_ns"].tolist() == [1_500_000] * 6
    warnings = run_warnings(run)
    assert len(warnings) == 2
    assert "step 1 is damaged" in warnings[1]


def test_gloos_ranges_too(tmp_path: Path) -> None:
    def steps(took: float) -> list[Event]:
        call = [event("c10d::allreduce_", 10 + 100 * place, 12 + 100 * place) for place in range(3)]
        ranges = [gloo(20 + 100 * place, 60 + 100 * place) for place in range(3)]
        ranges[1]["dur"] = took
        return [*(step(place, 100 * place, 100 * place + 99) for place in range(3)), *call, *ranges, op("mm", 0, 5)]

    run = run_of(tmp_path, steps(-40), steps(40))
    table = overlaplab.collectives(run)
    assert table.loc[table["rank"] == 0, "end_ns"].isna().tolist() == [False, True, False]
    assert overlaplab.summary(run)["damaged"].tolist() == [False, True, False, False, False, False]


def test_it_is_in_no_median_verdict_or_best(tmp_path: Path) -> None:
    run = nccl(tmp_path, spoilt("gemm_1", ts=0, dur=0), rank())
    table = overlaplab.summary(run)
    assert table.loc[DAMAGED_STEP, "exposed_comm_ns"] == 1_500_000, "the most exposed step of all"
    assert worst_step(table)["exposed_comm_ns"] == 1_000_000
    assert worst_step(table, 0, DAMAGED_STEP)["step"] == DAMAGED_STEP, "one that is asked for is taken"
    assert scalars(run)["exposed_comm_ns"] == scalars(run)["exposed.tail"] == 1_000_000
    compared = overlaplab.compare([run])
    assert compared[["steps", "exposed_ms_median"]].to_numpy().tolist() == [[3, 1.0]]
    assert undisturbed_steps(run).tolist() == [True, False, True, False], "the host is not ahead of the last one"


@pytest.mark.parametrize("case", SPOILT)
def test_a_slice_is_as_damaged_as_its_run(tmp_path: Path, case: str) -> None:
    run = nccl(tmp_path / "run", spoilt("gemm_1", **SPOILT[case]), rank())
    slice_run(run, 1, 3, tmp_path / "slice")
    found, whole = overlaplab.summary(overlaplab.load_run(tmp_path / "slice")), overlaplab.summary(run)
    expected = whole[whole["step"].isin([1, 2])].drop(columns="start_ns").reset_index(drop=True)
    pd.testing.assert_frame_equal(found.drop(columns="start_ns"), expected)


def test_where_all_steps_are_damaged_they_count(tmp_path: Path) -> None:
    events = rank()
    for one in events:
        if one["name"] == "gemm_1":
            one["dur"] = -1
    run = nccl(tmp_path, events)
    assert overlaplab.compare([run])["steps"].tolist() == [4]
    assert worst_step(overlaplab.summary(run))["exposed_comm_ns"] == 1_500_000
    assert [window.damaged for window in step_windows(run.traces[0])] == [True] * 4


def test_what_counts_as_nothing_damages_no_step(tmp_path: Path) -> None:
    """A call or a Python frame of unknown length changes no figure."""
    frame = event("train.py(3): loop", START + 10, START, cat="python_function")
    run = nccl(tmp_path, [*rank(), frame, event("cudaFree", START + 11, START, cat="cuda_runtime", correlation=99)])
    assert not overlaplab.summary(run)["damaged"].any()
    assert any("2 events have a negative duration" in warning for warning in run.warnings)
