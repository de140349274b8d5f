"""Who was late in a watched training."""

from __future__ import annotations

from pathlib import Path

from made.watched import MS, Cells, step, write_watched

from overlaplab import analyses
from overlaplab.load.watched import CellKind, load_watched

GROUP = int(CellKind.ALL_REDUCE)


def late(folder: Path) -> list[list[object]]:
    watched = load_watched(folder)
    table = analyses.watched_late(watched, analyses.watched_step_times(analyses.watched_steps(watched)))
    return table[["step", "group", "late_rank", "late_ns", "late"]].to_numpy().tolist()  # type: ignore[no-any-return]


def test_the_last_is_whose_all_reduce_is_shortest(tmp_path: Path) -> None:
    ranks = [step(7, 100 * MS, {CellKind.ALL_REDUCE: took}) for took in (20 * MS, 5 * MS, 15 * MS)]
    assert late(write_watched(tmp_path, *ranks)) == [[7, "0", 1, 15 * MS, True]]


def test_the_all_reduce_with_the_largest_difference_tells(tmp_path: Path) -> None:
    def cells(*durations: int) -> Cells:
        return [*step(0, 100 * MS, {}), *((GROUP, 0, 0, number, ns) for number, ns in enumerate(durations))]

    assert late(write_watched(tmp_path, cells(5 * MS, 9 * MS, MS), cells(4 * MS, 2 * MS, MS))) == [
        [0, "0", 1, 7 * MS, True]
    ]


def test_ddp_counts_as_one_all_reduce_which_is_told_a_step_later(tmp_path: Path) -> None:
    def cells(duration: int) -> Cells:
        return [*step(0, 100 * MS, {}), *step(1, 100 * MS), (int(CellKind.DDP_COMMUNICATION), 0, 0, 0, duration)]

    assert late(write_watched(tmp_path, cells(9 * MS), cells(30 * MS))) == [[0, "0", 0, 21 * MS, True]]


def test_little_is_not_late(tmp_path: Path) -> None:
    ranks = [step(0, 10 * MS, {CellKind.ALL_REDUCE: took}) for took in (1_900_000, 1_000_000)]
    assert late(write_watched(tmp_path / "short", *ranks)) == [[0, "0", 1, 900_000, False]]
    ranks = [step(0, 1000 * MS, {CellKind.ALL_REDUCE: took}) for took in (20 * MS, MS)]
    assert late(write_watched(tmp_path / "long", *ranks)) == [[0, "0", 1, 19 * MS, False]]


def test_without_all_ranks_nothing_is_told(tmp_path: Path) -> None:
    known, unknown = step(0, 100 * MS, {CellKind.ALL_REDUCE: MS}), step(0, 100 * MS, {})
    assert late(write_watched(tmp_path / "unknown", known, unknown)) == []
    write_watched(tmp_path / "missing", known, known)
    (tmp_path / "missing" / "rank1.json").unlink()
    assert late(tmp_path / "missing") == []
    assert late(write_watched(tmp_path / "none", [], [])) == []


def test_groups_are_joined_by_name_and_members(tmp_path: Path) -> None:
    took = [9 * MS, 2 * MS, 3 * MS, 8 * MS]
    ranks = [step(0, 100 * MS, {CellKind.ALL_REDUCE: ns}) for ns in took]
    write_watched(tmp_path, *ranks)
    for rank in range(4):
        header = (tmp_path / f"rank{rank}.json").read_text()
        members = "[0, 1]" if rank < 2 else "[2, 3]"
        (tmp_path / f"rank{rank}.json").write_text(header.replace("[0, 1, 2, 3]", members))
    assert late(tmp_path) == [[0, "0", 1, 7 * MS, True], [0, "0", 2, 5 * MS, True]]


def test_cells_that_name_no_group_or_no_step_are_left_out(tmp_path: Path) -> None:
    before: Cells = [(GROUP, 0, 0, 0, MS)]
    nowhere: Cells = [*step(0, 100 * MS, {}), (GROUP, 0, 7, 0, MS)]
    assert late(write_watched(tmp_path, before, nowhere)) == []
