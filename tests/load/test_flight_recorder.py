"""Flight Recorder dumps are read, and nothing in them is run."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from made.dumped import MS, dump_entry, write_dumps

from overlaplab.errors import OverlaplabError
from overlaplab.load import flight_recorder
from overlaplab.load.flight_recorder import is_dumps, load_dumps

NCCL = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 1, "last_started_collective": -1, "last_completed_collective": 0}},
    "entries": [
        {
            **dump_entry(1, 7),
            "profiling_name": "nccl:all_reduce",
            "process_group": ("0", "default_pg"),
            "state": "completed",
            "duration_ms": 1.25,
            "frames": [{"name": "f", "filename": "train.py", "line": 3}],
            "time_discovered_started_ns": None,
        }
    ],
}


class Reducer:
    def __reduce__(self) -> Any:
        return os.mkdir, ("was_run",)


def test_a_pickle_of_plain_values_is_read(tmp_path: Path) -> None:
    for protocol in (0, 2, 5):
        (tmp_path / "nccl_trace_rank_3").write_bytes(pickle.dumps(NCCL, protocol))
        (rank,) = load_dumps(tmp_path).ranks
        (entry,) = rank.entries
        assert (rank.rank, rank.members, entry.kind) == (3, {"0": (0, 1)}, "all_reduce")
        assert (entry.duration_ms, entry.time_created_ns, entry.state) == (1.25, 7 * MS, "completed")


def test_numbers_that_json_has_as_text_are_read(tmp_path: Path) -> None:
    entry = dump_entry(1, 7) | {"collective_seq_id": "12", "time_created_ns": "99"}
    (rank,) = load_dumps(write_dumps(tmp_path, [entry])).ranks
    assert (rank.entries[0].collective_seq_id, rank.entries[0].time_created_ns) == (12, 99)
    assert rank.entries[0].duration_ms is None


def test_which_folders_hold_dumps(tmp_path: Path) -> None:
    assert not is_dumps(tmp_path)
    assert not is_dumps(tmp_path / "none")
    assert is_dumps(write_dumps(tmp_path / "json", [dump_entry(1, 1)]))
    (tmp_path / "watched").mkdir()
    (tmp_path / "watched" / "rank0.json").write_text('{"format": "overlaplab-watch", "version": 1}')
    assert not is_dumps(tmp_path / "watched")


def nested(depth: int) -> bytes:
    return b"(" + b"(l" * depth + b"."


def repeat_doubly(times: int) -> list[Any]:
    """A list that a pickle has in a few bytes, and as text 2 ** times."""
    value: list[Any] = []
    for _ in range(times):
        value = [value, value]
    return value


HOSTILE: dict[str, tuple[bytes, str]] = {
    "a reducer": (pickle.dumps({"entries": [Reducer()]}), "would run code"),
    "an old reducer": (pickle.dumps({"entries": [Reducer()]}, 0), "would run code"),
    "a global": (b"cos\nsystem\n.", "would run code"),
    "an extension": (b"\x80\x02\x82\x01.", "would run code"),
    "a persistent name": (b"Pname\n.", "would run code"),
    "a huge memo": (b"\x80\x02}r\xff\xff\xff\x7f.", "damaged pickle"),
    "a huge text": (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x00.", "damaged pickle"),
    "a cut pickle": (pickle.dumps(NCCL)[:-40], "damaged pickle"),
    "an empty stack": (b"\x80\x02.", "damaged pickle"),
    "nothing": (b"", "damaged pickle"),
    "a deep pickle": (b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "no Flight Recorder dump"),
    "a value that repeats": (pickle.dumps({"entries": repeat_doubly(40)}), "no Flight Recorder dump"),
    "a value beside the entries that repeats": (
        pickle.dumps({"entries": [dump_entry(1, 7) | {"frames": repeat_doubly(40), "state": 3}]}),
        "no Flight Recorder dump",
    ),
    "cut JSON": (json.dumps(NCCL).encode()[:-40], "no Flight Recorder dump"),
    "deep JSON": (b'{"entries":' + b"[" * 100_000, "no Flight Recorder dump"),
    "a list": (pickle.dumps([1, 2]), "no Flight Recorder dump"),
    "wrong types": (json.dumps({"entries": [{"process_group": 3}]}).encode(), "no Flight Recorder dump"),
    "no entries": (json.dumps({"traceEvents": []}).encode(), "no Flight Recorder dump"),
    "a huge number": (
        json.dumps({"entries": [dump_entry(1, 7) | {"time_created_ns": 10**30}]}).encode(),
        "no Flight Recorder dump",
    ),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_files_are_one_line_and_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    content, problem = HOSTILE[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "rank_0.pickle").write_bytes(content)
    with pytest.raises(OverlaplabError, match=problem) as caught:
        load_dumps(tmp_path / "dumps")
    assert "rank_0.pickle" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "was_run").exists()


def test_the_unpickler_imports_nothing_by_itself() -> None:
    import io

    with pytest.raises(flight_recorder._NotPlainError, match="would import"):
        flight_recorder._PlainUnpickler(io.BytesIO(pickle.dumps(Reducer()))).load()


def test_what_is_too_large_or_of_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dumps(tmp_path, [dump_entry(1, 1)])
    (tmp_path / "other_rank_0").write_bytes(pickle.dumps(NCCL))
    with pytest.raises(OverlaplabError, match="is of rank 0, and so is"):
        load_dumps(tmp_path)
    (tmp_path / "other_rank_0").unlink()
    monkeypatch.setattr(flight_recorder, "MAX_DUMP_BYTES", 10)
    with pytest.raises(OverlaplabError, match="bytes; of a dump 10 are read"):
        load_dumps(tmp_path)
