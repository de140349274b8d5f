"""Where steps begin and end."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.traces import event, gloo, launched, op, run_of, step

from overlaplab.events import Window, found_windows, step_windows, unmarked_iterations, windows_at


def found(folder: Path, events: list[dict[str, Any]]) -> list[tuple[int | None, int, int]]:
    trace = run_of(folder, events).traces[0]
    return [(w.step, w.start_ns // 1000, w.end_ns // 1000) for w in step_windows(trace)]


def test_on_cpu_a_step_lasts_until_the_next_begins(tmp_path: Path) -> None:
    events = [step(3, 0, 9), step(4, 12, 20), step(5, 20, 27), op("mm", 26, 40)]
    assert found(tmp_path, events) == [(3, 0, 12), (4, 12, 20), (5, 20, 27)]


def test_a_trace_without_steps_is_one_window_over_what_counts(tmp_path: Path) -> None:
    assert found(tmp_path, [op("mm", 5, 8), gloo(7, 30)]) == [(None, 5, 30)]


def test_a_trace_without_activity_has_no_window(tmp_path: Path) -> None:
    assert found(tmp_path, []) == []


def test_on_a_gpu_a_step_begins_with_its_first_kernel_on_the_main_stream(tmp_path: Path) -> None:
    events = [
        step(1, 0, 10),
        step(2, 10, 20),
        *launched("side", 1, 15, 16, stream=9, correlation=1),
        *launched("ncclDevKernel_A", 2, 18, 30, stream=5, correlation=2),
        *launched("gemm", 3, 20, 50, correlation=3),
        *launched("gemm", 12, 60, 80, correlation=4, tid=2),
        *launched("ncclDevKernel_B", 14, 70, 95, stream=5, correlation=5),
        *launched("late", 25, 100, 120, correlation=6),
    ]
    assert found(tmp_path, events) == [(1, 20, 60), (2, 60, 95)]
    assert [w.host_start_ns for w in step_windows(run_of(tmp_path, events).traces[0])] == [0, 10_000]


def test_a_step_that_launches_no_compute_is_left_out_with_a_warning(tmp_path: Path) -> None:
    events = [step(1, 0, 10), step(2, 10, 20), *launched("gemm", 12, 60, 80, correlation=4)]
    trace = run_of(tmp_path, events).traces[0]
    assert [w.step for w in step_windows(trace)] == [2]
    assert found_windows(trace)[1] == ("step 1 launched no compute kernel on the main stream and was left out",)


def test_many_steps_that_launch_no_compute_are_one_warning(tmp_path: Path) -> None:
    """The ranges of two processes may overlap: a step has what its own process launched."""
    events = [step(number, 10 * number, 10 * number + 10) for number in range(1000)]
    events += [*launched("gemm", 9992, 10010, 10020, correlation=1), step(1000, 9995, 9999) | {"pid": 8}]
    trace = run_of(tmp_path, events).traces[0]
    assert [w.step for w in step_windows(trace)] == [999]
    (warning,) = found_windows(trace)[1]
    assert warning == (
        "steps 0, 1, 2, 3, 4, 5, 6, 7, … (1,000 in all) launched no compute kernel on the main stream and were left out"
    )


moments = st.integers(0, 30)


@given(st.lists(st.tuples(moments, moments), max_size=8), st.lists(moments, min_size=1, max_size=8))
def test_the_last_window_that_contains_a_moment(bounds: list[tuple[int, int]], at: list[int]) -> None:
    steps = [
        Window(step=0, start_ns=start, end_ns=end, host_start_ns=start + 3, host_end_ns=end + 3)
        for start, end in bounds
    ]
    containing = [[place for place, (start, end) in enumerate(bounds) if start <= moment < end] for moment in at]
    last = [places[-1] if places else -1 for places in containing]
    assert windows_at(steps, np.array(at)).tolist() == last
    assert windows_at(steps, np.array(at) + 3, of_host=True).tolist() == last


def test_iterations_without_steps_are_found(tmp_path: Path) -> None:
    def iterations(count: int, *names: str) -> list[dict[str, Any]]:
        return [
            event(name, 10 * place, 10 * place + 5, cat="user_annotation") for place in range(count) for name in names
        ]

    def repeated(*events: dict[str, Any]) -> tuple[str, int] | None:
        return unmarked_iterations(run_of(tmp_path, [*events, op("mm", 0, 99)]).traces[0])

    adam, forward = "Optimizer.step#Adam.step", "DistributedDataParallel.forward"
    assert repeated(*iterations(3, adam, forward)) == (adam, 3)
    assert repeated(*iterations(4, forward)) == (forward, 4)
    assert repeated(*iterations(1, adam, "Optimizer.step#SGD.step", forward)) is None
    assert repeated(*iterations(3, adam), step(1, 0, 99)) is None


def test_the_main_stream_is_the_one_that_is_longest_busy(tmp_path: Path) -> None:
    """Stream 7 overlaps itself: 199 µs in sum, 100 µs in truth."""
    events = [
        step(1, 0, 10),
        *launched("a", 1, 20, 120, correlation=1),
        *launched("a", 2, 21, 120, correlation=2),
        *launched("b", 3, 5, 155, stream=9, correlation=3),
    ]
    assert found(tmp_path, events) == [(1, 5, 155)]


def test_a_step_launches_in_its_own_process_on_any_thread(tmp_path: Path) -> None:
    """Another process in the file launches at the same time: its events belong to no step."""
    other = [e | {"pid": 8} for e in launched("gemm", 3, 5, 8, correlation=1)]
    own = launched("gemm", 4, 20, 50, correlation=2, tid=77)
    assert found(tmp_path, [step(1, 0, 10), *other, *own]) == [(1, 20, 50)]


def test_a_call_at_the_end_of_a_step_is_not_part_of_it(tmp_path: Path) -> None:
    kernels = [*launched("gemm", 4, 20, 30, correlation=1), *launched("gemm", 10, 40, 50, correlation=2)]
    assert found(tmp_path, [step(1, 0, 10), *kernels]) == [(1, 20, 30)]


def test_the_kernels_of_a_graph_belong_to_the_step_that_launched_it(tmp_path: Path) -> None:
    def graph(number: int, host: float, start: float) -> list[dict[str, Any]]:
        """Three kernels of one launch, the first to start written last."""
        kernels = [("gemm", start + 10, 7), ("ncclDevKernel_A", start + 20, 9), ("gemm", start, 7)]
        return [
            event("cudaGraphLaunch", host, host + 1, cat="cuda_runtime", correlation=number),
            *(event(n, at, at + 9, cat="kernel", tid=s, stream=s, correlation=number) for n, at, s in kernels),
        ]

    events = [step(1, 0, 10), step(2, 10, 20), *graph(5, 2, 30), *graph(6, 12, 70)]
    assert found(tmp_path, events) == [(1, 30, 70), (2, 70, 99)]


def test_windows_are_in_the_order_in_which_the_device_began_them(tmp_path: Path) -> None:
    """Two threads launch on one stream: the call that began first need not run first."""
    first, second = launched("gemm", 9, 80, 90, correlation=1), launched("gemm", 12, 60, 70, correlation=2)
    assert found(tmp_path, [step(1, 0, 10), step(2, 10, 20), *first, *second]) == [(2, 60, 80), (1, 80, 90)]


def test_steps_of_a_trace_without_device_activity_are_the_hosts(tmp_path: Path) -> None:
    call = event("cudaLaunchKernel", 1, 2, cat="cuda_runtime", correlation=1)
    assert found(tmp_path, [step(1, 0, 10), step(2, 12, 20), call]) == [(1, 0, 12), (2, 12, 20)]


def test_the_hosts_windows_need_no_activity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the engine takes far longer than these commands."""
    monkeypatch.delattr(import_module("overlaplab.events.windows"), "activity")
    assert found(tmp_path, [step(3, 0, 9), op("mm", 1, 2)]) == [(3, 0, 9)]


def test_steps_annotated_on_the_gpu_are_ignored(tmp_path: Path) -> None:
    annotated = step(1, 0, 100) | {"cat": "gpu_user_annotation"}
    assert found(tmp_path, [annotated, *launched("gemm", 0, 5, 9, correlation=1)]) == [(None, 5, 9)]


def test_a_number_beyond_64_bits_is_no_step(tmp_path: Path) -> None:
    assert found(tmp_path, [step(10**18, 0, 100), op("mm", 1, 2)]) == [(None, 1, 2)]
    assert found(tmp_path, [step(10**18 - 1, 0, 9), op("mm", 1, 2)]) == [(10**18 - 1, 0, 9)]
