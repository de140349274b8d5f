"""The table of collectives, and what is made of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.gloo import launched_by_gloo
from made.ranks import carried, group, groups_of
from made.traces import event, gloo, launched, op, run_of, step
from samples import TRACES, cpu_samples, gpu_samples, sample_run

import overlaplab
from overlaplab import OverlaplabError, load_run
from overlaplab.analyses.collectives import COLUMNS, OF_RANK, time_spent
from overlaplab.causes import Cause
from overlaplab.cli import main
from overlaplab.intervals import clip, lengths_within, total, union
from overlaplab.report.documents import collectives_document
from overlaplab.sections.run_tables import RunTables
from overlaplab.selection import Selection


def test_one_collective(tmp_path: Path) -> None:
    """Rank 1 arrives 10 µs later, its thread wakes up 2 µs after that, and it computes for 5 µs of the collective."""
    rank0 = [step(3, 0, 60), op("mm", 0, 5), *carried(7, 7, 40, launch=6, num_bytes=48_000)]
    rank1 = [step(4, 0, 60), op("mm", 0, 23), *carried(7, 18, 40, launch=16, num_bytes=48_000)]
    shared = {
        "index": 0,
        "group": "0",
        "group_description": None,
        "axis": None,
        "group_size": 2,
        "kind": "all_reduce",
        "dtype": "float32",
        "bytes": 48_000,
        "transfer_ns": 24_000,
        "bus_gb_per_s": 2.0,  # 48 kB in 24 µs, × 2(2−1)/2
        "bus_is_lower_bound": False,
        "skew_ns": 10_000,
        "within_clock_error": False,
        "last_rank": 1,
        "doubtful": False,
        "unmatched": None,
    }
    first = {"rank": 0, "step": 3, "launch_ns": 6_000, "arrived_ns": 6_000, "start_ns": 7_000, "wait_ns": 10_000}
    second = {"rank": 1, "step": 4, "launch_ns": 16_000, "arrived_ns": 16_000, "start_ns": 18_000, "wait_ns": 0}
    shared |= {"end_ns": 40_000}
    table = overlaplab.collectives(run_of(tmp_path, rank0, rank1))
    rows = [{key: None if pd.isna(value) else value for key, value in row.items()} for row in table.to_dict("records")]
    assert rows == [shared | first | {"exposed_ns": 33_000}, shared | second | {"exposed_ns": 17_000}]


def test_queueing_for_the_link_is_no_wait_for_ranks(tmp_path: Path) -> None:
    """Two groups share a link. Both ranks' threads take up the second's collective before the link is free, at 30."""
    groups = [group(name, range(2)) for name in "ab"]
    ranks = []
    for at in (5, 11):
        second = [event_ | {"tid": 8} for event_ in carried(0, at, 60, group="b")]
        launches = [event(f"engine::launch seq=0 group={name}", 0, 1) for name in "ab"]
        ranks.append(([*launches, *carried(0, 1, 30, group="a"), *second], groups))
    table = overlaplab.collectives(groups_of(tmp_path, *ranks))
    assert table["arrived_ns"].tolist() == [0, 0, 30_000, 30_000]
    assert table["wait_ns"].tolist() == [0] * 4
    assert time_spent(table).tolist() == [30_000, 30_000, 55_000, 49_000]


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 2 * 2 / 3),
        ("all_gather", 2 / 3),
        ("reduce_scatter", 2 / 3),
        ("all_to_all", 2 / 3),
        ("barrier", 1),
    ],
)
def test_bus_bandwidth_is_of_the_transfer(tmp_path: Path, kind: str, factor: float) -> None:
    ranks = [carried(0, start, 50, kind=kind, num_bytes=30_000) for start in (0, 10, 40)]
    table = overlaplab.collectives(run_of(tmp_path, *ranks))
    assert table["transfer_ns"].tolist() == [10_000] * 3
    assert table["bus_gb_per_s"].tolist() == pytest.approx([3 * factor] * 3)
    assert not table["bus_is_lower_bound"].any()


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter"])
def test_on_an_emulated_link_all_wait_for_the_last(tmp_path: Path, kind: str) -> None:
    table = overlaplab.collectives(run_of(tmp_path, *(carried(0, start, 50, kind=kind) for start in (0, 10))))
    assert table["wait_ns"].tolist() == [10_000, 0]
    assert table["transfer_ns"].tolist() == [40_000] * 2
    assert table["last_rank"].tolist() == [1, 1]
    assert not table["bus_is_lower_bound"].any()


@pytest.mark.parametrize(
    ("kind", "root", "waits_us"),
    [
        ("broadcast", 0, [None, None, 0]),  # rank 1 may also have waited for rank 2, which passes it on
        ("broadcast", 1, [None, None, 0]),
        ("scatter", 2, [30, 20, 0]),
        ("reduce", 0, [30, None, None]),
        ("gather", 1, [None, 20, None]),
        ("broadcast", None, [None, None, None]),
    ],
)
def test_who_waits_where_one_rank_gives_or_takes_all(
    tmp_path: Path, kind: str, root: int | None, waits_us: list[int | None]
) -> None:
    """Ranks 0 to 2 come at 0, 10 and 30."""
    ranks = [[*launched_by_gloo(kind, root, start, 50), op("mm", 60, 61)] for start in (0, 10, 30)]
    run = run_of(tmp_path, *ranks)
    table = overlaplab.collectives(run)
    assert table["wait_ns"].isna().tolist() == [wait is None for wait in waits_us]
    assert table["wait_ns"].dropna().tolist() == [1000 * wait for wait in waits_us if wait is not None]
    assert table["last_rank"].tolist() == [2] * 3
    assert table["transfer_ns"].isna().all()
    assert (table["bus_is_lower_bound"] | table["bus_gb_per_s"].isna()).all()
    assert table["bus_gb_per_s"].dropna().tolist() in ([], pytest.approx([8 / 50_000] * 3))  # the root may leave early
    late = [cause for cause in overlaplab.exposed(run)["cause"] if cause == Cause.STRAGGLER]
    assert len(late) == sum(map(bool, waits_us))


def test_without_all_ranks_bandwidth_is_a_lower_bound(tmp_path: Path) -> None:
    run_of(tmp_path, *(carried(0, start, 50, num_bytes=30_000) for start in (0, 20, 40)))
    (tmp_path / "rank2.pt.trace.json.gz").unlink()
    table = overlaplab.collectives(load_run(tmp_path))
    assert table[["wait_ns", "transfer_ns", "last_rank"]].isna().all(axis=None)
    assert table["bus_is_lower_bound"].all()
    assert table["bus_gb_per_s"].tolist() == pytest.approx([4 / 3] * 2)  # in 30 µs, the shorter duration


def test_one_rank_has_no_bus(tmp_path: Path) -> None:
    table = overlaplab.collectives(run_of(tmp_path, carried(0, 0, 50)))
    assert (table["wait_ns"].tolist(), table["transfer_ns"].tolist()) == ([0], [50_000])
    assert table["bus_gb_per_s"].isna().all()
    assert table["skew_ns"].isna().all()


def test_skews_that_clocks_explain(tmp_path: Path) -> None:
    """The ends' interquartile range is 4 µs."""
    spans = [((0, 100), (2, 100)), ((200, 300), (204, 304)), ((400, 500), (405, 504))]
    ranks = [[e for n, both in enumerate(spans) for e in carried(n, *both[rank])] for rank in (0, 1)]
    run = run_of(tmp_path, *ranks)
    assert overlaplab.clocks(run)["error_ns"].tolist() == [0, 4_000]
    first_rank = overlaplab.collectives(run, Selection(ranks=[0]))
    assert first_rank["within_clock_error"].tolist() == [True, True, False]
    assert overlaplab.stragglers(run)["last"].tolist() == [1, 0]


def test_steps_are_those_of_the_launch(tmp_path: Path) -> None:
    """One is launched in step 1 and runs in step 2; another was launched before the recording."""
    events = [step(1, 10, 50), step(2, 50, 90), op("mm", 10, 20)]
    events += carried(0, 12, 14) + carried(1, 52, 60, launch=45) + carried(2, 61, 70, launch=60)
    events += carried(3, 2, 4, launch=1)
    run = run_of(tmp_path, events)
    table = overlaplab.collectives(run)
    assert table["step"].tolist() == [pd.NA, 1, 1, 2]
    assert overlaplab.collectives(run, Selection(steps=[1]))["index"].tolist() == [1, 2]
    assert overlaplab.collectives(run, Selection(skip_steps=1))["index"].tolist() == [3]
    with pytest.raises(OverlaplabError, match="no step 9"):
        overlaplab.collectives(run, Selection(steps=[9]))
    with pytest.raises(OverlaplabError, match="rank 5"):
        overlaplab.collectives(run, Selection(ranks=[5]))


def test_a_kernels_name_alone_gives_only_the_kind(tmp_path: Path) -> None:
    events = launched("ncclDevKernel_AllReduce_Sum_f32", 0, 5, 9, correlation=1) + launched(
        "gemm", 1, 0, 4, correlation=2
    )
    (row,) = overlaplab.collectives(run_of(tmp_path, events, backend="nccl")).to_dict("records")
    assert (row["kind"], row["launch_ns"], row["start_ns"]) == ("all_reduce", 0, 5_000)
    told = (row[name] for name in ("group", "dtype", "bytes", "bus_gb_per_s"))
    assert [None if pd.isna(value) else value for value in told] == [None] * 4


def test_an_empty_run(tmp_path: Path) -> None:
    run = run_of(tmp_path, [op("mm", 0, 5)], [op("mm", 0, 5)])
    assert len(overlaplab.collectives(run)) == 0
    assert len(overlaplab.stragglers(run)) == 0
    assert len(overlaplab.communication_by(run)) == 0
    assert collectives_document(RunTables(run=run))["collectives"] == []


def test_times_far_from_zero_stay_exact(tmp_path: Path) -> None:
    late = 1_700_000_000_000_000
    later = [*carried(0, late + 3, late + 9), op("mm", late, late + 1), gloo(late + 20, late + 21)]
    table = overlaplab.collectives(run_of(tmp_path, carried(0, late + 1, late + 9) + later[1:], later))
    assert table["start_ns"].tolist() == [1000, 3000, 20_000, 20_000]
    assert table["wait_ns"].tolist() == [2000, 0, 0, 0]


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 9)), max_size=8),
    st.lists(st.tuples(st.integers(-9, 99), st.integers(0, 40)), max_size=8),
)
def test_how_much_of_a_set_lies_within(pieces: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    found = union([start for start, _ in pieces], [start + length for start, length in pieces])
    starts, ends = (np.array([at, at + n]) for at, n in asked), [at + n for at, n in asked]
    starts = np.array([at for at, _ in asked], dtype=np.int64)
    measured = lengths_within(found, starts, np.array(ends, dtype=np.int64))
    assert measured.tolist() == [total(clip(found, at, at + length)) for at, length in asked]


def test_by_group_and_kind(tmp_path: Path) -> None:
    """Two collectives of one group overlap, and count once."""
    steps = [step(0, 0, 100), step(1, 100, 200), op("mm", 0, 20)]
    events = [*steps, *carried(0, 10, 30, launch=9, num_bytes=5), *carried(1, 25, 40, launch=24, num_bytes=7)]
    events += carried(2, 50, 60, launch=49, kind="all_gather", num_bytes=9)
    events += carried(3, 95, 110, launch=94, kind="all_gather", num_bytes=11)
    run = run_of(tmp_path, events)
    columns = ["group", "kind", "count", "bytes", "busy_ns", "exposed_ns"]
    assert overlaplab.communication_by(run)[columns].to_numpy().tolist() == [
        ["0", "all_reduce", 2, 12, 30_000, 20_000],
        ["0", "all_gather", 2, 20, 25_000, 25_000],
    ]
    assert overlaplab.communication_by(run, Selection(steps=[1]))[columns].to_numpy().tolist() == []
    assert overlaplab.communication_by(run, Selection(steps=[0]))[columns].to_numpy().tolist()[1] == [
        *("0", "all_gather", 2, 20, 15_000, 15_000)
    ]


def test_collectives_outside_all_steps_are_in_no_sum(tmp_path: Path) -> None:
    events = [
        step(1, 100, 200),
        *carried(0, 10, 30, launch=9, num_bytes=5),
        *carried(1, 120, 140, launch=110, num_bytes=7),
    ]
    (row,) = overlaplab.communication_by(run_of(tmp_path, events)).itertuples()
    assert (row.count, row.bytes, row.busy_ns) == (1, 7, 20_000)


def test_the_document(tmp_path: Path) -> None:
    steps = [[step(3, 0, 60)], [step(4, 0, 60)]]
    rank0 = carried(0, 10, 40, launch=10) + carried(1, 45, 50, launch=44, kind="send_recv")
    ranks = [steps[0] + rank0, steps[1] + carried(0, 18, 40, launch=18), steps[1] + carried(0, 19, 40, launch=19)]
    run = run_of(tmp_path, *ranks)
    document: dict[str, Any] = json.loads(json.dumps(collectives_document(RunTables(run=run)), allow_nan=False))
    (one,) = document["collectives"]
    (other,) = document["unmatched"]
    keys = {"index", "step", "group", "kind", "dtype", "bytes", "ranks", "transfer_ns", "bus_gb_per_s", "skew_ns"}
    assert keys | {"last_rank", "bus_is_lower_bound"} <= one.keys()
    assert one["step"] is None
    assert [rank["step"] for rank in one["ranks"]] == [3, 4, 4]
    assert {"rank", "launch_ns", "start_ns", "end_ns", "wait_ns", "exposed_ns"} <= one["ranks"][0].keys()
    assert [rank["arrived_ns"] for rank in one["ranks"]] == [10_000, 18_000, 19_000]
    assert "arrived_ns" not in one  # it would be one rank's
    assert [rank["wait_ns"] for rank in one["ranks"]] == [9_000, 1_000, 0]
    assert (other["step"], other["reason"]) == (3, "its trace does not say between which ranks it was sent")
    assert document["stragglers"][0] | {"rank": 2, "cost_ns": 10_000} == document["stragglers"][0]
    assert [row["kind"] for row in document["by_group_and_kind"]][:2] == ["all_reduce", "send_recv"]
    of_one = collectives_document(RunTables(run=run, selection=Selection(ranks=[1])))
    assert of_one["collectives"][0]["ranks"][0]["rank"] == 1


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["overlaplab", "collectives", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_only_what_is_of_a_rank_differs_between_the_rows_of_a_collective() -> None:
    """Else the document would tell the first rank's value as the collective's."""
    by = overlaplab.collectives(sample_run("bucketed")).groupby("index")
    differing = {name for name in COLUMNS if name != "index" and by[name].nunique(dropna=False).max() > 1}
    assert differing == {*OF_RANK} - {"step"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names and large numbers fit into 80 columns, and collectives without a counterpart are reported."""
    info = [group("mesh_expert_tensor_parallel", [0, 1], "expert_tensor_and_data_parallel_group")]
    ranks = []
    for late in (0, 4_000_000):
        events = [step(103, 0, 90_000_000), op("mm", 0, 9)]
        for seq in range(3):
            start = 10 + 20_000_000 * seq
            more = {"kind": "reduce_scatter", "num_bytes": 10**11, "group": "mesh_expert_tensor_parallel"}
            events += carried(seq, start + late, start + 9_000_000, launch=start + late, **more)
        ranks.append(([*events, *carried(9, 80_000_000, 80_000_010, kind="send_recv")], info))
    groups_of(tmp_path, *ranks)
    text = printed(capsys, monkeypatch, tmp_path)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    (first, *_) = (line.split() for line in lines if "reduce-scatter" in line)
    assert first == ["0", "103", "expert_tens…", "reduce-scatter", "100000", "4000.0", "5000.0", "9000.0", "1", "10.00"]
    why = "warning: 2 times a collective of one rank has no counterpart on the others: its trace does not"
    assert why in " ".join(text.split())
    assert "Who came last" in text
    document = json.loads(printed(capsys, monkeypatch, tmp_path, "--json", "--step", 103))
    assert [len(one["ranks"]) for one in document["collectives"]] == [2, 2, 2]
    assert len(document["unmatched"]) == 2


def test_of_many_the_most_exposed_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [e for n in range(70) for e in carried(n, 100 * n, 100 * n + 10 + (n > 60), launch=100 * n)]
    run_of(tmp_path, events)
    text = printed(capsys, monkeypatch, tmp_path)
    listed = {int(line.split()[0]) for line in text.splitlines() if "all-reduce" in line and line.split()[0] != "0"}
    assert set(range(61, 70)) < listed
    assert "20 of 70" in " ".join(text.split())


# run.json has the ring's messages by their ends; an asynchronous server's other ends may lie before the recording.
OF_COLLECTIVES = [folder for folder in cpu_samples() if folder.name not in ("ring", "parameter-server")]


@pytest.mark.parametrize("folder", [*OF_COLLECTIVES, *gpu_samples()], ids=lambda f: str(f.relative_to(TRACES)))
def test_the_samples_match_and_take_as_long_as_their_link(folder: Path) -> None:
    run = sample_run(folder)
    table = overlaplab.collectives(run)
    assert table["unmatched"].isna().all()
    assert table["wait_ns"].notna().all()
    own = table[table["rank"] == 0]
    assert run.manifest is not None
    if run.manifest.link is None:
        return
    told = pd.DataFrame(run.manifest.raw["collectives"])
    told = told[told["rank"] == 0].tail(len(own))
    if own["group"].nunique() > 1:  # run.json has them group by group
        own, told = own.sort_values("arrived_ns"), told.sort_values("arrived_ns")
    assert own["bytes"].tolist() == told["bytes"].tolist()
    share = own["transfer_ns"].to_numpy(float) / told["modelled_ns"].to_numpy(float)
    assert np.median(share) == pytest.approx(1, abs=0.05)
    exposed = overlaplab.summary(run)
    assert (exposed["exposed_wait_ns"] + exposed["exposed_transfer_ns"] == exposed["exposed_comm_ns"]).all()
