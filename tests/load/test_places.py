"""Remote runs, in fsspec's file system in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pandas.testing import assert_frame_equal

from overlaplab import OverlaplabError, load_run, summary
from overlaplab.load import cache, reading

SAMPLE = Path(__file__).parents[2] / "traces" / "naive"


@pytest.fixture
def memory() -> Iterator[Any]:
    """A bucket with a run, and a broken trace beside it."""
    fs = fsspec.filesystem("memory")
    for file in SAMPLE.iterdir():
        fs.pipe_file(f"/bucket/run/{file.name}", file.read_bytes())
    fs.pipe_file("/bucket/run/notes.txt", b"not a trace")
    fs.pipe_file("/bucket/run/deeper/rank9.json", b"not looked at")
    fs.pipe_file("/bucket/broken/rank0.json", b"no trace")
    yield fs
    fs.rm("/bucket", recursive=True)


def test_a_run_is_the_same_there_and_here(memory: Any) -> None:
    there, here = load_run("memory://bucket/run"), load_run(SAMPLE)
    assert_frame_equal(summary(there), summary(here))
    assert there.manifest == here.manifest
    assert [trace.path for trace in there.traces] == [
        f"memory://bucket/run/rank{rank}.pt.trace.json.gz" for rank in (0, 1)
    ]


def test_one_file_there(memory: Any) -> None:
    run = load_run("memory://bucket/run/rank1.pt.trace.json.gz")
    assert [trace.rank for trace in run.traces] == [1]
    assert run.manifest is None


def test_ranks_are_assigned_there(memory: Any) -> None:
    run = load_run("memory://bucket/run", assign_ranks={"rank1.pt.trace.json.gz": 5})
    assert [trace.rank for trace in run.traces] == [0, 5]


def test_it_is_kept_until_it_changes(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPLAB_CACHE_DIR", str(tmp_path))
    path = "/bucket/run/rank0.pt.trace.json.gz"
    first = load_run(f"memory:/{path}")
    with monkeypatch.context() as patch:
        patch.setattr(reading, "read_trace", None)
        assert_frame_equal(load_run(f"memory:/{path}").traces[0].events, first.traces[0].events)
    memory.pipe_file(path, memory.cat_file(path))
    load_run(f"memory:/{path}")
    assert len(list(tmp_path.glob("*.trace"))) == 2


def test_a_file_without_a_version_is_not_kept(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPLAB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("overlaplab.load.places._VERSION_KEYS", ())
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 0)
    load_run("memory://bucket/run")
    assert not list(tmp_path.glob("*.trace"))


def test_what_only_this_process_sees_is_read_here(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WORTH_BYTES", 0)
    monkeypatch.setitem(sys.modules, "loky", None)
    assert len(load_run("memory://bucket/run", cache=False).traces) == 2


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("memory://bucket/absent", r"^memory://bucket/absent: no such file or directory$"),
        ("memory://bucket/run/deeper/deepest", r"no such file or directory"),
        ("memory://bucket/broken", r"^memory://bucket/broken/rank0\.json: not a torch\.profiler trace"),
        ("memory://bucket", r"^memory://bucket: holds no trace"),
        ("nowhere://bucket/run", r"^nowhere://bucket/run: cannot be read .*nowhere"),
    ],
)
def test_errors_are_one_line_with_the_address(memory: Any, path: str, line: str) -> None:
    with pytest.raises(OverlaplabError, match=line):
        load_run(path)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(OverlaplabError, match=r"^s3://bucket/run: .*pip install s3fs"):
        load_run("s3://bucket/run")


def test_a_file_url_is_a_local_path() -> None:
    assert load_run(f"file://{SAMPLE}").path == str(SAMPLE)
