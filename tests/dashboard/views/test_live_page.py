"""The Live page: a watched training, alone or beside its run; what is garbled is one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from browsing.app_page import turn
from made.runs import engine_events
from made.traces import run_of
from made.watched import MS, eventful, step, with_recording, write_watched
from streamlit.testing.v1 import AppTest

from overlaplab.dashboard.folder import Entry, find_runs, recorded_name, watched_beside
from overlaplab.load.watched import load_watched
from overlaplab.sections.watched import WatchedTables

Open = Callable[..., AppTest]


def words(app: AppTest) -> list[str]:
    return [text.value for text in app.main.text]


def test_a_folder_that_was_only_watched_opens_live(opened: Open, tmp_path: Path) -> None:
    eventful(tmp_path / "live")
    app = opened(tmp_path)
    assert [title.value for title in app.title] == ["Live"]
    assert app.query_params["run"] == "live"
    assert app.selectbox(key="run_picker").options == ["live (watched)"]
    told = WatchedTables(load_watched(tmp_path / "live")).sentences
    assert words(app)[1 : 1 + len(told)] == told
    assert "2 ranks · step 2,000 of a training that has ended · updated" in words(app)[0]
    assert len(app.get("vega_lite_chart")) == 3


def test_the_opened_folder_itself_may_be_it(opened: Open, tmp_path: Path) -> None:
    app = opened(eventful(tmp_path))
    assert [title.value for title in app.title] == ["Live"]
    assert words(app)[0].startswith("(this folder) · 2 ranks")


def test_a_run_beside_what_was_watched_has_both(opened: Open, tmp_path: Path) -> None:
    run_of(tmp_path / "mine", engine_events(), engine_events(), manifest={})
    eventful(tmp_path / "mine" / "watch")
    app = opened(tmp_path, run="mine")
    assert [title.value for title in app.title] == ["Summary"]
    app.switch_page("views/live.py").run()
    assert words(app)[0].startswith("mine/watch · 2 ranks")


def test_watched_files_in_a_runs_own_folder_are_no_traces(opened: Open, tmp_path: Path) -> None:
    run_of(tmp_path / "mine", engine_events(), engine_events(), manifest={})
    for file in eventful(tmp_path / "watched").iterdir():
        shutil.move(file, tmp_path / "mine" / file.name)
    assert find_runs(tmp_path) == [Entry(name="mine", files=2, manifest=True, watched=True)]
    app = opened(tmp_path, run="mine")
    assert [title.value for title in app.title] == ["Summary"]
    assert not app.error


def test_other_pages_say_that_there_is_no_recording(opened: Open, tmp_path: Path) -> None:
    eventful(tmp_path / "live")
    app = opened(tmp_path)
    app.switch_page("views/buckets.py").run()
    assert [title.value for title in app.title] == ["Not recorded"]
    assert "no traces" in app.info[0].value


def test_live_of_a_run_that_was_not_watched_says_so(opened: Open, tmp_path: Path) -> None:
    run_of(tmp_path / "mine", engine_events(), engine_events(), manifest={})
    app = opened(tmp_path, "live", "mine")
    assert "was not watched" in app.info[0].value


def test_a_recording_is_one_click_away_or_named(opened: Open, tmp_path: Path) -> None:
    run_of(tmp_path / "mine" / "step-1203", engine_events(), engine_events(), manifest={})
    with_recording(eventful(tmp_path / "mine" / "watch"), "/elsewhere/mine/step-1203")
    app = opened(tmp_path, run="mine/watch")
    turn(app.button(key="recording_1203").click().run())
    assert not app.exception
    assert [title.value for title in app.title] == ["Summary"]
    assert app.query_params["run"] == "mine/step-1203"

    shutil.rmtree(tmp_path / "mine" / "step-1203")
    app = opened(tmp_path, run="mine/watch")
    assert "step 1,203 (/elsewhere/mine/step-1203, not in the opened folder)" in words(app)


def test_recordings_are_found_beside_or_by_the_end_of_their_path() -> None:
    entries = [Entry(name=name, files=2) for name in ("a/step-7", "b/step-7", "c/step-9")]
    assert recorded_name("/x/y/step-7", "b/watch", entries) == "b/step-7"
    assert recorded_name("/x/c/step-9", "live", entries) == "c/step-9"
    assert recorded_name("../../etc/passwd", "live", entries) is None
    assert recorded_name("", "live", entries) is None
    watched = [Entry(name="a/watch", files=0, watched=True), Entry(name="a", files=2)]
    assert [watched_beside(name, watched) for name in ("a", "a/watch", "b")] == ["a/watch", "a/watch", None]


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("rank0.json", b"{<script>pwned()</script>", "not the header of a watched rank"),
        ("rank0.json", b'{"format": "other"}', "not the header of a watched rank"),
        ("rank1.json", b"\xff\xfe\x00", "not the header of a watched rank"),
    ],
)
def test_what_is_garbled_is_one_line(opened: Open, tmp_path: Path, file: str, content: bytes, complaint: str) -> None:
    folder = eventful(tmp_path / "live", steps=200)
    (folder / file).write_bytes(content)
    app = opened(tmp_path)
    (line,) = [code.value for code in app.main.code]
    assert complaint in line
    assert file in line
    assert "\n" not in line
    assert not app.get("vega_lite_chart")


def test_garbled_cells_are_left_out(opened: Open, tmp_path: Path) -> None:
    folder = eventful(tmp_path / "live", steps=200)
    (folder / "rank0.cells").write_bytes(os.urandom(16_000))
    app = opened(tmp_path)
    assert [title.value for title in app.title] == ["Live"]


def test_what_is_no_file_and_what_leads_out_is_not_opened(opened: Open, tmp_path: Path) -> None:
    folder = write_watched(tmp_path / "opened" / "live", step(0, MS), step(0, MS))
    (folder / "rank1.json").unlink()
    os.mkfifo(folder / "rank1.json")
    assert "not a file" in opened(tmp_path / "opened").main.code[0].value
    (folder / "rank1.json").unlink()
    (tmp_path / "secret.json").write_text("{}")
    (folder / "rank1.json").symlink_to(tmp_path / "secret.json")
    assert "a link leads out" in opened(tmp_path / "opened").main.code[0].value


def test_it_reads_again_what_has_changed(opened: Open, tmp_path: Path) -> None:
    write_watched(tmp_path / "live", step(0, MS), ended=False)
    app = opened(tmp_path)
    assert "step 1 of a training that has not ended" in words(app)[0]
    write_watched(tmp_path / "live", [*step(0, MS), *step(1, MS)], ended=True)
    for _ in range(100):  # it rests for a moment after each reading
        app.run()
        if "step 2 of a training that has ended" in words(app)[0]:
            return
    raise AssertionError(words(app)[0])
