"""Runs of one rank of an emulated group: its peers are phantoms, which have no traces and keep nobody waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.phantoms import phantom_run
from made.runs import engine_events
from made.traces import run_of

from overlaplab import collectives, compare, exposed, findings, summary
from overlaplab.analyses import is_sweep, memory, peaks
from overlaplab.findings.runs import describe_ranks
from overlaplab.report.terminal import terminal_table
from overlaplab.sections.tables import compare_rows, costs_rows

TOLD = "one rank of an emulated group of 8 (peers are phantoms; losses are meaningless)"


def test_nothing_is_missing_and_nobody_waits(tmp_path: Path) -> None:
    """On the link from 600 to 950, launched at 505; the first one from 450 to 600, launched at 305 when it was free."""
    run = phantom_run(tmp_path, engine_events())
    assert findings.run_warnings(run) == ()
    steps = summary(run)
    assert steps["exposed_comm_ns"].tolist() == steps["exposed_transfer_ns"].tolist() == [350_000, 350_000]
    assert steps["exposed_wait_ns"].tolist() == [0, 0]
    table = collectives(run)
    assert table["group_size"].tolist() == [8] * 4
    assert table["unmatched"].isna().all()
    assert table["wait_ns"].tolist() == [0] * 4
    assert table["transfer_ns"].tolist()[:2] == [295_000, 350_000]
    assert table["bus_gb_per_s"].tolist()[1] == pytest.approx(4e6 / 350e3 * 14 / 8)
    assert not table["bus_is_lower_bound"].any()
    assert table["skew_ns"].isna().all()
    assert not exposed(run)["cause"].isin(["wait"]).any()


def test_without_phantoms_the_same_trace_lacks_seven_ranks(tmp_path: Path) -> None:
    run = phantom_run(tmp_path, engine_events(), phantom_ranks=[], numerics_meant=True)
    assert findings.run_warnings(run) == ("7 of 8 ranks have no trace here",)
    assert summary(run)["exposed_wait_ns"].isna().all()
    assert collectives(run)["transfer_ns"].isna().all()


def test_a_rank_that_is_no_phantom_still_counts_as_missing(tmp_path: Path) -> None:
    run = phantom_run(tmp_path, engine_events(), phantom_ranks=[2, 3, 4, 5, 6, 7])
    assert findings.run_warnings(run) == ("1 of 8 ranks has no trace here",)
    assert collectives(run)["wait_ns"].isna().all()


def test_screens_say_so(tmp_path: Path) -> None:
    run = phantom_run(tmp_path, engine_events(), strategy="zero3", bucket_cap_mb=None, prefetch=1)
    link = "emulated link 400Gbps,10us"
    assert findings.run_title(run) == f"{tmp_path}: zero3, {TOLD}, {link}"
    assert findings.note(run.manifest) == f"zero3, {TOLD}, cpu, prefetch 1, {link}"
    assert findings.link_note(run.manifest) == f"{link}, one rank of a group of 8"
    assert run.manifest is not None
    assert describe_ranks(run.manifest) == TOLD
    meant = phantom_run(tmp_path / "meant", engine_events(), numerics_meant=True)
    assert meant.manifest is not None
    assert describe_ranks(meant.manifest) == "one rank of an emulated group of 8 (peers are phantoms)"
    table = compare([run])
    assert table[["ranks", "phantoms"]].to_numpy().tolist() == [[1, 7]]
    assert compare_rows(table).legend.endswith(
        "; emulated links; one rank of an emulated group, its peers phantoms: 1 of 1"
    )


def test_ordinary_runs_say_how_many_ranks(tmp_path: Path) -> None:
    run = run_of(tmp_path, engine_events(), engine_events(), manifest={})
    assert findings.run_title(run) == f"{tmp_path}: bucketed, 2 ranks"
    assert findings.note(run.manifest) == "bucketed, 2 ranks, cpu, bucket_cap_mb 25"
    assert compare([run])["phantoms"].tolist() == [0]


def test_a_sweep_is_of_one_kind_of_group(tmp_path: Path) -> None:
    """An older run.json does not mention phantoms, which means that there are none."""
    alone = [phantom_run(tmp_path / f"{cap}", engine_events(), bucket_cap_mb=cap) for cap in (1, 5)]
    assert is_sweep(alone)
    real = phantom_run(tmp_path / "real", engine_events(), bucket_cap_mb=25, phantom_ranks=[])
    assert not is_sweep([*alone, real])
    older = run_of(tmp_path / "older", engine_events(), manifest={"bucket_cap_mb": 1})
    newer = run_of(tmp_path / "newer", engine_events(), manifest={"bucket_cap_mb": 5, "phantom_ranks": []})
    assert is_sweep([older, newer])


def test_measured_peak_stands_beside_theory(tmp_path: Path) -> None:
    held = {"rank": 0, "parameters": 1_000, "gradients": 1_000, "optimizer": 2_000}
    run = phantom_run(tmp_path, engine_events(), memory=[held | {"peak_allocated": 9_000_000, "scratch": 500}])
    assert peaks(run).to_dict("records") == [{"rank": 0, "peak_bytes": 9_000_000, "scratch_bytes": 500}]
    assert memory(run)["bytes"].tolist() == [1_000, 1_000, 2_000]
    table = compare([run])
    assert table["peak_memory_bytes"].tolist() == [9_000_000]
    sizes = costs_rows(table)
    assert sizes is not None
    assert sizes.columns[-1].terse == "peak MB"
    assert [str(cell) for cell in terminal_table(sizes).columns[-1].cells] == ["9.00"]
    cpu = phantom_run(tmp_path / "cpu", engine_events(), memory=[held | {"peak_allocated": None, "scratch": 500}])
    assert peaks(cpu)[["rank", "scratch_bytes"]].to_numpy().tolist() == [[0, 500]]
    assert peaks(cpu)["peak_bytes"].isna().all()
    assert peaks(phantom_run(tmp_path / "none", engine_events(), memory=[held])).empty
    nothing_lent = [held | {"peak_allocated": None, "scratch": 0}]
    assert peaks(run_of(tmp_path / "real", engine_events(), manifest={"memory": nothing_lent})).empty
    sizes = costs_rows(compare([cpu]))
    assert sizes is not None
    assert sizes.columns[-1].terse == "theory held"
