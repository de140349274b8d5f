"""Traces that a user brings along: bounded, kept in a folder of their own, and deleted."""

from __future__ import annotations

import gc
import gzip
import io
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from browsing.app_page import body_texts
from made.runs import engine_events
from made.traces import run_of
from streamlit.testing.v1 import AppTest

from overlaplab.dashboard import uploads as rules
from overlaplab.dashboard import widgets
from overlaplab.dashboard.leaving import wait_until_left
from overlaplab.dashboard.uploads import Uploads
from overlaplab.errors import OverlaplabError

Open = Callable[..., AppTest]


class File(io.BytesIO):
    """What Streamlit hands over."""

    def __init__(self, name: str, content: bytes = b"{}", size: int | None = None) -> None:
        super().__init__(content)
        self.name = name
        self.size = len(content) if size is None else size


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of temporary folders: what is still there after a test was not deleted."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_files_are_kept_as_one_run_until_it_is_removed(temporary: Path) -> None:
    own = Uploads()
    name = own.add([File("rank0.json", b"[]"), File("rank1.json.gz", gzip.compress(b"[]")), File("run.json")])
    assert name == "/uploaded 1"
    assert own.names == [name]
    assert sorted(file.name for file in own.folder(name).iterdir()) == ["rank0.json", "rank1.json.gz", "run.json"]
    assert (own.folder(name) / "rank0.json").read_bytes() == b"[]"
    other = own.add([File("trace.json")])
    assert other == "/uploaded 2"
    own.remove(name)
    assert own.names == [other]
    assert left(temporary) == ["trace.json"]
    with pytest.raises(OverlaplabError, match="not one of the uploaded runs"):
        own.folder(name)


def test_the_folder_goes_with_its_owner(temporary: Path) -> None:
    own = Uploads()
    own.add([File("trace.json")])
    assert left(temporary) == ["trace.json"]
    del own
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_the_folder_goes_with_the_process(temporary: Path) -> None:
    code = (
        f"import io, tempfile; tempfile.tempdir = {str(temporary)!r}\n"
        "from overlaplab.dashboard.uploads import Uploads\n"
        "file = io.BytesIO(b'{}'); file.name, file.size = 'trace.json', 2\n"
        "own = Uploads(); own.add([file]); print(own.folder('/uploaded 1').is_dir())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"True\n"
    assert list(temporary.iterdir()) == []


def test_files_go_when_their_user_is_away_for_long_and_not_before(temporary: Path) -> None:
    own = Uploads()
    own.add([File("trace.json")])
    answers = iter([True, False, True, False])  # back once, then gone
    wait_until_left(weakref.ref(own), lambda: next(answers, False), look_s=0.01, grace_s=0.05)
    assert next(answers, None) is None
    assert (own.names, left(temporary)) == ([], [])
    wait_until_left(weakref.ref(own), lambda: True, look_s=0.01)  # nothing left to wait for


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ([File(f"{number}.json") for number in range(65)], "65 files are more than 64"),
        ([File("a.json", size=150_000_000), File("b.json", size=51_000_000)], "more than 200 MB together"),
        ([File("notes.txt")], "notes.txt: is not named like a trace. Traces are named *.json or *.json.gz"),
        ([File(".hidden.json")], "is not named like a trace"),
        ([File("a.json"), File("folder/a.json")], "a.json: is there twice"),
        ([File("run.json")], "there is no trace among the files"),
        ([File("a.json.gz", gzip.compress(bytes(80_000_000), 9))], "a.json.gz: unpacks to over 50 times its size"),
    ],
    ids=["many", "large", "name", "hidden", "twice", "manifest", "bomb"],
)
def test_what_cannot_be_taken_is_one_line_and_leaves_nothing(files: list[File], line: str, temporary: Path) -> None:
    own = Uploads()
    with pytest.raises(OverlaplabError) as error:
        own.add(files)
    assert line in str(error.value)
    assert own.names == []
    assert left(temporary) == []


def test_what_inflates_to_too_much_is_refused(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_INFLATED", 3000)
    own = Uploads()
    with pytest.raises(OverlaplabError, match=r"b\.json: the upload inflates to more than"):
        own.add([File("a.json.gz", gzip.compress(bytes(2000))), File("b.json", bytes(1001))])
    assert left(temporary) == []
    own.add([File("a.json.gz", gzip.compress(bytes(2000))), File("b.json", bytes(1000))])


def test_only_so_many_uploads_are_open() -> None:
    own = Uploads()
    for _ in range(8):
        own.add([File("a.json")])
    with pytest.raises(OverlaplabError, match="8 uploads are open already"):
        own.add([File("a.json")])


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/x.json", "x.json"),
        ("C:\\traces\\x.json", "x.json"),
        ("/x.json", "x.json"),
        ("a\nb\x1b.json", None),
    ],
)
def test_no_name_leads_out_of_the_folder(name: str, kept: str | None) -> None:
    own = Uploads()
    folder = own.folder(own.add([File(name)]))
    (file,) = folder.iterdir()
    assert file.name.isprintable()
    assert kept in (None, file.name)


def test_a_very_long_name_is_cut_and_keeps_its_end() -> None:
    own = Uploads()
    folder = own.folder(own.add([File("x" * 5000 + ".json.gz")]))
    (file,) = folder.iterdir()
    assert len(file.name) <= 100
    assert file.name.endswith(".json.gz")


def parts(folder: Path) -> list[tuple[str, bytes, str]]:
    """A run's files as a browser uploads them."""
    run_of(folder, engine_events(), engine_events(), manifest={"bucket_cap_mb": 3.0})
    return [(file.name, file.read_bytes(), "application/octet-stream") for file in sorted(folder.iterdir())]


def send(app: AppTest, *files: tuple[str, bytes, str]) -> AppTest:
    app.file_uploader[0].set_value(list(files))
    next(button for button in app.button if button.label == "Open").click().run()
    assert not app.exception, app.exception[0].message
    return app


def test_an_upload_is_open_on_all_pages_until_it_is_closed(
    opened: Open, runs: Path, tmp_path: Path, temporary: Path
) -> None:
    app = send(opened(runs), *parts(tmp_path / "mine"))
    assert app.selectbox(key="run_picker").value == "/uploaded 1"
    assert "uploaded 1" in app.selectbox(key="run_picker").options
    assert app.query_params["run"] == "/uploaded 1"
    assert any("bucket_cap_mb 3" in text.value for text in app.text)
    for page in ("buckets", "collectives", "timeline", "zero3", "compare"):
        app.switch_page(f"views/{page}.py").run()
        assert not app.exception
        assert app.title[0].value.lower() in (page, "zero-3")
        assert not app.error
    assert len(left(temporary)) == 3
    app.button(key="close_upload").click().run()
    assert app.selectbox(key="run_picker").value == "broken"  # the first of the folder
    assert left(temporary) == []
    assert not any("link" in warning.value for warning in app.warning)


def test_an_upload_goes_with_its_session(opened: Open, runs: Path, tmp_path: Path, temporary: Path) -> None:
    app = send(opened(runs), *parts(tmp_path / "mine"))
    assert len(left(temporary)) == 3
    del app
    gc.collect()
    assert left(temporary) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ((), "Choose the traces first."),
        (("rank0.json.gz", b"\x1f\x8b no gzip", ""), "rank0.json.gz: not a torch.profiler trace"),
        (("rank0.json", b"not json", ""), "rank0.json: not a torch.profiler trace"),
        (("<img src=x>.json", b"", ""), "<img src=x>.json: "),
    ],
    ids=["nothing", "gzip", "json", "empty"],
)
def test_a_bad_upload_is_one_line(
    opened: Open, runs: Path, temporary: Path, file: tuple[str, bytes, str], line: str
) -> None:
    app = send(opened(runs, run="bucketed"), *([file] if file else []))
    assert app.selectbox(key="run_picker").value == "bucketed"
    (said,) = [code.value for code in app.code]
    assert said.startswith(line)
    assert "\n" not in said
    assert "overlaplab-upload" not in said
    assert left(temporary) == []


def test_traces_can_be_brought_where_there_is_no_folder(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "nowhere", tmp_path / "empty"):
        app = send(opened(folder), *parts(tmp_path / "mine"))
        assert app.selectbox(key="run_picker").options == ["uploaded 1"]
        assert app.title[0].value == "Summary"


def test_without_a_folder_uploads_are_runs_like_others(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare begins with those that did the same work, by their own manifests."""
    monkeypatch.setattr(widgets, "_SAMPLES", tmp_path / "no samples")
    app = send(opened(None), *parts(tmp_path / "mine"))
    app = send(app, *parts(tmp_path / "again"))
    assert any("bucket_cap_mb 3" in text.value for text in app.text)
    app.switch_page("views/zero3.py").run()
    assert not app.exception
    app.switch_page("views/compare.py").run()
    assert not app.exception
    assert app.multiselect(key="compared").value == ["/uploaded 1", "/uploaded 2"]
    assert app.multiselect(key="compared").options == ["uploaded 1", "uploaded 2"]
    assert app.dataframe[0].value["run"].tolist() == ["uploaded 1", "uploaded 2"]


def test_a_link_to_another_sessions_upload_gives_the_default(opened: Open, runs: Path, tmp_path: Path) -> None:
    send(opened(runs), *parts(tmp_path / "mine"))
    other = opened(runs)
    other.query_params["run"] = "/uploaded 1"
    other.run()
    assert body_texts(other)[0] == (
        "There is no run '/uploaded 1' here: there are broken, bucketed, foreign and one-rank. Showing broken."
    )
    assert other.selectbox(key="run_picker").value == "broken"
