"""Idle time in HTA's classes."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.traces import event, launched, op, run_of, step

import overlaplab
from overlaplab.analyses import idle
from overlaplab.hta import trace_analysis
from overlaplab.selection import Selection


def classes(run: overlaplab.Run, **chosen: Any) -> list[tuple[int, int, int, int]]:
    """Per step: idle, host wait, kernel wait, other, in ns."""
    table = idle(run, Selection(**chosen))
    return [tuple(row) for row in table[["idle_ns", "host_wait_ns", "kernel_wait_ns", "other_ns"]].to_numpy().tolist()]


def test_a_gap_is_the_hosts_where_it_launched_after_the_gap_began(tmp_path: Path) -> None:
    """From 10 to 30 the host had not launched; from 40 to 40.02 the device switches kernels; 50 to 90 is other idle."""
    events = launched("a", 0, 0, 10, correlation=1) + launched("b", 25, 30, 40, correlation=2)
    events += launched("c", 26, 40.02, 50, correlation=3) + launched("d", 27, 90, 100, correlation=4)
    assert classes(run_of(tmp_path, events)) == [(60_020, 20_000, 20, 40_000)]


def test_an_event_on_any_stream_ends_idle_time_and_its_first_launch_decides(tmp_path: Path) -> None:
    """The copy covers part of the gap. Two kernels end the remainder, and one of them was launched in time."""
    events = launched("a", 0, 0, 10, correlation=1) + launched(
        "Memcpy HtoD", 1, 15, 20, cat="gpu_memcpy", correlation=2
    )
    events += launched("b", 25, 30, 40, correlation=3) + launched("c", 2, 30, 35, stream=9, correlation=4)
    assert classes(run_of(tmp_path, events)) == [(15_000, 0, 0, 15_000)]


def test_it_is_cut_at_the_steps_borders(tmp_path: Path) -> None:
    """Step 1 begins with its kernel at 100: the gap before it, from 60, is the first step's."""
    events = [event(f"ProfilerStep#{n}", 50 * n, 50 * n + 50, cat="user_annotation") for n in (0, 1)]
    events += launched("a", 1, 10, 60, correlation=1) + launched("b", 70, 100, 120, correlation=2)
    run = run_of(tmp_path, events)
    assert classes(run) == [(40_000, 40_000, 0, 0), (0, 0, 0, 0)]
    assert classes(run, steps=[0]) == [(40_000, 40_000, 0, 0)]
    assert idle(run)["start_ns"].tolist() == overlaplab.summary(run)["start_ns"].tolist()


def test_what_no_call_launched_is_other(tmp_path: Path) -> None:
    kernel = event("b", 30, 40, cat="kernel", tid=7, stream=7, device=0)
    assert classes(run_of(tmp_path, [*launched("a", 0, 0, 10, correlation=1), kernel])) == [(20_000, 0, 0, 20_000)]


def test_without_a_device_all_idle_time_is_the_hosts(tmp_path: Path) -> None:
    assert classes(run_of(tmp_path, [op("mm", 0, 10), op("mm", 30, 40)])) == [(20_000, 20_000, 0, 0)]


def test_a_call_of_a_collective_cuts_the_operator_around_it(tmp_path: Path) -> None:
    """The operator goes on after the call, where no counted event begins."""
    run = run_of(tmp_path, [step(0, 0, 200), op("linear", 0, 100), event("c10d::allreduce_", 40, 60)])
    assert classes(run) == [(120_000, 120_000, 0, 0)]


def test_unrecorded_devices_have_no_idle_time(tmp_path: Path) -> None:
    run = run_of(tmp_path, [event("cudaLaunchKernel", 0, 1, cat="cuda_runtime", correlation=1)])
    assert idle(run).empty


gaps = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.02, 1.0, 20.0]), st.integers(1, 30), st.integers(0, 60)),
    min_size=2,
    max_size=12,
)


@settings(max_examples=10, deadline=None)
@given(gaps)
def test_one_stream_is_as_hta_has_it(kernels: list[tuple[float, int, int]]) -> None:
    """Gaps, lengths, and how long before its start each kernel was launched."""
    pytest.importorskip("hta")
    logging.getLogger("hta").setLevel(logging.WARNING)
    events, at = [], 100.0
    for number, (gap, length, before) in enumerate(kernels, start=1):
        at = round(at + gap, 3)
        events += launched("gemm", at - before - 0.5, at, at + length, correlation=number)
        at += length
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(Path(folder), events)
        _, host, kernel, other = classes(run)[0]
        theirs, _ = trace_analysis(run).get_idle_time_breakdown(ranks=[0], visualize=False)
    took = dict(zip(theirs["idle_category"], theirs["idle_time"] * 1000, strict=True))
    assert host == pytest.approx(took.get("host_wait", 0), abs=1)
    # HTA takes its 30 ns for the µs that its own tables are in: every gap below 30 µs is kernel wait there.
    assert kernel + other == pytest.approx(took.get("kernel_wait", 0) + took.get("other", 0), abs=1)
