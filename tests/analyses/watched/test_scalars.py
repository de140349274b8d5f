"""A watched training as numbers for experiment trackers."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.watched import MS, step, write_watched

import overlaplab
from overlaplab.errors import OverlaplabError
from overlaplab.load.watched import CellKind


def training(folder: Path) -> Path:
    """Two ranks, of which rank 1 is late in step 1; step 2 is profiled."""
    ranks = []
    for waits_ms in ((4, 10), (5, 2)):
        times = [{CellKind.EXPOSED_GRADIENTS: ms * MS, CellKind.ALL_REDUCE: ms * MS} for ms in waits_ms]
        ranks.append([*step(0, 100 * MS, times[0]), *step(1, 200 * MS, times[1]), *step(2, 900 * MS, flags=2)])
        ranks[-1] += step(3, 100 * MS)
    return write_watched(folder, *ranks)


def test_all_steps_give_one_number_each_and_none_where_nothing_is_known(tmp_path: Path) -> None:
    figures = overlaplab.scalars(overlaplab.load_watched(training(tmp_path)))
    assert figures == {
        "steps": 3,
        "span_ns": pytest.approx(400 * MS / 3),
        "data_ns": None,
        "forward_ns": None,
        "backward_ns": None,
        "exposed_gradients_ns": 5.25 * MS,
        "exposed_gathers_ns": None,
        "exposed_others_ns": None,
        "exposed_comm_ns": 5.25 * MS,
        "exposed_share": 21 / 600,
        "late_share": 0.5,
    }


def test_steps_have_what_is_known_of_them(tmp_path: Path) -> None:
    assert list(overlaplab.step_scalars(overlaplab.load_watched(training(tmp_path)))) == [
        (0, {"span_ns": 100 * MS, "exposed_comm_ns": 4.5 * MS, "exposed_share": pytest.approx(0.045), "late_ns": MS}),
        (1, {"span_ns": 200 * MS, "exposed_comm_ns": 6 * MS, "exposed_share": pytest.approx(0.03), "late_ns": 8 * MS}),
        (3, {"span_ns": 100 * MS}),
    ]


def test_nothing_gives_nothing_and_a_selection_is_refused(tmp_path: Path) -> None:
    empty = overlaplab.load_watched(write_watched(tmp_path, []))
    figures = overlaplab.scalars(empty)
    assert figures.pop("steps") == 0
    assert set(figures.values()) == {None}
    assert list(overlaplab.step_scalars(empty)) == []
    with pytest.raises(OverlaplabError, match="of all its steps"):
        overlaplab.scalars(empty, overlaplab.Selection(ranks=[0]))
