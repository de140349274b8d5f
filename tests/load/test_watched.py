"""Reading what a watch has written, whole, torn or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made.watched import write_watched

from overlaplab.analyses.watched.steps import watched_bursts, watched_steps
from overlaplab.errors import OverlaplabError
from overlaplab.load.watched import CELL, MAX_VALUE_NS, load_watched

HEADER: dict[str, Any] = {
    "format": "overlaplab-watch",
    "version": 1,
    "rank": 0,
    "world_size": 1,
    "started_unix_ns": 0,
    "every": 100,
    "burst": 3,
}


def write(folder: Path, cells: bytes, rank: int = 0, **header: Any) -> Path:
    (folder / f"rank{rank}.json").write_text(json.dumps(HEADER | {"rank": rank} | header))
    (folder / f"rank{rank}.cells").write_bytes(cells)
    return folder


def packed(*rows: tuple[int, int, int, int, int]) -> bytes:
    return np.array(list(rows), CELL).tobytes()


def listed(column: pd.Series[Any]) -> list[int | None]:
    return [None if pd.isna(value) else int(value) for value in column]


def bursts(folder: Path) -> pd.DataFrame:
    watched = load_watched(folder)
    return watched_bursts(watched, watched_steps(watched))


WHOLE = packed((1, 1, 0, 0, 100), (5, 0, 0, 0, 7), (1, 0, 0, 1, 200))


@pytest.mark.parametrize("lost", range(17))
def test_a_torn_last_cell_is_dropped(tmp_path: Path, lost: int) -> None:
    write(tmp_path, WHOLE[: len(WHOLE) - lost])
    assert watched_steps(load_watched(tmp_path))["span_ns"].tolist() == ([100, 200] if lost == 0 else [100])


def test_what_has_no_cell_is_unknown_and_what_comes_twice_adds_up(tmp_path: Path) -> None:
    cells = packed((1, 1, 0, 0, 100), (5, 0, 0, 0, 7), (5, 0, 0, 0, 8), (6, 0, 0, 0, 0), (1, 1, 0, 1, 100))
    steps = bursts(write(tmp_path, cells))
    assert listed(steps["exposed_gradients_ns"]) == [15, None]
    assert listed(steps["exposed_gathers_ns"]) == [0, None]
    assert listed(steps["exposed_comm_ns"]) == [15, None]


def test_of_ddp_gradients_are_unknown_without_its_own_times(tmp_path: Path) -> None:
    cells = packed((1, 1, 0, 0, 100), (5, 0, 0, 0, 7), (6, 0, 0, 0, 1), (1, 1, 0, 1, 100), (10, 0, 0, 1, 9))
    steps = bursts(write(tmp_path, cells, ddp=1))
    assert listed(steps["exposed_gradients_ns"]) == [None, 9]
    assert listed(steps["exposed_comm_ns"]) == [None, 9]


def test_unknown_kinds_impossible_times_and_unknown_steps_are_left_out(tmp_path: Path) -> None:
    cells = packed(
        *((200, 255, 9, 9, 9), (1, 0, 0, 5, 100), (2, 0, 0, 5, -1), (2, 0, 0, 6, 5), (2, 0, 0, 4, 5)),
        *((2, 0, 0, 5, MAX_VALUE_NS + 1), (1, 0, 0, 5, 999)),
    )
    steps = watched_steps(load_watched(write(tmp_path, cells)))
    assert steps[["step", "span_ns"]].to_numpy().tolist() == [[5, 100]]
    assert steps["data_ns"].isna().all()


def test_ranks_may_be_missing_or_have_written_nothing(tmp_path: Path) -> None:
    write(tmp_path, WHOLE, rank=10, world_size=16)
    write(tmp_path, b"", rank=2, world_size=16)
    (tmp_path / "rank2.cells").unlink()
    watched = load_watched(tmp_path)
    assert ([rank.header.rank for rank in watched.ranks], watched.world_size) == ([2, 10], 16)
    assert watched_steps(watched)["rank"].tolist() == [10, 10]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not the header"),
        ('{"format": "overlaplab-watch"', "not the header"),
        ("[1]", "not the header"),
        (json.dumps(HEADER | {"rank": "x"}), "not the header"),
        (json.dumps(HEADER | {"version": 2}), "version 2; this overlaplab reads version 1"),
        (json.dumps(HEADER | {"format": "other"}), "of format 'other'"),
        (json.dumps(HEADER | {"rank": 3}), "is of rank 3 of 1"),
        (json.dumps(HEADER | {"world_size": 0}), "is of rank 0 of 0"),
        (json.dumps(HEADER | {"world_size": 2**40}), "not the header"),
        ('{"x": ' + "[" * 100_000, "not the header"),
        ('{"format": "\udcff"}', "not the header"),
    ],
)
def test_a_damaged_header_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "rank0.json").write_text(text, errors="surrogateescape")
    with pytest.raises(OverlaplabError, match=complaint) as raised:
        load_watched(tmp_path)
    assert "rank0.json" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    write_watched(tmp_path, [])
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(OverlaplabError, match=r"rank0.json: cannot be read \(Permission denied\)"):
        load_watched(tmp_path)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OverlaplabError, match="no watched training"):
        load_watched(tmp_path)
    with pytest.raises(OverlaplabError, match="not a folder"):
        load_watched(tmp_path / "none")
