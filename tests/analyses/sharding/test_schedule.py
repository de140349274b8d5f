"""The schedule of gathered parameters, from the engine's labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.traces import event, gloo, launched, op, run_of, step

import overlaplab
from overlaplab import OverlaplabError
from overlaplab.analyses import scatters, schedule_steps
from overlaplab.findings import schedule_notes
from overlaplab.selection import Selection

Event = dict[str, Any]


def label(text: str, at: float, until: float | None = None, tid: int = 1) -> Event:
    return event(f"engine::{text}", at, at + 0.5 if until is None else until, tid=tid)


def carried(seq: int, at: float, start: float, end: float, kind: str = "all_gather", size: int = 8) -> list[Event]:
    """A collective of an emulated link, launched at `at`."""
    text = f"comm seq={seq} kind={kind} dtype=float32 bytes={size} group=0 link=1Gbps,200us modelled_ns=5"
    return [label(f"launch seq={seq}", at), label(text, start, end, tid=7)]


def of(unit: str, phase: str = "forward", microbatch: int = 0) -> str:
    return f"unit={unit} phase={phase} microbatch={microbatch}"


def gather(where: str, seq: int, at: float, start: float, end: float, size: int = 8) -> list[Event]:
    return [label(f"gather_launch {where} bytes={size}", at, at + 2), *carried(seq, at + 1, start, end)]


def wait(where: str, at: float, until: float) -> Event:
    return label(f"gather_wait {where}", at, until)


def use(where: str, first: float, last: float) -> list[Event]:
    return [label(f"first_use {where}", first), label(f"last_use {where}", last)]


def free(where: str, at: float, size: int = 8) -> Event:
    return label(f"free {where} bytes={size}", at)


def whole(where: str, seq: int, at: float, size: int = 8) -> list[Event]:
    """A gather, its wait, use and free within 10 µs."""
    return [
        *gather(where, seq, at, at + 2, at + 4, size),
        wait(where, at + 3, at + 5),
        *use(where, at + 6, at + 8),
        free(where, at + 9, size),
    ]


def rows(path: Path, events: list[Event], **chosen: Any) -> list[dict[str, Any]]:
    table = overlaplab.schedule(run_of(path, events), **chosen)
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]


def test_a_gather_from_its_launch_to_its_free(tmp_path: Path) -> None:
    where = of("layers.3")
    events = [
        step(3, 5, 100),
        *gather(where, 0, 10, 14, 30, size=64),
        wait(where, 20, 31),
        *use(where, 33, 40),
        free(where, 41, size=64),
    ]
    assert rows(tmp_path, events) == [
        {
            "rank": 0,
            "step": 3,
            "unit": "layers.3",
            "layer": 3,
            "microbatch": 0,
            "phase": "forward",
            "gather_launch_ns": 5_000,
            "gather_start_ns": 9_000,
            "gather_end_ns": 25_000,
            "first_use_ns": 28_000,
            "last_use_ns": 35_000,
            "backward_first_use_ns": None,
            "backward_last_use_ns": None,
            "free_ns": 36_000,
            "free_phase": "forward",
            "resharded_bytes": 0,
            "resharded_until_ns": None,
            "wait_ns": 10_000,
            "bytes": 64,
            "held_ns": 5_000,
            "source": "engine",
        }
    ]


def test_a_unit_that_is_kept_is_used_in_both_passes(tmp_path: Path) -> None:
    forward, backward = of("layers.7"), of("layers.7", "backward")
    events = [
        step(3, 0, 100),
        *gather(forward, 0, 10, 14, 30),
        wait(forward, 20, 30),
        *use(forward, 33, 40),
        *use(backward, 50, 60),
        free(backward, 61),
    ]
    (row,) = rows(tmp_path, events)
    assert (row["phase"], row["free_phase"], row["free_ns"]) == ("forward", "backward", 61_000)
    assert (row["first_use_ns"], row["last_use_ns"]) == (33_000, 40_000)
    assert (row["backward_first_use_ns"], row["backward_last_use_ns"]) == (50_000, 60_000)


def test_a_unit_gathered_once_and_used_twice_counts_from_first_to_last(tmp_path: Path) -> None:
    """As an embedding that is tied to the head."""
    where = of("embedding")
    events = [
        step(3, 0, 100),
        *gather(where, 0, 10, 14, 30),
        wait(where, 20, 30),
        *use(where, 33, 40),
        *use(where, 50, 60),
        free(where, 61),
    ]
    (row,) = rows(tmp_path, events)
    assert (row["first_use_ns"], row["last_use_ns"], row["layer"]) == (33_000, 60_000, None)


def test_prefetched_gathers_of_one_unit_keep_their_own_events(tmp_path: Path) -> None:
    """A module used twice in a row: its second gather is launched while it is still held for the first use."""
    where = of("layers.0")
    events = [
        step(3, 0, 100),
        *gather(where, 0, 1, 2, 4),
        *gather(where, 1, 5, 6, 20),
        wait(where, 8, 8.5),
        *use(where, 9, 10),
        free(where, 11),
        wait(where, 12, 20),
        *use(where, 21, 30),
        free(where, 31),
    ]
    first, second = rows(tmp_path, events)
    assert [row["wait_ns"] for row in (first, second)] == [0, 8_000]
    assert [row["free_ns"] for row in (first, second)] == [11_000, 31_000]
    assert [row["first_use_ns"] for row in (first, second)] == [9_000, 21_000]


def test_the_link_may_end_after_the_wait(tmp_path: Path) -> None:
    """The link's thread closes its label after the waiting thread has gone on."""
    where = of("layers.0")
    events = [step(3, 0, 100), *gather(where, 0, 10, 14, 30), wait(where, 20, 29)]
    assert rows(tmp_path, events)[0]["wait_ns"] == 9_000


@pytest.mark.parametrize(
    ("events", "known"),
    [
        ([], {}),
        ([wait(of("a"), 5, 9)], {"wait_ns": 4_000}),
        ([*use(of("a"), 5, 9)], {"first_use_ns": 5_000, "last_use_ns": 9_000}),
        ([free(of("a"), 9)], {"free_ns": 9_000, "free_phase": "forward"}),
        ([free(of("b"), 9), free(of("a", microbatch=1), 9)], {}),
        ([*use(of("a", "backward"), 5, 9)], {"backward_first_use_ns": 5_000, "backward_last_use_ns": 9_000}),
        ([label("free unit=a phase=forward microbatch=x bytes=8", 9), label("gather_wait unit=a", 4)], {}),
    ],
)
def test_what_left_no_label_is_null(tmp_path: Path, events: list[Event], known: dict[str, Any]) -> None:
    alone = label(f"gather_launch {of('a')} bytes=8", 1, 2)
    (row,) = rows(tmp_path, [step(3, 0, 100), alone, *events, op("mm", 90, 91)])
    told = {"rank", "step", "unit", "microbatch", "phase", "gather_launch_ns", "bytes", "held_ns", "source"}
    told.add("resharded_bytes")
    assert {key: value for key, value in row.items() if value is not None and key not in told} == known


def test_a_lost_free_costs_its_own_gather_alone(tmp_path: Path) -> None:
    lost = [e for e in whole(of("a"), 0, 10) if "free" not in e["name"]]
    first, second = rows(tmp_path, [step(3, 0, 100), *lost, *whole(of("a"), 1, 30)])
    assert (first["free_ns"], first["last_use_ns"]) == (None, 18_000)
    assert (second["free_ns"], second["first_use_ns"]) == (39_000, 36_000)


def test_a_border_of_steps_within_a_gather_leaves_nulls(tmp_path: Path) -> None:
    events = [step(3, 0, 14), step(4, 14, 100), *whole(of("a"), 0, 10), *whole(of("a"), 1, 30)]
    first, second = rows(tmp_path, events)
    assert [(row["step"], row["free_ns"], row["first_use_ns"]) for row in (first, second)] == [
        (3, None, None),
        (4, 25_000, 22_000),
    ]
    (counted, _) = schedule_steps(overlaplab.schedule(run_of(tmp_path / "again", events))).to_dict("records")
    assert (counted["gathers"], counted["frees"]) == (1, 0)


def test_counts_are_those_of_the_events(tmp_path: Path) -> None:
    """Seven gathers of two layers, one of which was never freed, over two microbatches."""
    seen = [("layers.0", "forward", 0), ("layers.1", "forward", 0), ("layers.0", "backward", 0), ("head", "forward", 0)]
    seen += [("layers.0", "forward", 1), ("layers.0", "backward", 1), ("layers.1", "backward", 1)]
    events = [step(3, 0, 100)]
    for i, where in enumerate(seen):
        events += whole(of(*where), i, 1 + 10 * i)
    events = [e for e in events if e["name"] != f"engine::free {of(*seen[-1])} bytes=8"]
    (row,) = schedule_steps(overlaplab.schedule(run_of(tmp_path, events))).to_dict("records")
    assert row == {
        "rank": 0,
        "step": 3,
        "microbatches": 2,
        "gathers": 7,
        "frees": 6,
        "partial_frees": 0,
        "layer_gathers": 6,
        "layer_frees": 5,
        "forward_layer_gathers": 3,
        "backward_layer_gathers": 3,
        "peak_gathered_bytes": 8,
        "peak_ns": 1_000,
        "peak_layers": 1,
        "wait_ns": 7_000,
    }


def test_on_a_gpu_times_are_the_devices(tmp_path: Path) -> None:
    where = of("layers.0")
    events = [
        step(3, 0, 100),
        *launched("gemm", 4, 100, 200, correlation=1),
        label(f"gather_launch {where} bytes=8", 10, 14),
        event("engine::comm seq=0 kind=all_gather dtype=float32 bytes=8 group=0", 11, 13),
        *launched("ncclDevKernel_AllGather", 12, 150, 260, stream=9, correlation=2),
        wait(where, 20, 21),
        label(f"first_use {where}", 22),
        *launched("gemm", 25, 260, 300, correlation=3),
        label(f"last_use {where}", 30),
        free(where, 32),
        *launched("gemm", 40, 300, 350, correlation=4),
    ]
    (row,) = overlaplab.schedule(run_of(tmp_path, events, backend="nccl")).to_dict("records")
    times = (
        "gather_launch_ns",
        "held_ns",
        "gather_start_ns",
        "gather_end_ns",
        "first_use_ns",
        "last_use_ns",
        "free_ns",
    )
    assert [row[name] // 1000 for name in times] == [-90, 50, 50, 160, 160, 200, 200]
    assert row["wait_ns"] == 60_000


@pytest.mark.parametrize(
    ("asked", "computed", "gathered", "waited"),
    [
        (20, 200, 260, 60),  # the stream had computed until then
        (230, 200, 260, 30),  # the stream stood still until the host asked
        (20, 200, 190, 0),  # it was there before
    ],
)
def test_on_a_gpu_the_wait_is_what_the_computation_before_does_not_hide(
    tmp_path: Path, asked: float, computed: float, gathered: float, waited: float
) -> None:
    where = of("layers.0")
    events = [
        step(3, 0, 300),
        *launched("gemm", 4, 100, computed, correlation=1),
        label(f"gather_launch {where} bytes=8", 10, 14),
        *launched("ncclDevKernel_AllGather", 12, 150, gathered, stream=9, correlation=2),
        wait(where, asked, asked + 1),
        *launched("gemm", 250, 300, 350, correlation=3),
    ]
    (row,) = overlaplab.schedule(run_of(tmp_path, events, backend="nccl")).to_dict("records")
    assert row["wait_ns"] == waited * 1000


def test_on_a_gpu_nothing_follows_the_last_use(tmp_path: Path) -> None:
    where = of("layers.0")
    events = [step(3, 0, 300), *launched("gemm", 4, 100, 200, correlation=1), *whole(where, 0, 10)]
    (row,) = overlaplab.schedule(run_of(tmp_path, events, backend="nccl")).to_dict("records")
    assert pd.isna(row["first_use_ns"])
    assert row["last_use_ns"] == 100_000


def test_plain_gloo_pairs_collectives_in_order_of_launch(tmp_path: Path) -> None:
    """The first collective was launched before the recording began, like the last parameter gathers of zero1."""
    events = [step(3, 0, 100), gloo(1, 3, kind="all_gather"), gloo(2, 5, kind="all_gather", tid=8)]
    for at, start, end in [(10, 12, 30), (20, 24, 28)]:
        events += [
            label(f"gather_launch {of('a')} bytes=8", at, at + 4),
            label("collective seq=0 kind=all_gather dtype=float32 bytes=8 group=0", at + 1, at + 3),
            event("c10d::_allgather_base_", at + 1.5, at + 2),
            gloo(start, end, tid=8, kind="all_gather"),
        ]
    found = rows(tmp_path, events)
    assert [(r["gather_start_ns"], r["gather_end_ns"]) for r in found] == [(12_000, 30_000), (24_000, 28_000)]


def test_a_call_whose_collective_was_not_recorded_has_none(tmp_path: Path) -> None:
    events = [step(3, 0, 100)]
    for at, ran in [(10, gloo(12, 14)), (20, None)]:
        events += [
            label(f"gather_launch {of('a')} bytes=8", at, at + 4),
            event("c10d::_allgather_base_", at + 1.5, at + 2),
        ]
        events += [ran] if ran else []
    assert [row["gather_end_ns"] for row in rows(tmp_path, events)] == [14_000, None]


def test_scatters(tmp_path: Path) -> None:
    events = [
        step(3, 5, 100),
        label("scatter_launch unit=layers.1 microbatch=1 bytes=64", 10, 13),
        *carried(0, 11, 15, 30, kind="reduce_scatter", size=64),
        label("scatter_done unit=layers.1 microbatch=1", 31),
        label("scatter_launch unit=a%20b microbatch=1 bytes=32", 40, 43),
    ]
    table = scatters(run_of(tmp_path, events))
    assert [{k: None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")] == [
        {
            "rank": 0,
            "step": 3,
            "unit": unit,
            "layer": layer,
            "microbatch": 1,
            "launch_ns": launch,
            "start_ns": start,
            "end_ns": end,
            "bytes": size,
        }
        for unit, layer, launch, start, end, size in [
            ("layers.1", 1, 5_000, 10_000, 25_000, 64),
            ("a b", None, 35_000, None, None, 32),
        ]
    ]


def test_ranks_and_steps_are_chosen(tmp_path: Path) -> None:
    events = [step(3, 0, 20), step(4, 20, 40), *whole(of("a"), 0, 1), *whole(of("a"), 1, 21)]
    run = run_of(tmp_path, events, events)
    assert overlaplab.schedule(run)[["rank", "step"]].to_numpy().tolist() == [[0, 3], [0, 4], [1, 3], [1, 4]]
    assert overlaplab.schedule(run, Selection(ranks=[1], steps=[4]))[["rank", "step"]].to_numpy().tolist() == [[1, 4]]
    assert overlaplab.schedule(run, Selection(skip_steps=1))["step"].tolist() == [4, 4]
    with pytest.raises(OverlaplabError, match="no step 9"):
        overlaplab.schedule(run, Selection(steps=[9]))


def test_the_schedule_is_empty_where_nothing_is_gathered_or_recorded(tmp_path: Path) -> None:
    table = overlaplab.schedule(run_of(tmp_path / "a", [step(3, 0, 9), op("mm", 1, 2)]))
    assert len(table) == len(schedule_steps(table)) == 0
    assert table.dtypes.astype(str)["free_ns"] == "Int64"
    assert "no gathers were found" in schedule_notes(table)[0]
    events = [step(3, 0, 30), *whole(of("a"), 0, 1)]
    assert len(overlaplab.schedule(run_of(tmp_path / "b", events, backend="nccl"))) == 0
    assert schedule_notes(overlaplab.schedule(run_of(tmp_path / "c", events))) == ()


def test_labels_mirrored_on_a_gpu_are_ignored(tmp_path: Path) -> None:
    events = whole(of("a"), 0, 10)
    mirrored = [e | {"cat": "gpu_user_annotation", "ts": e["ts"] + 20} for e in events]
    assert len(rows(tmp_path, [step(3, 0, 90), *events, *mirrored])) == 1
