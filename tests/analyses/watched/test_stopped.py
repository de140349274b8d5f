"""Where a rank of a watched training has stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made.watched import MS, Cells, step, write_watched

from overlaplab.analyses import watched_stopped
from overlaplab.load.watched import FAILED, STALLED, STEP_ENDED, CellKind, load_watched

S = 1000 * MS
TWO_GROUPS = [{"name": "0", "ranks": [0, 1, 2]}, {"name": "3", "description": "dp", "ranks": [0, 1, 2]}]


def look(why: int, number: int, since_ns: int, *enqueued: int, completed: int | None = None) -> Cells:
    """A look while this step is under way; the groups have enqueued so many, the first has completed so many."""
    cells = [(int(CellKind.LOOK), why, 0, number, since_ns)]
    cells += [(int(CellKind.ENQUEUED), 0, group, number, count) for group, count in enumerate(enqueued)]
    return cells if completed is None else [*cells, (int(CellKind.COMPLETED), 0, 0, number, completed)]


def steps(count: int) -> Cells:
    return [cell for number in range(count) for cell in step(number, MS)]


def stopped(folder: Path, *ranks: Cells, **header: Any) -> list[list[Any]]:
    rows = watched_stopped(load_watched(write_watched(folder, *ranks, **{"ended": False} | header)))
    return rows.astype(object).where(rows.notna(), None).to_numpy().tolist()  # type: ignore[no-any-return]


def test_a_rank_that_hangs_has_enqueued_less(tmp_path: Path) -> None:
    waits = [*steps(5), *look(STALLED, 5, 30 * S, 12, 4, completed=10)]
    hangs = [*steps(5), *look(STALLED, 5, 25 * S, 10, 4, completed=10)]
    assert stopped(tmp_path / "default", waits, waits, hangs) == [[2, 4, True, 25 * S, "default", 10, 4, 11]]
    hangs = [*steps(5), *look(STALLED, 5, 25 * S, 12, 3)]
    assert stopped(tmp_path / "dp", waits, waits, hangs, groups=TWO_GROUPS) == [[2, 4, True, 25 * S, "dp", 3, 4, 4]]


def test_a_rank_that_was_stopped_tells_no_more(tmp_path: Path) -> None:
    """What it had enqueued is of an earlier step."""
    waits = [*steps(5), *look(STALLED, 5, 30 * S, 12, completed=11)]
    silent = [*steps(2), *look(STEP_ENDED, 2, 0, 6, completed=6), *steps(5)[2:]]
    expected = [[1, 4, False, None, "default", 6, 1, 12]]
    assert stopped(tmp_path / "stopped", waits, silent) == expected
    failed = [*steps(5), *look(FAILED, 5, MS, 12, completed=12)]  # a collective that has failed counts as completed
    assert stopped(tmp_path / "killed", failed, silent) == expected
    assert stopped(tmp_path / "none", waits, steps(5)) == [[1, 4, False, None, None, None, None, None]]


def test_all_may_hang(tmp_path: Path) -> None:
    waits = look(STALLED, 0, 30 * S, 12)
    assert stopped(tmp_path, waits, waits) == [[n, None, True, 30 * S, "default", 12, None, None] for n in (0, 1)]


def test_what_goes_on_or_has_ended_has_not_stopped(tmp_path: Path) -> None:
    going = [*steps(2), *look(STEP_ENDED, 2, 0, 6), *steps(5)[2:]]
    over = [*steps(4), *look(STALLED, 4, 30 * S, 9), *steps(5)[4:]]
    assert stopped(tmp_path / "going", going, over) == []
    ahead = [*steps(9), *look(STEP_ENDED, 9, 0, 6)]
    assert stopped(tmp_path / "alone", [*steps(5), *look(STALLED, 5, 30 * S, 6)], ahead) == []
    failed = [*steps(5), *look(FAILED, 5, MS, 12)]
    assert stopped(tmp_path / "ended", failed, failed, ended=True) == []


def test_damage_is_skipped(tmp_path: Path) -> None:
    """A group that the header does not have, a look without counts, and one that is cut off."""
    unknown = [*steps(5), *look(STALLED, 5, 30 * S), (int(CellKind.ENQUEUED), 0, 9, 5, 3)]
    assert stopped(tmp_path, unknown, [*steps(5), (int(CellKind.LOOK), 77, 0, 5, 0)]) == [
        [1, 4, False, None, None, None, None, None]
    ]
