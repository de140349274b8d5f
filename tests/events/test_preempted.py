"""Time in which computation waited for a core, from the kernel's counts in the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.traces import event, gloo, op, run_of, step, write

import overlaplab
from overlaplab import load_run
from overlaplab.analyses import PARTS, delays, idle
from overlaplab.events import activity
from overlaplab.events.preempted import core_waits, processor_counts
from overlaplab.findings import note, run_warnings
from overlaplab.intervals import intersect, subtract, total, union


def counts(at: float, ran: float, delayed: float, unit: str = "", phase: str = "", tid: int = 1) -> dict[str, Any]:
    about = f" unit={unit} phase={phase}" if unit else ""
    label = f"engine::processor ran_ns={int(1000 * ran)} delayed_ns={int(1000 * delayed)}{about}"
    return event(label, at, at, tid=tid)


def busy_rank() -> list[dict[str, Any]]:
    """A step of 100 us: a forward pass that lost 10 of 40 us, a backward one, beside communication, that lost half."""
    return [
        step(3, 0, 100),
        counts(0, 500, 70),
        op("mm", 0, 20),
        op("relu", 24, 40),
        counts(40, 530, 80, "layers.0", "forward"),
        op("mm_backward", 40, 80),
        counts(80, 550, 100, "layers.0", "backward"),
        event("engine::wait", 80, 95),
        counts(95, 551, 101),
        gloo(50, 95),
    ]


def test_times_since_1970_are_exact(tmp_path: Path) -> None:
    base_ns = 1_700_000_000_000_000_001
    events = [op("mm", 0, 9), counts(1, 5, 0), counts(4, 7, 1)]
    run = load_run(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=base_ns))
    assert processor_counts(run.traces[0])[["start_ns", "end_ns"]].to_numpy().tolist() == [
        [base_ns + 1_000, base_ns + 4_000]
    ]


def test_what_was_lost_is_cut_off_the_ends_of_operators(tmp_path: Path) -> None:
    run = run_of(tmp_path, busy_rank())
    own = activity(run.traces[0])
    zero = run.traces[0].origin_ns
    assert (own.compute - zero).tolist() == [[0, 15_000], [24_000, 36_000], [40_000, 60_000]]
    assert own.preempted is not None
    assert (own.preempted - zero).tolist() == [[15_000, 20_000], [36_000, 40_000], [60_000, 80_000]]
    (row,) = overlaplab.summary(run).to_dict("records")
    assert row["span_ns"] == sum(row[part] for part in PARTS) == 100_000
    assert (row["compute_ns"], row["overlapped_ns"], row["exposed_comm_ns"]) == (47_000, 10_000, 35_000)
    assert (row["idle_ns"], row["preempted_ns"]) == (18_000, 29_000)  # 20 us of these while it communicated
    (row,) = overlaplab.totals(run).to_dict("records")
    assert row["preempted_ns"] == 29_000
    (row,) = idle(run).to_dict("records")
    assert [row[f"{name}_ns"] for name in ("idle", "host_wait", "kernel_wait", "preempted", "other")] == [
        *(18_000, 9_000, 0, 9_000, 0)
    ]


def test_a_trace_without_counts_does_not_tell(tmp_path: Path) -> None:
    run = run_of(tmp_path, [e for e in busy_rank() if "processor" not in e["name"]])
    (row,) = overlaplab.summary(run).to_dict("records")
    assert row["compute_ns"] == 76_000
    assert pd.isna(row["preempted_ns"])
    assert delays(run).empty
    assert run_warnings(run) == ()
    deaf = run_of(tmp_path / "deaf", [op("mm", 0, 9), gloo(3, 5)], manifest={"processor_counts": False})
    assert run_warnings(deaf) == (
        "the operating system did not report how long computation waited for a core: such time counts as computation",
    )


def test_a_thread_has_its_own_counts(tmp_path: Path) -> None:
    """The other thread computes through, so nothing is lost where it does."""
    run = run_of(tmp_path, [*busy_rank(), op("conv", 30, 70, tid=2)])
    own = activity(run.traces[0])
    assert own.preempted is not None
    assert (own.preempted - run.traces[0].origin_ns).tolist() == [[15_000, 20_000], [70_000, 80_000]]


def test_busy_steps_are_named_with_the_unit_that_lost_most(tmp_path: Path) -> None:
    run = run_of(tmp_path, busy_rank())
    assert delays(run).to_dict("records") == [
        {"rank": 0, "step": 3, "unit": unit, "phase": phase, "span_ns": span, "ran_ns": ran, "delayed_ns": delayed}
        for unit, phase, span, ran, delayed in (
            ("layers.0", "forward", 40_000, 30_000, 10_000),
            ("layers.0", "backward", 40_000, 20_000, 20_000),
            ("", "", 15_000, 1_000, 1_000),
        )
    ]
    assert run_warnings(run) == (
        "the machine was busy in step 3: in step 3 the computation of rank 0 waited for a core 33\u00a0% of the time, "
        "most in the backward pass of layers.0 (0.0 ms); that waiting counts as exposed communication "
        "or idle time, not as computation",
    )
    quiet = [counts(0, 0, 0), counts(100, 86, 14), op("mm", 0, 100), gloo(3, 5)]  # the link's threads need cores, too
    assert run_warnings(run_of(tmp_path / "quiet", quiet)) == ()


def test_where_the_recorder_told_the_ranks_from_others_its_verdict_counts(tmp_path: Path) -> None:
    def machine(*, busy: bool, foreign_ns: int | None) -> dict[str, Any]:
        row = {"rank": 0, "step": 3, "took_ns": 100_000, "cores": 2, "delayed_ns": 9_000, "foreign_ns": foreign_ns}
        row["busy_ns"] = None if foreign_ns is None else 180_000
        return {"machine": [{**row, "busy": busy}, {**row, "step": 4, "busy": False}]}

    quiet = run_of(tmp_path / "quiet", busy_rank(), manifest=machine(busy=False, foreign_ns=0))
    assert run_warnings(quiet) == ()
    busy = run_of(tmp_path / "busy", busy_rank(), manifest=machine(busy=True, foreign_ns=140_000))
    assert run_warnings(busy) == (
        "the machine was busy in step 3: in step 3 the computation of rank 0 waited for a core 9\u00a0% of the time, "
        "most in the backward pass of layers.0 (0.0 ms), while the ranks used 20\u00a0% of the cores and other "
        "processes 70\u00a0%; that waiting counts as exposed communication or idle time, not as computation",
    )
    own = run_of(tmp_path / "own", busy_rank(), manifest=machine(busy=True, foreign_ns=0))
    assert "while the ranks used 90\u00a0% of the cores and other processes 0\u00a0%; that" in run_warnings(own)[0]
    short = machine(busy=True, foreign_ns=20_000_000)  # two ticks in 100 us
    short["machine"][0] |= {"busy_ns": 30_000_000}
    short["machine"] += [short["machine"][1] | {"step": 5, "took_ns": 99_900_000, "busy_ns": 120_000_000}]
    short["machine"][1] |= {"busy_ns": 0, "foreign_ns": 0}
    said = run_warnings(run_of(tmp_path / "short", busy_rank(), manifest=short))[0]
    assert "while the ranks used 55\u00a0% of the cores and other processes 20\u00a0%; that" in said
    assert str(note(busy.manifest)).endswith("machine busy in step 3")
    uncounted = run_of(tmp_path / "uncounted", [op("mm", 0, 9)], manifest=machine(busy=True, foreign_ns=None))
    assert run_warnings(uncounted) == (
        "the machine was busy in step 3: in step 3 the computation of rank 0 waited for a core 9\u00a0% of the time; "
        "figures of these steps include that",
    )
    steps = [step(3, 0, 100), op("mm", 0, 9), step(4, 100, 200), op("mm", 110, 119)]
    (warning,) = run_warnings(run_of(tmp_path / "other", steps, manifest=machine(busy=True, foreign_ns=None)))
    assert warning.endswith("figures of these steps include that. The verdict and the advice leave it out")


times = st.lists(st.integers(0, 10_000), min_size=2, max_size=30, unique=True).map(sorted)


@given(times, times, st.lists(st.integers(0, 3000), min_size=30, max_size=30))
def test_what_is_lost_is_in_proportion(borders: list[int], ops: list[int], lost: list[int]) -> None:
    compute = union(ops[0:-1:2], ops[1::2])
    table = pd.DataFrame({"start_ns": borders[:-1], "end_ns": borders[1:], "delayed_ns": lost[: len(borders) - 1]})
    found = core_waits(compute, table)
    assert total(subtract(found, compute)) == 0
    for start, end, delayed in table.to_numpy().tolist():
        between = union([start], [end])
        here = total(intersect(compute, between))
        share = min(1.0, delayed / (end - start))
        pieces = len(ops)
        assert share * here - pieces <= total(intersect(found, between)) <= share * here + 1e-6
    assert total(intersect(found, union([borders[-1]], [np.iinfo(np.int64).max]))) == 0
    assert found.shape[1:] == (2,)


@pytest.mark.parametrize("text", ["ran_ns=1", "ran_ns=1 delayed_ns=-2", "ran_ns=x delayed_ns=1"])
def test_damaged_counts_are_left_out(tmp_path: Path, text: str) -> None:
    run = run_of(tmp_path, [op("mm", 0, 9), gloo(3, 5), event(f"engine::processor {text}", 4, 4)])
    assert pd.isna(overlaplab.summary(run)["preempted_ns"].iloc[0])
