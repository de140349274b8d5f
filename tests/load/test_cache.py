"""Cached tables of traces: equal to those read anew, never stale, and no error of the cache fails a load."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made.traces import op, write
from pandas.testing import assert_frame_equal
from samples import each_sample

from overlaplab import OverlaplabError, Run, load_run
from overlaplab.load import cache, reading
from overlaplab.load.cache import Cache
from overlaplab.load.file.trace_file import read_trace
from overlaplab.load.packed import pack, unpack
from overlaplab.load.places import sources

SAMPLES = Path(__file__).parents[2] / "traces"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, which keeps the smallest files."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OVERLAPLAB_CACHE_DIR", str(folder))
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 0)
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "rank0.json", [op("mm", 0, 10)])


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.trace"))


def names(run: Run) -> list[str]:
    return run.traces[0].events["name"].astype(str).tolist()


def unreadable(*_: object, **__: object) -> None:
    raise AssertionError("the trace is read, not the cache")


def test_the_version_is_of_the_code_that_names_types(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def note(path: Path) -> bytes:
        read.append(path.name)
        return b""

    monkeypatch.setattr(Path, "read_bytes", note)
    cache._digest()
    assert {"communication.py", "dtypes.py", "vocabulary.py"} <= set(read)


@pytest.mark.parametrize("folder", each_sample())
def test_every_sample_comes_back_as_it_was(folder: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = load_run(folder, cache=False)
    assert not kept.exists()
    first = load_run(folder)
    monkeypatch.setattr(reading, "read_trace", unreadable)
    second = load_run(folder)
    for run in (first, second):
        assert (run.manifest, run.warnings, run.path) == (read.manifest, read.warnings, read.path)
        for one, other in zip(run.traces, read.traces, strict=True):
            for table in ("events", "collectives", "inputs", "syncs"):
                assert_frame_equal(getattr(one, table), getattr(other, table))
            for field in ("path", "rank", "groups", "world_size", "backend", "origin_ns"):
                assert getattr(one, field) == getattr(other, field)


def test_all_that_a_file_holds_is_packed(tmp_path: Path) -> None:
    told = {"distributedInfo": {"rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": [3, 4]}]}}
    events = [op("mm", 0, 1) | {"args": {"rank": 3}}, op("b\udc80d", 2, 3), {"ph": "E", "ts": 5, "pid": 1, "tid": 1}]
    content = read_trace(write(tmp_path / "t.json", events, **told))
    again = unpack(pack(content))
    assert content.event_ranks is not None
    assert again.event_ranks is not None
    assert again.event_ranks.tolist() == content.event_ranks.tolist()
    assert again.event_ranks.dtype == content.event_ranks.dtype
    assert_frame_equal(again.events, content.events)
    assert content.warnings
    for field in ("rank", "world_size", "backend", "groups", "warnings"):
        assert getattr(again, field) == getattr(content, field)


def test_categories_keep_their_order_also_those_without_rows(tmp_path: Path) -> None:
    content = read_trace(write(tmp_path / "t.json", [op("b", 0, 1), op("a", 2, 3), op("c", 4, 5)]))
    part = type(content)(
        **{field: getattr(content, field) for field in content.__struct_fields__} | {"events": content.events.iloc[[2]]}
    )
    categories = unpack(pack(part)).events["name"].cat.categories
    assert categories.tolist() == content.events["name"].cat.categories.tolist()


def test_a_file_that_changed_is_read_again(kept: Path, trace: Path) -> None:
    load_run(trace)
    write(trace, [op("relu", 0, 10)])
    assert names(load_run(trace)) == ["aten::relu"]
    assert len(entries(kept)) == 2


def test_a_change_of_size_or_time_is_noticed(kept: Path, trace: Path) -> None:
    assert names(load_run(trace)) == ["aten::mm"]
    before = trace.stat().st_mtime_ns
    write(trace, [op("ab", 0, 10)])  # of the same size
    os.utime(trace, ns=(before, before + 1))
    assert names(load_run(trace)) == ["aten::ab"]
    write(trace, [op("longer", 0, 10)])
    os.utime(trace, ns=(before, before + 1))
    assert names(load_run(trace)) == ["aten::longer"]


def test_another_loader_reads_again(kept: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_run(trace)
    monkeypatch.setattr(cache, "LOADER", "another")
    load_run(trace)
    assert len(entries(kept)) == 2


def contents(archive: bytes) -> dict[str, bytes]:
    """Its files, without the times at which they were written."""
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        return {name: files.read(name) for name in files.namelist()}


@pytest.mark.parametrize("damage", ["cut short", "a bit", "another kind", "empty"])
def test_a_damaged_entry_is_rewritten(kept: Path, trace: Path, damage: str) -> None:
    load_run(trace)
    (entry,) = entries(kept)
    whole = entry.read_bytes()
    spoilt = {"cut short": whole[:-40], "another kind": b"PK no archive", "empty": b""}.get(damage)
    if spoilt is None:
        place = whole.index(b"events/ts_ns") + 48  # in the column, behind its name and sizes
        spoilt = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    entry.write_bytes(spoilt)
    assert names(load_run(trace)) == ["aten::mm"]
    assert contents(entry.read_bytes()) == contents(whole)


def test_it_can_be_switched_off(kept: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_run(trace, cache=False)
    monkeypatch.setenv("OVERLAPLAB_NO_CACHE", "1")
    load_run(trace)
    assert not kept.exists()


def test_the_command_line_can_switch_it_off(kept: Path, command: Callable[..., tuple[Any, str, str]]) -> None:
    for options, count in ((["--no-cache"], 0), ([], 2)):
        assert command("summary", SAMPLES / "torch-ddp-gloo", *options)[0] == 0
        assert len(entries(kept)) == count


def test_the_least_recently_used_entry_is_evicted_first(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [write(tmp_path / f"t{number}.json", [op("mm", 0, number + 1)]) for number in range(3)]
    for age, file in ((300, files[0]), (200, files[1])):
        load_run(file)
        newest = max(entries(kept), key=lambda entry: entry.stat().st_mtime)
        os.utime(newest, (newest.stat().st_mtime - age,) * 2)
    load_run(files[0])  # used just now
    size = max(entry.stat().st_size for entry in entries(kept))
    monkeypatch.setenv("OVERLAPLAB_CACHE_BYTES", str(2 * size + 100))
    load_run(files[2])
    monkeypatch.setattr(reading, "read_trace", unreadable)
    load_run(files[0])
    load_run(files[2])
    with pytest.raises(AssertionError):
        load_run(files[1])


def test_what_is_larger_than_the_limit_is_not_kept(kept: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPLAB_CACHE_BYTES", "100")
    load_run(trace)
    assert not entries(kept)


def test_what_killed_processes_left_is_removed(kept: Path, trace: Path) -> None:
    kept.mkdir()
    (kept / "old.part").write_bytes(b"half")
    os.utime(kept / "old.part", (0, 0))
    (kept / "new.part").write_bytes(b"being written")
    load_run(trace)
    assert [file.name for file in kept.glob("*.part")] == ["new.part"]


def test_where_nothing_can_be_written_it_loads(tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 0)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("OVERLAPLAB_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert names(load_run(trace)) == ["aten::mm"]


def test_a_full_disk_leaves_nothing_behind(kept: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    assert names(load_run(trace)) == ["aten::mm"]
    assert not list(kept.iterdir())


def test_files_that_cannot_be_read_are_not_kept(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("no trace")
    with pytest.raises(OverlaplabError):
        load_run(tmp_path / "t.json")
    assert not kept.exists()


def test_two_processes_at_once(kept: Path) -> None:
    script = (
        "import overlaplab, sys\n"
        f"for _ in range(4): run = overlaplab.load_run({str(SAMPLES / 'naive')!r})\n"
        "print(len(run.traces), len(run.traces[0].events))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = {process.communicate(timeout=600) for process in processes}
    assert len(answers) == 1
    assert answers.pop()[1] == ""
    assert len(list(kept.iterdir())) == 2


def test_readers_see_whole_entries_while_they_are_rewritten(kept: Path, trace: Path) -> None:
    (source,) = sources(str(trace))
    packed = pack(read_trace(trace))
    store = Cache()
    store.put(source, packed)
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            store.put(source, packed)

    writer = threading.Thread(target=rewrite)
    writer.start()
    found = [store.get(source) is not None for _ in range(200)]
    stop.set()
    writer.join()
    assert all(found)
