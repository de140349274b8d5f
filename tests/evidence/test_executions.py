"""From the host's moments to the device's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import event, launched, run_of

from overlaplab.evidence.executions import executions


def graph(host: float, *kernels: tuple[float, float]) -> list[dict[str, Any]]:
    """Kernels of one graph, which share the correlation of its launch."""
    call = event("cudaGraphLaunch", host, host + 1, cat="cuda_runtime", correlation=int(host))
    return [
        call,
        *(event("gemm", start, end, cat="kernel", tid=7, stream=7, correlation=int(host)) for start, end in kernels),
    ]


@pytest.mark.parametrize(
    ("host", "reached", "begun"),
    [
        (1, 1, 10),  # nothing launched yet: the host's own time
        (3, 90, 40),  # after the first graph, all of it is done when its longest kernel is
        (5, 90, 40),
        (7, 90, None),  # the second one's kernels end before that
    ],
)
def test_a_graphs_kernels_are_reached_and_begun_together(
    tmp_path: Path, host: int, reached: int, begun: int | None
) -> None:
    run = run_of(tmp_path, [*graph(2, (50, 90), (10, 20)), *graph(6, (60, 70), (40, 50))], backend="nccl")
    ran = executions(run.traces[0])
    assert ran.done_ns(host * 1000) == reached * 1000
    found = ran.first_begin_ns(host * 1000)
    assert found == (None if begun is None else begun * 1000)


def test_what_is_launched_at_the_moment_itself_comes_after_it(tmp_path: Path) -> None:
    events = [*launched("gemm", 2, 10, 20, correlation=1), *launched("relu", 5, 30, 40, correlation=2)]
    ran = executions(run_of(tmp_path, events, backend="nccl").traces[0])
    assert (ran.done_ns(5_000), ran.first_begin_ns(5_000)) == (20_000, 30_000)


def test_without_a_correlation_nothing_is_guessed(tmp_path: Path) -> None:
    loose = event("gemm", 50, 90, cat="kernel", tid=7, stream=7)
    ran = executions(run_of(tmp_path, [loose, *launched("gemm", 2, 10, 20, correlation=1)]).traces[0])
    assert ran.done_ns(3_000) == 20_000
