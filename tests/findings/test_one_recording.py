"""What is said where the traces of a folder are not of one recording."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from made.traces import event, gloo, op, run_of, step, write

from overlaplab import Run, load_run
from overlaplab.findings import run_warnings

Event = dict[str, Any]


def recorded(first: int, at: float, kind: str = "all_reduce", collectives: int = 4) -> list[Event]:
    """Three steps from this number on, and this moment, in each of which a rank communicates."""
    events = [step(first + n, at + 1000 * n, at + 1000 * n + 1000) for n in range(3)] + [op("mm", at, at + 2900)]
    for place in range(3 * collectives):
        start = at + 3000 * place / (3 * collectives) + 50
        events += [event("c10d::" + kind, start - 9, start - 8), gloo(start, start + 100, kind=kind)]
    return events


def of_two(folder: Path, first: list[Event], second: list[Event], world_size: int = 2) -> Run:
    run_of(folder, first, second)
    info = {"rank": 1, "world_size": world_size, "backend": "gloo"}
    write(folder / "rank1.pt.trace.json.gz", second, distributedInfo=info)
    return load_run(folder)


ANOTHER = recorded(100, 90_000_000, "all_gather", 3)


@pytest.mark.parametrize(
    ("second", "world_size", "reason"),
    [
        (recorded(0, 0), 8, "rank 0 is one of 2, and rank 1 one of 8"),
        (ANOTHER, 2, "rank 0 recorded steps 0 to 2, and rank 1 steps 100 to 102"),
        (recorded(0, 90_000_000, "all_gather", 3), 2, "rank 1 was recorded 90 s after rank 0"),
        (recorded(0, 0, "all_gather", 3), 2, "none of rank 1's 9 collectives is like one of the others'"),
    ],
)
def test_traces_of_two_jobs_are_named(tmp_path: Path, second: list[Event], world_size: int, reason: str) -> None:
    warnings = [
        line for line in run_warnings(of_two(tmp_path, recorded(0, 0), second, world_size)) if "one rec" in line
    ]
    assert warnings == [
        f"the traces of ranks 0 and 1 are not of one recording: {reason}. What is compared or matched across them has"
        " no meaning; give each recording a folder of its own"
    ]


def test_all_that_differ_from_the_first_are_in_one_line(tmp_path: Path) -> None:
    run_of(tmp_path, *[recorded(0, 0)] * 12)
    for rank in range(2, 12):
        shutil.copy(tmp_path / "rank1.pt.trace.json.gz", tmp_path / f"rank{rank}.pt.trace.json.gz")
        info = {"rank": rank, "world_size": 12, "backend": "gloo"}
        write(tmp_path / f"rank{rank}.pt.trace.json.gz", recorded(5, 0), distributedInfo=info)
    (line,) = [line for line in run_warnings(load_run(tmp_path)) if "one recording" in line]
    assert line.startswith(
        "the traces of ranks 0, 2, 3, 4, 5, 6, 7, 8, … (11 in all) are not of one recording: rank 0 "
    )


@pytest.mark.parametrize(
    "second",
    [
        recorded(0, 0),
        recorded(1, 0),  # one step later
        recorded(0, 90_000_000),  # its clock is wrong, and the collectives tell by how much
        [op("mm", 0, 5)],
    ],
)
def test_what_may_be_one_recording_is_not_doubted(tmp_path: Path, second: list[Event]) -> None:
    assert not [line for line in run_warnings(of_two(tmp_path, recorded(0, 0), second)) if "one recording" in line]
