"""Kernels of one stream that run at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made.traces import event, launched, run_of

from overlaplab.events import early_kernels
from overlaplab.findings import run_warnings


def kernels(*spans: tuple[float, float], stream: int = 7, first: int = 1) -> list[dict[str, Any]]:
    """A kernel per span of a stream, each launched by a call of its own."""
    found = []
    for number, (start, end) in enumerate(spans, start=first):
        found += launched("gemm", number, start, end, stream=stream, correlation=number)
    return found


@pytest.mark.parametrize(
    ("spans", "found"),
    [
        ([(0, 50), (50, 90)], (0, 0)),
        ([(0, 50), (49, 90), (85, 99)], (0, 5_000)),  # as rounded times and early launches have it
        ([(0, 50), (30, 90), (89, 99)], (1, 20_000)),
        ([(0, 90), (10, 30), (40, 95)], (2, 50_000)),  # the last one begins before the first has ended
        ([], (0, 0)),
    ],
)
def test_a_stream_runs_one_kernel_after_another(
    tmp_path: Path, spans: list[tuple[float, float]], found: tuple[int, int]
) -> None:
    other = kernels((0, 99), stream=9, first=50)
    assert early_kernels(run_of(tmp_path, kernels(*spans) + other).traces[0]) == found


def test_branches_of_a_graph_may_run_at_once(tmp_path: Path) -> None:
    """Some traces place all of them on the stream of the launch, and a slice may lack the launch."""
    branches = [event("gemm", at, at + 80, cat="kernel", tid=7, stream=7, correlation=7) for at in (10, 20)]
    alone = launched("gemm", 2, 15, 85, correlation=8)
    alone[0]["name"] = "cudaGraphLaunch"
    assert early_kernels(run_of(tmp_path, branches + alone).traces[0]) == (0, 0)


def test_one_line_says_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, kernels((0, 50)), kernels((0, 50), (30, 90), (60, 95)), backend="nccl")
    (said,) = [line for line in run_warnings(run) if "same stream" in line]
    assert said == (
        "2 kernels begin before the one before on the same stream has ended on rank 1, by up to 0.030 ms: their times,"
        " or their streams, may be wrong"
    )
