"""Which runs the opened folder holds, and that no name leads out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlaplab.dashboard.data import open_run
from overlaplab.dashboard.folder import (
    confined_path,
    describe_stamp,
    find_runs,
    read_manifest,
    run_title,
    scan_runs,
    short_words,
    stamp,
)
from overlaplab.errors import OverlaplabError
from overlaplab.findings import links_refused
from overlaplab.manifest import strategy_traits
from overlaplab.traits import TRAITS, Traits


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    """A folder `opened`, and beside it `opened-too` and `outside`, each with a run."""
    for name in ("opened/run", "opened-too/run", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "rank0.json").write_text("[]")
    return tmp_path / "opened"


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../outside",
        "run/../../outside",
        "../opened-too/run",
        "/etc",
        "\\etc",
        "run/",
        "//outside",
        "run\0",
        "link",
        "link/inner",
        "sibling",
    ],
)
def test_names_that_lead_out_are_refused(opened: Path, name: str) -> None:
    (opened / "link").symlink_to(opened.parent / "outside")
    (opened / "sibling").symlink_to(opened.parent / "opened-too" / "run")
    with pytest.raises(OverlaplabError):
        confined_path(opened, name)
    assert isinstance(open_run(opened, name), OverlaplabError)


def test_names_that_stay_inside_are_taken(opened: Path) -> None:
    (opened / "alias").symlink_to(opened / "run")
    assert confined_path(opened, "run") == opened / "run"
    assert confined_path(opened, "alias") == opened / "run"
    assert confined_path(opened, ".") == opened


def test_the_folder_may_itself_be_reached_by_a_link(opened: Path) -> None:
    (opened.parent / "shortcut").symlink_to(opened)
    assert [entry.name for entry in find_runs(opened.parent / "shortcut")] == ["run"]


def test_runs_are_found_three_folders_deep(opened: Path) -> None:
    for name in ("sweep/cap-1", "runs/sweep/cap-25", "a/b/c/too-deep", ".hidden", "empty"):
        (opened / name).mkdir(parents=True)
    for name in (
        "sweep/cap-1/run.json",
        "runs/sweep/cap-25/t.json.gz",
        "a/b/c/too-deep/t.json",
        ".hidden/t.json",
        "top.json",
    ):
        (opened / name).write_text("[]")
    assert [(entry.name, entry.files) for entry in find_runs(opened)] == [
        (".", 1),
        ("run", 1),
        ("runs/sweep/cap-25", 1),
        ("sweep/cap-1", 0),
    ]


def test_links_out_and_fifos_are_no_runs(opened: Path) -> None:
    (opened / "link").symlink_to(opened.parent / "outside")
    (opened / "pipe").mkdir()
    os.mkfifo(opened / "pipe" / "rank0.json")
    assert [entry.name for entry in find_runs(opened)] == ["run"]
    assert scan_runs(opened)[1] == ["link"]


def test_a_link_to_itself_ends(opened: Path) -> None:
    (opened / "loop").symlink_to(opened)
    assert [entry.name for entry in find_runs(opened)] == ["run"]
    assert scan_runs(opened)[1] == []


def test_a_link_to_nothing_but_itself_is_no_folder(opened: Path) -> None:
    (opened / "self").symlink_to("self")
    assert [entry.name for entry in find_runs(opened)] == ["run"]


def test_a_linked_trace_outside_is_refused(opened: Path) -> None:
    (opened / "run" / "rank1.json").symlink_to(opened.parent / "outside" / "rank0.json")
    with pytest.raises(OverlaplabError, match=r"rank1\.json: a link leads out"):
        stamp(opened / "run")


def test_a_manifest_that_would_block_is_refused(opened: Path) -> None:
    os.mkfifo(opened / "run" / "run.json")
    assert "run.json: not a file" in str(open_run(opened, "run"))


def test_the_stamp_changes_with_the_files_and_skips_fifos(opened: Path) -> None:
    run = opened / "run"
    before = stamp(run)
    assert [name for name, _, _ in before] == ["rank0.json"]
    os.mkfifo(run / "pipe.json")
    (run / "notes.txt").write_text("not a trace")
    assert stamp(run) == before
    os.utime(run / "rank0.json", ns=(1, 1))
    assert stamp(run) != before


def test_traits_are_read_from_the_manifest_alone(tmp_path: Path) -> None:
    def told(name: str, text: str) -> Traits | None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
        return strategy_traits(read_manifest(tmp_path, name))

    assert told("good", '{"format_version": 1, "world_size": 2, "strategy": "zero3", "units": []}') == TRAITS["zero3"]
    mine = '{"format_version": 1, "world_size": 2, "strategy": "mine", "traits": {"gathers": "units"}}'
    assert told("mine", mine) == Traits(gathers="units")
    assert told("none", '{"format_version": 1, "world_size": 2, "strategy": "mine"}') is None
    assert told("other", '{"format_version": 1, "world_size": 2, "strategy": 3}') is None
    assert told("newer", '{"format_version": 99, "world_size": 2, "strategy": "zero3"}') is None
    assert told("half", '{"strategy": "zer') is None
    assert read_manifest(tmp_path, "nowhere") is None
    assert read_manifest(tmp_path, "../good") is None
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "run.json").symlink_to(tmp_path / "good" / "run.json")
    assert read_manifest(tmp_path, "linked") is None
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "run.json")
    assert read_manifest(tmp_path, "pipe") is None


def test_refused_links_are_named(opened: Path) -> None:
    assert links_refused([]) is None
    assert links_refused(["caps/cap-1"]) == (
        "Not opened, a link out of this folder: caps/cap-1. Copy the runs here, or open their own folder."
    )
    (opened / "sweep").mkdir()
    for place in range(5):
        (opened / "sweep" / f"cap-{place}").symlink_to(opened.parent / "outside")
    said = "Not opened, links out of this folder: sweep/cap-0, sweep/cap-1, sweep/cap-2 and 2 others."
    assert (links_refused(scan_runs(opened)[1]) or "").startswith(said)


def test_names_are_cut_in_the_middle_unless_they_differ_there() -> None:
    long = "exp/2026-11-27-lr-{}-batch-32-zero3/run"
    names = [".", "bucketed", "a-folder-of-experiments/2026-11-27-zero3", long.format("1e-4"), long.format("3e-4")]
    assert list(short_words(names).values()) == [
        *("(this folder)", "bucketed", "a-folder-of-e…26-11-27-zero3"),
        *(long.format("1e-4"), long.format("3e-4")),
    ]


def test_the_folder_itself_has_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert [run_title(tmp_path / "mine", name) for name in (".", "a/b", "/uploaded 1")] == ["mine", "a/b", "uploaded 1"]


def test_what_there_is_to_read(opened: Path) -> None:
    (opened / "run" / "rank1.json").write_bytes(b" " * 1_500_000)
    (opened / "run" / "run.json").write_text("[]")
    assert describe_stamp(stamp(opened / "run")) == "2 traces, 1.50 MB"
