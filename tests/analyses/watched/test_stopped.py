"""Where a rank of a watched training has stopped."""

from __future__ import annotations

import json
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


def stall(number: int, since_ns: int, *enqueued: int, completed: int | None = None) -> Cells:
    """Two looks, between which nothing was enqueued."""
    looks = (look(STALLED, number, since, *enqueued, completed=completed) for since in (since_ns - 5 * S, since_ns))
    return [cell for each in looks for cell in each]


def steps(count: int) -> Cells:
    return [cell for number in range(count) for cell in step(number, MS)]


def stopped(folder: Path, *ranks: Cells, **header: Any) -> list[list[Any]]:
    rows = watched_stopped(load_watched(write_watched(folder, *ranks, **{"ended": False} | header)))
    return rows.astype(object).where(rows.notna(), None).to_numpy().tolist()  # type: ignore[no-any-return]


def test_a_rank_that_hangs_has_enqueued_less(tmp_path: Path) -> None:
    waits = [*steps(5), *stall(5, 30 * S, 12, 4, completed=10)]
    hangs = [*steps(5), *stall(5, 25 * S, 10, 4, completed=10)]
    assert stopped(tmp_path / "default", waits, waits, hangs) == [[2, 4, True, 25 * S, "default", 10, 4, 11, False]]
    hangs = [*steps(5), *stall(5, 25 * S, 12, 3)]
    assert stopped(tmp_path / "dp", waits, waits, hangs, groups=TWO_GROUPS) == [
        [2, 4, True, 25 * S, "dp", 3, 4, 4, False]
    ]


def test_a_rank_that_was_stopped_tells_no_more(tmp_path: Path) -> None:
    """What it had enqueued is of an earlier step."""
    waits = [*steps(5), *stall(5, 30 * S, 12, completed=11)]
    silent = [*steps(2), *look(STEP_ENDED, 2, 0, 6, completed=6), *steps(5)[2:]]
    expected = [[1, 4, False, None, "default", 6, 1, 12, False]]
    assert stopped(tmp_path / "stopped", waits, silent) == expected
    failed = [*steps(5), *look(FAILED, 5, MS, 12, completed=12)]  # a collective that has failed counts as completed
    assert stopped(tmp_path / "killed", failed, silent) == expected
    assert stopped(tmp_path / "none", waits, steps(5)) == [[1, 4, False, None, None, None, None, None, False]]


def test_all_may_hang(tmp_path: Path) -> None:
    waits = stall(0, 30 * S, 12)
    assert stopped(tmp_path, waits, waits) == [
        [n, None, True, 30 * S, "default", 12, None, None, False] for n in (0, 1)
    ]


def test_what_goes_on_or_has_ended_has_not_stopped(tmp_path: Path) -> None:
    going = [*steps(2), *look(STEP_ENDED, 2, 0, 6), *steps(5)[2:]]
    over = [*steps(4), *stall(4, 30 * S, 9), *steps(5)[4:]]
    assert stopped(tmp_path / "going", going, over) == []
    ahead = [*steps(9), *look(STEP_ENDED, 9, 0, 6)]
    assert stopped(tmp_path / "alone", [*steps(5), *stall(5, 30 * S, 6)], ahead) == []
    failed = [*steps(5), *look(FAILED, 5, MS, 12)]
    assert stopped(tmp_path / "ended", failed, failed, ended=True) == []


def test_ranks_that_go_on_slowly_are_not_stuck(tmp_path: Path) -> None:
    """Looks of different instants differ; what one enqueues between two looks, and steps that are long, go on."""
    going = [*steps(5), *look(STALLED, 5, 10 * S, 400), *look(STALLED, 5, 15 * S, 450)]
    assert stopped(tmp_path / "one", going, [*steps(5), *stall(5, 15 * S, 400)]) == []
    first_look = [*steps(5), *look(STALLED, 5, 12 * S, 399)]
    assert stopped(tmp_path / "first", first_look, [*steps(5), *stall(5, 15 * S, 400)]) == []
    long_steps = [*step(0, 20 * S), *stall(1, 30 * S, 400)]
    assert stopped(tmp_path / "long", long_steps, [*step(0, 20 * S), *stall(1, 31 * S, 399)]) == []
    assert (
        stopped(tmp_path / "over", [*steps(5), *stall(5, 30 * S, 7)], [*steps(5), *stall(5, 30 * S, 8)], ended=True)
        == []
    )


def test_hosts_that_ran_ahead_are_not_blamed(tmp_path: Path) -> None:
    ranks = [[*steps(5), *stall(5, 30 * S, enqueued, completed=10)] for enqueued in (14, 12, 10)]
    assert stopped(tmp_path / "ahead", *ranks) == [[2, 4, True, 30 * S, "default", 10, 4, 11, False]]
    ranks = [[*steps(5), *stall(5, 30 * S, enqueued)] for enqueued in (14, 12, 10)]
    assert stopped(tmp_path / "unknown", *ranks) == [[2, 4, True, 30 * S, "default", 10, 4, 11, False]]


def test_a_rank_that_has_ended_earlier_is_waited_for(tmp_path: Path) -> None:
    waits = [*steps(5), *stall(5, 30 * S, 12, completed=11)]
    folder = write_watched(tmp_path, waits, [*steps(5), *look(STEP_ENDED, 5, 0, 11)], ended=False)
    header = json.loads((folder / "rank1.json").read_text())
    (folder / "rank1.json").write_text(json.dumps(header | {"ended": True}))
    training = load_watched(folder)
    table = watched_stopped(training)
    rows = table.astype(object).where(table.notna(), None).to_numpy().tolist()
    assert rows == [[1, 4, False, None, "default", 11, 4, 12, True]]


def test_damage_is_skipped(tmp_path: Path) -> None:
    """A group that the header does not have, a look without counts, and one that is cut off."""
    unknown = [*steps(5), *stall(5, 30 * S), (int(CellKind.ENQUEUED), 0, 9, 5, 3)]
    assert stopped(tmp_path, unknown, [*steps(5), (int(CellKind.LOOK), 77, 0, 5, 0)]) == [
        [1, 4, False, None, None, None, None, None, False]
    ]
