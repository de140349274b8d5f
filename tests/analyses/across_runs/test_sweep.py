"""A sweep over bucket_cap_mb: the figures of each cap, and when one of them is the fastest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made.traces import event, op, run_of, step

import overlaplab
from overlaplab import OverlaplabError, Run
from overlaplab.analyses import is_sweep, sweep_links
from overlaplab.analyses.across_runs.tiers import spread
from overlaplab.folders import run_folders

LINK = {"emulated": True, "bandwidth_gbps": 1, "latency_us": 200, "world_size": 2}


def bucketed_step(number: int, at: float, length: float) -> list[dict[str, Any]]:
    """A step of so many µs: compute in its first 60 µs; bucket 0 on the link from 20 to 40, bucket 1 from 50 to 90."""
    return [
        step(number, at, at + length),
        op("mm", at, at + 60),
        event("engine::backward microbatch=0 sync=1", at + 10, at + 60),
        *(
            found
            for index, (start, end) in enumerate([(20, 40), (50, 90)])
            for found in (
                event(f"engine::gradient_ready parameter=w{index}", at + start - 4, at + start - 3),
                event(
                    f"engine::bucket_ready bucket={index} bytes=8 parameters=w{index}", at + start - 3, at + start - 2
                ),
                event(f"engine::bucket_launch bucket={index}", at + start - 2, at + start),
                event(f"engine::launch seq={2 * number + index}", at + start - 2, at + start - 1),
                event(f"engine::comm seq={2 * number + index} kind=all_reduce bytes=8", at + start, at + end, tid=7),
            )
        ),
    ]


def recording(folder: Path, cap: float | None, *lengths: float, **manifest: Any) -> Run:
    events: list[dict[str, Any]] = []
    at = 0.0
    for number, length in enumerate(lengths):
        events += bucketed_step(number, at, length)
        at += length
    return run_of(folder, events, events, manifest={"bucket_cap_mb": cap} | manifest)


def test_recordings_of_a_cap_are_pooled_and_parts_add_up(tmp_path: Path) -> None:
    runs = [
        recording(tmp_path / "cap-25", 25, 400, 400, 400, link=LINK),
        recording(tmp_path / "cap-5", 5, 100, 110, link=LINK),
        recording(tmp_path / "cap-5-2", 5, 120, 200, link=LINK),
    ]
    table = overlaplab.sweep(runs)
    assert table["bucket_cap_mb"].tolist() == [5, 25]
    assert table["runs"].tolist() == [2, 1]
    assert table["steps"].tolist() == [4, 3]
    assert table["buckets"].tolist() == [2, 2]
    assert table["step_ms"].tolist() == pytest.approx([0.115, 0.4])
    assert table["spread_ms"].tolist() == pytest.approx([0.1, 0])
    assert table["lowest_ms"].tolist() == pytest.approx([0.105, 0.4])
    assert table["highest_ms"].tolist() == pytest.approx([0.16, 0.4])
    # Of 530 µs in four steps 4 × 30 are compute only, 4 × 30 hidden, 4 × 30 exposed.
    parts = ["compute_only_ms", "hidden_ms", "exposed_ms", "rest_ms"]
    assert table.loc[0, parts].tolist() == pytest.approx([0.115 * share / 530 for share in (120, 120, 120, 170)])
    assert table[parts].sum(axis="columns").tolist() == pytest.approx(table["step_ms"].tolist())
    assert table["overlap_ratio"].tolist() == [0.5, 0.5]
    assert table["fastest"].tolist() == [True, False]
    assert table["tier"].tolist() == [1, 2]
    assert table["emulated"].tolist() == [True, True]


def test_the_step_nearest_the_median_shows_when_buckets_are_on_the_link(tmp_path: Path) -> None:
    runs = [recording(tmp_path / "a", 5, 100, 130, 200), recording(tmp_path / "b", 25, 100, 100)]
    table = sweep_links(runs)
    assert table["bucket_cap_mb"].tolist() == [5] * 3 + [25] * 3
    assert set(zip(table["path"], table["rank"], table["step"], strict=True)) == {
        (str(tmp_path / "a"), 0, 1),
        (str(tmp_path / "b"), 0, 0),
    }
    shown = table[table["bucket_cap_mb"].eq(5)][["bucket", "bytes", "part", "start_ns", "end_ns"]]
    assert [tuple(row) for row in shown.itertuples(index=False)] == [
        (0, 8, "hidden", 20_000, 40_000),
        (1, 8, "hidden", 50_000, 60_000),
        (1, 8, "exposed", 60_000, 90_000),
    ]


def test_a_damaged_step_is_not_shown_nor_counted(tmp_path: Path) -> None:
    events = [op("mm", 20, 10), *(each for number in range(3) for each in bucketed_step(number, 100 * number, 100))]
    runs = [run_of(tmp_path / str(cap), events, manifest={"bucket_cap_mb": cap}) for cap in (1, 2)]
    assert set(sweep_links(runs)["step"]) == {1}


def test_communication_outside_buckets_is_shown_too(tmp_path: Path) -> None:
    events = [*bucketed_step(0, 0, 100), event("engine::comm seq=9 kind=all_gather bytes=8", 92, 95, tid=7)]
    runs = [run_of(tmp_path / str(cap), events, manifest={"bucket_cap_mb": cap}) for cap in (1, 2)]
    table = sweep_links(runs)
    other = table[table["bucket"].isna()]
    assert other[["part", "start_ns", "end_ns"]].to_numpy().tolist() == [["exposed", 92_000, 95_000]] * 2


def test_what_is_a_sweep(tmp_path: Path) -> None:
    five, again, more = (recording(tmp_path / name, cap, 100) for name, cap in (("a", 5), ("b", 5), ("c", 25)))
    assert is_sweep([five, more])
    assert is_sweep([five, again, more])
    assert not is_sweep([five, again])
    other = recording(tmp_path / "d", 25, 100, first_bucket_mb=1)
    assert not is_sweep([five, other])
    with pytest.raises(OverlaplabError, match=r"no sweep.*differ in first_bucket_mb"):
        overlaplab.sweep([five, other])
    one, two = (recording(tmp_path / f"f{number}", 25, 100, communicators=number) for number in (1, 2))
    assert is_sweep([five, one])  # an older run.json does not have the option, which is 1 by default
    with pytest.raises(OverlaplabError, match=r"no sweep.*differ in communicators"):
        overlaplab.sweep([five, two])
    with pytest.raises(OverlaplabError, match=r"no sweep.*bucket_cap_mb is the same"):
        overlaplab.sweep([five, again])
    foreign = run_of(tmp_path / "e", bucketed_step(0, 0, 100))
    with pytest.raises(OverlaplabError, match=r"no sweep.*some have no run.json"):
        overlaplab.sweep([five, foreign])


def test_a_run_without_steps_is_named(tmp_path: Path) -> None:
    silent = run_of(
        tmp_path / "x", [event("cudaLaunchKernel", 0, 1, cat="cuda_runtime")], manifest={"bucket_cap_mb": 5.0}
    )
    other = run_of(tmp_path / "y", bucketed_step(0, 0, 100), manifest={"bucket_cap_mb": 1.0})
    with pytest.raises(OverlaplabError, match=r"x: no step was measured"):
        overlaplab.sweep([silent, other])


def test_compare_judges_repeats_together(tmp_path: Path) -> None:
    runs = [
        recording(tmp_path / "cap-5", 5, 100, 101, 102),
        recording(tmp_path / "cap-5-2", 5, 100, 101, 102),
        recording(tmp_path / "cap-25", 25, 200, 200, 200),
    ]
    table = overlaplab.compare(runs)
    assert table["fastest"].tolist() == [True, True, False]
    assert table["tier"].tolist() == [1, 1, 2]
    assert table["recording_of"].tolist() == [0, 0, 2]


def test_ranks_of_a_step_count_once() -> None:
    assert spread([np.array([[1.0, 2.0], [1.0, 9.0]])]) == np.inf
    assert spread([np.array([[1.0, 2.0, 3.0], [1.0, 9.0, np.nan]])]) == 8


def test_a_folder_of_runs_stands_for_them(tmp_path: Path) -> None:
    for name in ("cap-25", "cap-5-2", "cap-0.5", "cap-5", "cap-100", ".hidden"):
        run_of(tmp_path / name, bucketed_step(0, 0, 100), manifest={})
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README").write_text("no run")
    names = ["cap-0.5", "cap-5", "cap-5-2", "cap-25", "cap-100"]
    assert run_folders(tmp_path) == [str(tmp_path / name) for name in names]
    for alone in (str(tmp_path / "cap-5"), str(tmp_path / "notes"), "absent", "s3://somewhere/sweep"):
        assert run_folders(alone) == [alone]
    assert [Path(run.path).name for run in overlaplab.load_sweep(tmp_path)] == names
