"""The loader: exact, in slices, one clear error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from made.traces import event, op, write

from overlaplab import OverlaplabError, load_run
from overlaplab.event_columns import EVENT_COLUMNS
from overlaplab.load.file import inflate
from overlaplab.load.file.trace_file import read_trace


def table(path: Path) -> Any:
    return read_trace(path).events


def test_columns_and_dtypes(tmp_path: Path) -> None:
    events = [event("gemm", 10, 30, cat="kernel", tid=7, stream=7, device=0, correlation=5), op("mm", 1, 2)]
    found = table(write(tmp_path / "t.json", events))
    assert found.dtypes.astype(str).to_dict() == EVENT_COLUMNS
    assert found.astype(object).to_numpy().tolist() == [
        ["aten::mm", "cpu_op", "X", 1_000, 1_000, "9", "1", -1, -1, -1, -1, -1, -1],
        ["gemm", "kernel", "X", 10_000, 20_000, "9", "7", 7, 0, 5, -1, -1, -1],
    ]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
def test_any_chunk_size_gives_the_same_table(
    tmp_path: Path, name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        op(f"op{i}", i, i + 0.5) | {"args": {"list": [{"a": 1}, {"a": i}], "text": '}, {"ph":"X"'}} for i in range(50)
    ]
    path = write(tmp_path / name, events, distributedInfo={"rank": 3, "world_size": 4, "backend": "gloo"})
    monkeypatch.setattr(inflate, "CHUNK_BYTES", chunk)
    found = read_trace(path)
    assert found.events["name"].tolist() == [f"aten::op{i}" for i in range(50)]
    assert found.events["ts_ns"].tolist() == [1000 * i for i in range(50)]
    assert (found.rank, found.world_size, found.backend) == (3, 4, "gloo")


@pytest.mark.parametrize(
    ("us", "ns"),
    [
        ("4360211667871.915", 4360211667871915),
        ("0.001", 1),
        ("1682725898236567", 1682725898236567000),
        ("1682725898236567.123", 1682725898236567123),
        ("1682725898236567.001", 1682725898236567001),
        ("8796093022207.999", 8796093022207999),
    ],
)
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, us: str, ns: int) -> None:
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{{"ph": "X", "name": "a", "ts": {us}, "dur": 0.007}}]}}')
    found = table(path)
    assert (int(found["ts_ns"][0]), int(found["dur_ns"][0])) == (ns, 7)


def test_every_nanosecond_of_a_millisecond_survives(tmp_path: Path) -> None:
    base = 4360211667
    values = [f"{base}{i // 1000:03d}.{i % 1000:03d}" for i in range(0, 1_000_000, 37)]
    path = tmp_path / "t.json"
    events = ",".join(f'{{"ph":"X","ts":{value},"dur":0}}' for value in values)
    path.write_text(f'{{"traceEvents": [{events}]}}')
    assert table(path)["ts_ns"].tolist() == [int(v.replace(".", "")) for v in values]


def test_base_time_is_added_wherever_it_stands(tmp_path: Path) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    before.write_text('{"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [{"ph":"X","ts":1.5}]}')
    after.write_text('{"traceEvents": [{"ph":"X","ts":1.5}], "baseTimeNanoseconds": 1790857026000000000}')
    assert table(before)["ts_ns"].tolist() == table(after)["ts_ns"].tolist() == [1790857026000001500]


def test_a_parent_stands_before_its_child(tmp_path: Path) -> None:
    found = table(write(tmp_path / "t.json", [op("child", 5, 6), op("parent", 5, 9), op("early", 1, 2)]))
    assert found["name"].tolist() == ["aten::early", "aten::parent", "aten::child"]


def test_only_complete_events_count(tmp_path: Path) -> None:
    events = [op("mm", 1, 2), {"ph": "M", "name": "process_name", "pid": 9}, {"ph": "s", "id": 1, "ts": 3, "pid": 9}]
    assert table(write(tmp_path / "t.json", events))["name"].tolist() == ["aten::mm"]


def test_an_empty_trace_is_an_empty_table(tmp_path: Path) -> None:
    found = table(write(tmp_path / "t.json", []))
    assert len(found) == 0
    assert found.dtypes.astype(str).to_dict() == EVENT_COLUMNS


BAD = {
    "not JSON": lambda path: path.write_text("hello"),
    "empty": lambda path: path.write_text(""),
    "another document": lambda path: path.write_text('{"a": 1}'),
    "bytes": lambda path: path.write_bytes(os.urandom(4096)),
    "a bad number": lambda path: path.write_text('{"traceEvents": [{"ph": "X", "ts": "soon"}]}'),
    "a FIFO": os.mkfifo,
    "absent": lambda path: None,
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_that_names_the_file(tmp_path: Path, case: str) -> None:
    path = tmp_path / "rank0.json"
    BAD[case](path)
    with pytest.raises(OverlaplabError) as caught:
        load_run(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_permission_denied_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rank0.json", [])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OverlaplabError, match=r"rank0\.json: Permission denied"):
        load_run(path)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(OverlaplabError, match="Permission denied"):
        load_run(tmp_path)
