"""The same kernel, alone and beside communication."""

from __future__ import annotations

from pathlib import Path

from made.traces import launched, run_of, step

from overlaplab.analyses import slowdowns


def test_a_kernel_is_compared_with_itself(tmp_path: Path) -> None:
    """The second gemm of a step takes 20 µs alone and 25 beside a reduction; the first is always alone."""
    first = [
        step(3, 0, 90),
        *launched("gemm", 1, 10, 50, correlation=1),
        *launched("gemm", 2, 60, 80, correlation=2),
        step(4, 100, 190),
        *launched("gemm", 101, 110, 150, correlation=3),
        *launched("ncclDevKernel_AllReduce", 102, 155, 190, stream=9, correlation=4),
        *launched("gemm", 103, 160, 185, correlation=5),
    ]
    table = slowdowns(run_of(tmp_path, first, backend="nccl"))
    assert table.to_dict("records") == [
        {"name": "gemm", "pairs": 1, "alone_ns": 20_000, "beside_ns": 25_000, "slowdown": 0.25}
    ]


def test_nothing_is_said_where_nothing_ran_both_ways(tmp_path: Path) -> None:
    events = [step(3, 0, 90), *launched("gemm", 1, 10, 50, correlation=1)]
    assert slowdowns(run_of(tmp_path, events, backend="nccl")).empty
