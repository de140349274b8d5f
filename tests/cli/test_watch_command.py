"""`overlaplab watch`: what it prints of a training, and as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from made.dumped import dump_entry, write_dumps
from made.watched import MS, eventful, hanging, step, write_watched
from schemas import expect_schema

from overlaplab.load.flight_recorder import load_dumps
from overlaplab.load.watched import STALLED, CellKind, load_watched
from overlaplab.report.watched import dumped_terminal
from overlaplab.sections.watched import WatchedTables


def sentences(folder: Path) -> list[str]:
    return [line.replace("\u00a0", " ") for line in WatchedTables(load_watched(folder)).sentences]


def test_a_late_rank_a_slow_link_and_checkpoints_are_told_and_nothing_else(tmp_path: Path) -> None:
    patterns = [
        r"2,000 steps of 2 ranks, [\d.]+ ms each \(median\): 10.0 ms of exposed communication, \d+ % \(10.0 ms",
        r"Rank 1 is the last in 40 % of 60 measured steps, by 8.0\d? ms \(median\): whenever a rank is late,",
        r"From step 1,(199|2\d\d) on steps take 1\d % longer: [\d.]+ ms, until then [\d.]+ ms; exposed communication",
        r"Rank 1 has become late between steps 1,142 and 1,240, by 8.0\d? ms; until then it was not.",
        r"From step 1,(59\d|60\d) on steps take 2\d % longer",
        r"Every 100 steps, from step 99 on, one takes [\d.]+ ms longer \(20 steps\): a kind of its own",
    ]
    for sentence, pattern in zip(sentences(eventful(tmp_path)), patterns, strict=True):
        assert re.match(pattern, sentence), sentence


def test_changing_ranks_and_hardly_any(tmp_path: Path) -> None:
    def told(name: str, *last: range) -> str:
        """The second sentence, where each rank is the last in these of ten steps."""
        cells = [
            [cell for n in range(10) for cell in step(n, 100 * MS, {CellKind.ALL_REDUCE: MS if n in steps else 9 * MS})]
            for steps in last
        ]
        return sentences(write_watched(tmp_path / name, *cells))[1]

    nobody = range(0)
    assert "not always the same one: most often rank 0, in 50 %" in told("changing", range(0, 10, 2), range(1, 10, 2))
    assert told("mostly", range(8), range(8, 10)).endswith("when a rank is late, it is mostly this one.")
    seldom = told("seldom", range(1), nobody)
    assert re.fullmatch(r"Rank 0 is the last in 10 % of 10 measured steps, by [\d.]+ ms \(median\)\.", seldom)
    assert told("never", nobody, nobody).startswith("A rank is rarely late")
    unknown = write_watched(tmp_path / "unknown", step(0, MS), step(0, MS))
    assert sentences(unknown)[0].endswith("how much communication was exposed is unknown.")
    assert sentences(unknown)[1] == "Who is late is unknown: only all-reduces show it."


def test_a_rank_that_has_stopped_is_named(tmp_path: Path) -> None:
    ranks = [[cell for n in range(count) for cell in step(n, MS)] for count in (100, 40)]
    assert sentences(write_watched(tmp_path, *ranks))[1] == "Rank 1 has ended no step after 39; others are at 99."


def test_a_rank_that_has_ended_no_step_is_named(tmp_path: Path) -> None:
    steps = [cell for n in range(60) for cell in step(n, MS)]
    assert sentences(write_watched(tmp_path, steps, []))[1] == "Rank 1 has ended no step; others are at 59."


def test_groups_of_one_description_are_counted_each(tmp_path: Path) -> None:
    groups = [["1", "mesh_tp"], ["2", "mesh_tp"]]
    dumps = write_dumps(tmp_path, *([dump_entry(1, 1, process_group=group)] for group in groups))
    assert next(iter(dumped_terminal(load_dumps(dumps)))) == "2 collectives of 2 groups in the dumps of 2 ranks."


def test_where_a_rank_has_stopped_is_told(tmp_path: Path) -> None:
    assert sentences(hanging(tmp_path / "hangs"))[1] == (
        "Rank 1 has stopped after step 2, for 19 s. The last collective of group default that it has enqueued is 6; the"
        " others wait in 7."
    )
    stalled = [*step(0, MS)]
    for since_s in (15, 20):
        stalled += [(int(CellKind.LOOK), STALLED, 0, 1, since_s * 1000 * MS), (int(CellKind.ENQUEUED), 0, 0, 1, 1234)]
    silent = [*step(0, MS), (int(CellKind.LOOK), 0, 0, 1, 0), (int(CellKind.ENQUEUED), 0, 0, 1, 1230)]
    assert sentences(write_watched(tmp_path / "killed", stalled, silent, ended=False))[1] == (
        "Rank 1 has stopped after step 0, and its process writes no more: it was stopped or killed. The last collective"
        " of group default that it had enqueued by the end of step 0 is 1,230; the others wait in 1,234."
    )
    assert sentences(write_watched(tmp_path / "all", stalled, stalled, ended=False))[1] == (
        "No rank has ended a step after step 0, for 20 s: the last collective of group default that all have enqueued"
        " is 1,234."
    )
    assert sentences(write_watched(tmp_path / "unknown", stalled, step(0, MS), ended=False))[1] == (
        "Rank 1 has stopped after step 0, and its process writes no more: it was stopped or killed; what it had"
        " enqueued is unknown."
    )


def test_recordings_and_notes_are_told(tmp_path: Path, command: Any) -> None:
    write_watched(
        tmp_path,
        step(0, MS),
        recordings=[{"step": 7, "path": "runs/step-7", "reason": "step > 1.3 * median"}],
        notes=["DDP's waits are not seen"],
        world_size=4,
    )
    code, printed, _ = command("watch", tmp_path)
    printed = " ".join(printed.split())
    assert code == 0
    assert "Recorded by itself at step 7: runs/step-7 (step > 1.3 * median)." in printed
    assert "note: DDP's waits are not seen." in printed
    assert "3 ranks of 4 left no file here" in printed


def test_json_fits_its_schema(tmp_path: Path, command: Any) -> None:
    code, printed, _ = command("watch", eventful(tmp_path), "--json")
    document = json.loads(printed)
    expect_schema("watch", document)
    assert (code, document["world_size"], document["ended"]) == (0, 2, True)
    assert [kind["period"] for kind in document["kinds"]] == [None, 100]
    empty = write_watched(tmp_path / "empty", [], [])
    expect_schema("watch", json.loads(command("watch", empty, "--json")[1]))


def test_what_is_no_watched_training_is_one_line(tmp_path: Path, command: Any) -> None:
    code, _, error = command("watch", tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    assert "no watched training" in error


@pytest.mark.parametrize("ended", [True, False])
def test_in_a_terminal_it_follows_until_the_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: bool
) -> None:
    from overlaplab.cli import watch

    write_watched(tmp_path, step(0, MS), ended=ended)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        write_watched(tmp_path, [*step(0, MS), *step(1, MS)], ended=True)

    monkeypatch.setattr(watch.time, "sleep", sleep)
    monkeypatch.setattr(watch.sys.stdout, "isatty", lambda: True)
    watch.watch_command(tmp_path)
    assert slept == ([] if ended else [watch.REFRESH_S])
    assert ("2 steps" in capsys.readouterr().out) == (not ended)
