"""What is said of communication that the rules do not know, or see in part."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from made.traces import launched, op, run_of

import overlaplab
from overlaplab import OverlaplabError, Run, findings, load_run
from overlaplab.cli import main
from overlaplab.sections.run_tables import RunTables

LOW_LATENCY = "void deep_ep::internode_ll::{}<(bool)1, (int)7168>(void*, void*)"


def kernels(*names: str) -> list[dict[str, Any]]:
    """Kernels of 10 µs, one after the other on two streams: those of communication on one of their own."""
    found = []
    for place, name in enumerate(names):
        start = 10 * place
        found += launched(name, start, start + 5, start + 15, stream=7 + (name != "gemm"), correlation=place + 1)
    return found


def moe(folder: Path) -> Run:
    names = (
        "gemm",
        "_mxfp8_all_to_all_expert_major_kernel",
        "gemm",
        "_my_all_gather_kernel",
        "ncclDevKernel_AllReduce",
    )
    return run_of(folder, *[kernels(*names)] * 2, backend="nccl")


def communicated(run: Run) -> list[int]:
    return overlaplab.summary(run)["comm_ns"].tolist()


def test_kernels_that_read_like_communication_are_said_with_the_remedy(tmp_path: Path) -> None:
    run = moe(tmp_path)
    assert communicated(run) == [20_000, 20_000]
    assert findings.run_warnings(run) == (
        "kernels whose names read like communication count as compute (0.020 ms). If they communicate, say so:"
        " --communication '_my_all_gather_kernel' (in Python: load_run(…, communication=…))",
    )


def test_a_rule_of_ones_own_counts_and_is_said(tmp_path: Path) -> None:
    moe(tmp_path)
    run = load_run(tmp_path, communication="my_ALL_gather")
    assert communicated(run) == [30_000, 30_000]
    assert overlaplab.collectives(run).query("rank == 0")["kind"].tolist() == ["all_to_all", "all_gather", "all_reduce"]
    said = "--communication 'my_ALL_gather' matches 2 events of kernels and copies: they count as communication"
    assert findings.run_warnings(run) == (said,)
    nothing = load_run(tmp_path, communication="elsewhere")
    assert findings.run_warnings(nothing)[0] == "--communication 'elsewhere' matches no kernel and no copy"
    assert communicated(load_run(tmp_path, communication="")) == [20_000, 20_000]


def test_a_rule_that_is_no_regular_expression_is_one_line(tmp_path: Path) -> None:
    moe(tmp_path)
    with pytest.raises(OverlaplabError, match=r"^--communication \(: not a regular expression \(.*\)\. As in "):
        load_run(tmp_path, communication="(")


def test_the_commands_take_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moe(tmp_path)
    command = ["overlaplab", "summary", str(tmp_path), "--json", "--communication", "my_all_gather"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert [rank["total"]["comm_ns"] for rank in document["ranks"]] == [30_000, 30_000]


@pytest.mark.parametrize(
    ("words", "only_ends"),
    [
        (("dispatch", "combine", "dispatch", "combine"), False),  # one kernel sends and receives
        (("dispatch", "dispatch", "combine", "combine"), True),
    ],
)
def test_of_low_latency_deepep_the_time_between_is_not_seen(
    tmp_path: Path, words: tuple[str, ...], only_ends: bool
) -> None:
    """With a receive hook one launch sends and another receives; in between the network moves the data."""
    run = run_of(tmp_path, kernels(*(LOW_LATENCY.format(word) for word in words), "gemm"), [op("mm", 0, 9)])
    assert findings.unseen(run).only_ends is only_ends
    told = RunTables(run=run).verdict
    warnings = [line for line in findings.run_warnings(run) if "low-latency DeepEP on rank 0" in line]
    if only_ends:
        assert "How much of communication is hidden is unknown" in told
        assert "not the time between" in told
        assert ["is not seen" in line for line in warnings] == [True]
    else:
        assert "of communication is hidden" in told
        assert "unknown" not in told.split("hidden")[-1]
        assert warnings == []
