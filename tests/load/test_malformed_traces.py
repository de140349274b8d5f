"""Malformed traces: an event is kept, repaired or left out, never read wrongly, and never at the cost of another."""

from __future__ import annotations

import gzip
import json
import os
import re
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from made.traces import document, event, op

from overlaplab import OverlaplabError, load_run
from overlaplab.events import DAMAGED
from overlaplab.load.file import inflate, slices
from overlaplab.load.file.trace_file import TraceFile, read_trace

FIRST = '{"ph": "X", "cat": "cpu_op", "name": "first", "pid": 9, "tid": 1, "ts": 1, "dur": 1}'
LAST = '{"ph": "X", "cat": "kernel", "name": "last", "pid": 9, "tid": 1, "ts": 8, "dur": 1, "args": {"stream": 7}}'


def read(folder: Path, text: str | bytes) -> TraceFile:
    path = folder / "rank0.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path)


def among(folder: Path, text: str | bytes) -> tuple[Any, TraceFile]:
    """The event with this text as a row, read between two intact events, which must be unaffected."""
    middle = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    events = b",\n".join((FIRST.encode(), middle, LAST.encode()))
    content = read(folder, b'{"schemaVersion": 1, "traceEvents": [' + events + b'], "baseTimeNanoseconds": 1000000}')
    names = content.events["name"].tolist()
    assert (names[0], names[-1]) == ("first", "last")
    assert content.events["ts_ns"].iloc[[0, -1]].tolist() == [1_001_000, 1_008_000]
    assert content.events["stream"].iloc[-1] == 7
    assert len(names) <= 3
    return (next(content.events.iloc[1:2].itertuples()) if len(names) == 3 else None), content


def middle(**changes: str) -> str:
    """An event's text with these values as they are written here; without what is None."""
    fields = {"ph": '"X"', "name": '"x"', "pid": "9", "tid": "1", "ts": "5", "dur": "2"} | changes
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items() if value) + "}"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("lost", [1, 10, 400, 1000])
def test_a_truncated_file_gives_its_whole_events(tmp_path: Path, packed: bool, lost: int) -> None:
    events = [event(f"e{i}", i, i + 0.5, salt=zlib.crc32(b"%d" % i)) for i in range(100)]
    text = json.dumps(document(events)).encode()
    whole = gzip.compress(text) if packed else text
    path = tmp_path / "rank0.json"
    path.write_bytes(whole[:-lost])
    left = zlib.decompressobj(31).decompress(whole[:-lost]) if packed else text[:-lost]
    content = read_trace(path)
    names = content.events["name"].tolist()
    assert names == [f"e{i}" for i in range(len(names))]
    assert len(names) == len(re.findall(rb'"salt": \d+\}\}', left)) >= 15
    if packed or lost > 30:
        assert re.search("cut short", content.warnings[0])


def test_a_truncated_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text('{"traceEvents": [' + FIRST + ', {"ph": "X", "na')
    run = load_run(tmp_path, cache=False)
    assert len(run.traces[0].events) == 1
    assert any("rank0.json" in warning and "cut short" in warning for warning in run.warnings)


def test_a_wrong_checksum_is_a_warning(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(('{"traceEvents": [' + FIRST + "]}").encode()))
    packed[-6] ^= 255
    content = read(tmp_path, bytes(packed))
    assert len(content.events) == 1
    assert "gzip" in content.warnings[0]


NAMES = {
    "invalid UTF-8": (b'"caf\xe9"', "caf�", "1 texts were not valid UTF-8 and were repaired"),
    "bytes": (b'"\xff\xfe"', "�", "1 texts were not valid UTF-8 and were repaired"),
    "a lone surrogate": (rb'"a\ud800"', "a�", "1 texts were not valid UTF-8 and were repaired"),
    "a low surrogate": (rb'"\udc00b"', "�b", "1 texts were not valid UTF-8 and were repaired"),
    "an encoded surrogate": ('"\ud800"', "�", "1 texts were not valid UTF-8 and were repaired"),
    "a path": (rb'"C:\path\q"', r"C:\path\q", "1 events with invalid escapes were read literally"),
    "half a code": (rb'"\u12x"', r"\u12x", "1 events with invalid escapes were read literally"),
    "a path's end": (rb'"C:\Dir\"', "C:\\Dir\\", "1 events with invalid escapes were read literally"),
    "a line": (b'"a\nb"', "a\nb", None),
    "a control character": (b'"a\x01b"', "a\x01b", None),
    "NUL": (b'"a\x00b"', "a\x00b", None),
    "a pair": (rb'"\ud83d\ude00"', "😀", None),
}


@pytest.mark.parametrize("case", NAMES)
def test_a_name_is_repaired(tmp_path: Path, case: str) -> None:
    text, name, warning = NAMES[case]
    raw = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    row, content = among(tmp_path, middle(name="@").encode().replace(b"@", raw))
    assert row.name == name
    assert (row.ts_ns, row.dur_ns) == (1_005_000, 2_000)
    assert content.warnings == (() if warning is None else (warning,))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "nan", "-nan", "inf", "1e999"])
def test_nan_and_infinity_count_as_absent(tmp_path: Path, value: str) -> None:
    row, content = among(tmp_path, middle(args=f'{{"stream": {value}, "x": {value}, "device": 3}}'))
    assert (row.stream, row.device, row.phase) == (-1, 3, "X")
    row, content = among(tmp_path, middle(dur=value))
    assert (row.dur_ns, row.phase) == (0, "i")
    row, content = among(tmp_path, middle(ts=value))
    assert row is None
    assert "1 events without a usable time were left out" in content.warnings


def test_nan_in_a_name_is_text(tmp_path: Path) -> None:
    row, _ = among(tmp_path, middle(name='"nan, Infinity,]"', dur="nan"))
    assert row.Index == 1
    assert row.dur_ns == 0


def test_of_duplicate_keys_the_last_wins(tmp_path: Path) -> None:
    row, _ = among(tmp_path, middle(ts='5, "ts": 6', args='{"stream": 1, "stream": 2}'))
    assert (row.ts_ns, row.stream) == (1_006_000, 2)
    row, _ = among(tmp_path, middle(ts='5, "ts": 6', args='{"stream": 1, "x": NaN, "stream": 2}'))
    assert (row.ts_ns, row.stream) == (1_006_000, 2)


@pytest.mark.parametrize("text", [middle()[:-1] + ",}", middle(args='{"a": [1, 2,], }'), middle() + ","])
def test_trailing_commas_are_accepted(tmp_path: Path, text: str) -> None:
    row, content = among(tmp_path, text)
    assert (row.ts_ns, content.warnings) == (1_005_000, ())


def test_a_trailing_comma_may_end_the_array(tmp_path: Path) -> None:
    content = read(tmp_path, '{"traceEvents": [' + FIRST + ',], "baseTimeNanoseconds": 5}')
    assert content.events["ts_ns"].tolist() == [1005]
    assert content.warnings == ()


@pytest.mark.parametrize("unlike", ["", ', "args": "all"'])
def test_values_of_another_type_are_converted_or_absent(tmp_path: Path, unlike: str) -> None:
    args = '{"stream": "7", "device": 1.0, "correlation": 18446744073709551616, "External id": "x"}'
    row, _ = among(tmp_path, middle(ts='"5.5"', dur='" 2 "', pid='"9"', tid="18446744073709551615", args=args))
    assert (row.ts_ns, row.dur_ns, row.pid, row.tid) == (1_005_500, 2_000, "9", "18446744073709551615")
    assert (row.stream, row.device, row.correlation, row.external_id) == (7, 1, -1, -1)
    row, content = among(tmp_path, middle(pid="9.0", tid="null", args='{"stream": 7.5, "device": "1.0"}'))
    assert (row.pid, row.tid, row.stream, row.device) == ("9", "", -1, 1)
    assert content.events["pid"].cat.categories.tolist() == ["9"]
    row, _ = among(tmp_path, middle(args='{"stream": [7], "device": {"a": 1}, "correlation": true}'))
    assert (row.stream, row.device, row.correlation) == (-1, -1, -1)


@pytest.mark.parametrize("args", ["null", '"text"', "3", "[1, 2]", "[]", "{}", "true", '[{"a": 1}, {"a": 2}]'])
def test_arguments_may_be_anything(tmp_path: Path, args: str) -> None:
    row, content = among(tmp_path, middle(args=args))
    assert (row.ts_ns, row.stream, content.warnings) == (1_005_000, -1, ())


@pytest.mark.parametrize("name", ["", "null", "3", "[]"])
def test_a_name_may_be_missing(tmp_path: Path, name: str) -> None:
    row, content = among(tmp_path, middle(name=name))
    assert content.events["name"].tolist()[1] == ("3" if name == "3" else "")
    assert row.ts_ns == 1_005_000


@pytest.mark.parametrize(
    ("ts", "ns"),
    [
        ("1790857026123456.789", 1_790_857_026_123_456_789),
        ("1790857026123456.7894999", 1_790_857_026_123_456_789),
        ('"1790857026123456.001"', 1_790_857_026_123_456_001),
        ("1790857026123456", 1_790_857_026_123_456_000),
        ("1.790857026123456789e15", 1_790_857_026_123_456_789),
        ("0.0005", 0),
        ("12345678901234567890", None),
        ("-12345678901234567890", None),
        ("12345678901234567890.5", None),
        ("1" * 5000, None),
        ("1e999999999", None),
        ('"1e999999999"', None),
        ("1e-999999999", 0),
    ],
)
def test_large_times_are_exact_or_left_out(tmp_path: Path, ts: str, ns: int | None) -> None:
    content = read(tmp_path, '{"traceEvents": [' + ", ".join((FIRST, middle(ts=ts), LAST)) + "]}")
    times = {1_000, 8_000} if ns is None else {1_000, 8_000, ns}
    assert set(content.events["ts_ns"]) == times
    assert len(content.events) == 2 + (ns is not None)
    assert bool(content.warnings) == (ns is None)


@pytest.mark.parametrize("unit", ["", '"displayTimeUnit": "ms",', '"displayTimeUnit": "ns",'])
def test_the_unit_is_told_by_magnitude(tmp_path: Path, unit: str) -> None:
    def times(*ts: str) -> list[tuple[int, int]]:
        events = ", ".join(f'{{"ph": "X", "name": "x", "ts": {value}, "dur": 250}}' for value in ts)
        found = read(tmp_path, f'{{{unit} "traceEvents": [{{"ph": "M", "ts": 0}}, {events}]}}').events
        return list(zip(found["ts_ns"].tolist(), found["dur_ns"].tolist(), strict=True))

    assert times("1790857026123456789", "1790857026123456790") == [
        (1790857026123456789, 250),
        (1790857026123456790, 250),
    ]
    assert times('"1790857026123456789"', "1790857026123456790") == [
        (1790857026123456789, 250),
        (1790857026123456790, 250),
    ]
    assert times("1790857026123456") == [(1790857026123456000, 250_000)]
    assert times("4360211667") == [(4360211667000, 250_000)]


def test_a_base_time_that_would_overflow_is_absent(tmp_path: Path) -> None:
    content = read(tmp_path, '{"traceEvents": [' + FIRST + '], "baseTimeNanoseconds": 9223372036854775807}')
    assert content.events["ts_ns"].tolist() == [1000]
    assert "baseTimeNanoseconds" in content.warnings[0]


@pytest.mark.parametrize(("base", "counted"), [("-5", 1), ('"soon"', 1), ("1.5", 1), ("null", 0), ("0", 0)])
def test_a_base_time_that_is_none_is_counted(tmp_path: Path, base: str, counted: int) -> None:
    content = read(tmp_path, '{"traceEvents": [' + FIRST + '], "baseTimeNanoseconds": ' + base + "}")
    assert content.events["ts_ns"].tolist() == [1000]
    assert content.warnings == ("1 baseTimeNanoseconds that is no time was taken as absent",) * counted


def test_without_duration_it_is_an_instant(tmp_path: Path) -> None:
    for text in (middle(dur=""), middle(dur="null"), middle(ph='"i"'), middle(ph='"I"', dur="")):
        row, content = among(tmp_path, text)
        assert (row.phase, row.dur_ns, content.warnings) == ("i", 0, ())
    row, _ = among(tmp_path, middle(dur="0"))
    assert (row.phase, row.dur_ns) == ("X", 0)


@pytest.mark.parametrize("ts", ["5", "1790857026123456789"])
@pytest.mark.parametrize("dur", ["-3", "-1", "-1.0", '"-2000.5"', "-1e12"])
def test_a_negative_duration_is_unknown_and_counted(tmp_path: Path, ts: str, dur: str) -> None:
    content = read(tmp_path, '{"traceEvents": [' + middle(ts=ts, dur=dur) + "]}")
    assert content.events[["phase", "dur_ns"]].to_numpy().tolist() == [[DAMAGED, 0]]
    assert content.warnings == ("1 events have a negative duration: how long they took is unknown",)


def test_begins_and_ends_are_paired_per_thread(tmp_path: Path) -> None:
    def mark(ph: str, ts: float, tid: int = 1, **more: Any) -> dict[str, Any]:
        return {"ph": ph, "pid": 9, "tid": tid, "ts": ts, **more}

    events = [
        mark("B", 1, name="outer", cat="c", args={"stream": 7}),
        mark("B", 2, name="inner"),
        mark("B", 2.5, tid=2, name="other"),
        mark("E", 3.001, name="inner"),
        mark("E", 4, tid=2),
        op("mm", 3.5, 3.75),
        mark("E", 9),
        mark("E", 10),
        mark("B", 11, name="open"),
    ]
    for times in (1, 1_790_857_026_000_000_000):
        shifted = [e | {"ts": e["ts"] if times == 1 else int(e["ts"] * 1000) + times} for e in events]
        content = read(tmp_path, json.dumps(document(shifted)))
        found = content.events[content.events["name"] != "aten::mm"]
        zero = 0 if times == 1 else times
        assert [(n, t - zero, d) for n, t, d in zip(found["name"], found["ts_ns"], found["dur_ns"], strict=True)] == [
            ("outer", 1_000, 8_000),
            ("inner", 2_000, 1_001),
            ("other", 2_500, 1_500),
        ]
        assert found["stream"].tolist() == [7, -1, -1]
        assert found["phase"].tolist() == ["X"] * 3
        assert content.warnings == (
            "1 events that begin and do not end were left out",
            "1 ends of events that did not begin were left out",
        )


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]", " [ ] ", '{"a": 1, "traceEvents" : [ ] , "b": 2}'])
def test_no_events_are_an_empty_table(tmp_path: Path, text: str) -> None:
    content = read(tmp_path, text)
    assert (len(content.events), len(content.collectives), content.warnings) == (0, 0, ())


def test_an_array_alone_is_a_trace(tmp_path: Path) -> None:
    for text in (f"[{FIRST}, {LAST}]", f"\n [{FIRST}, {LAST}]\n", f"\ufeff[{FIRST}, {LAST}]"):
        content = read(tmp_path, text)
        assert (content.events["name"].tolist(), content.warnings) == (["first", "last"], ())
    assert "cut short" in read(tmp_path, f"[{FIRST}, {LAST}").warnings[0]  # the format allows it; nobody knows


@pytest.mark.parametrize("after", ["garbage", '{"traceEvents": [' + LAST + "]}", "\0\0\0\0"])
def test_what_follows_the_trace_is_left_out(tmp_path: Path, after: str) -> None:
    content = read(tmp_path, '{"traceEvents": [' + FIRST + '], "baseTimeNanoseconds": 5}' + after)
    assert content.events["ts_ns"].tolist() == [1005]
    assert len(content.warnings) == 1


LIKE_A_BOUNDARY = [
    r'{"text": "}, {\"ph\": \"X\"", "more": "}, {"}',
    r'{"text": "\\\"}, {"}',
    '{"list": [{"ph": "X", "ts": 3}, {"ph": "X", "ts": 4}, {"a": [{}, {}]}]}',
    r'{"text": "]}, {\"traceEvents\": [{", "list": [[{}, {}], [{}, {}]]}',
    r'{"text": "], \"traceEvents\": []"}',
]


@pytest.mark.parametrize("args", LIKE_A_BOUNDARY)
@pytest.mark.parametrize("sound", [True, False])
def test_what_looks_like_a_boundary_fools_nobody(
    tmp_path: Path, args: str, sound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = "" if sound else ', "x": NaN'
    events = [middle(ts=str(i), name=f'"e{i}"', args=args + spoilt) for i in range(30)]
    text = '{"note": ' + args + ', "traceEvents": [' + ", ".join(events) + '], "note": ' + args + "}"
    for chunk in (1, 16, 37, 200, 1 << 20):
        monkeypatch.setattr(inflate, "CHUNK_BYTES", chunk)
        content = read(tmp_path, text)
        assert content.events["name"].tolist() == [f"e{i}" for i in range(30)]


def test_a_damaged_event_costs_no_other(tmp_path: Path) -> None:
    for text in (
        '{"ph": "X", "name": "x" "ts": 5}',
        '{"ph": "X", "name": "x, "ts": 5, "dur": 2}',
        '{"ph": "X", "ts": 05}',
        '{"ph": "X", "ts": 5, "args": {"a": [1, 2}}',
        '{"ph": "X", "ts": 5, "args": {"a": {"b": 1}, {"c": 1}}',
        "{ph: X}",
    ):
        row, content = among(tmp_path, text)
        assert row is None
        assert content.warnings[0].endswith("damaged events were left out")


def test_what_is_no_event_is_left_out(tmp_path: Path) -> None:
    for text in ("null", "3", '"X"', "[1, 2]", "{}", "[[]]", '{"ph": null}', '{"ph": 3, "ts": 4}', '{"ph": "Q"}'):
        row, _ = among(tmp_path, text)
        assert row is None


def test_a_nest_of_any_depth_costs_no_other(tmp_path: Path) -> None:
    for depth in (50, 900, 100_000):
        row, _ = among(tmp_path, middle(args='{"a": ' + "[" * depth + "]" * depth + "}"))
        assert row is not None or depth > 500


def test_a_head_that_is_no_json_is_searched(tmp_path: Path) -> None:
    head = rb'{"INFO": "C:\path", "n": NaN, "distributedInfo": {"rank": 3, "world_size": "4"}, "traceEvents": ['
    content = read(tmp_path, head + FIRST.encode() + b"]}")
    assert (content.rank, content.world_size, len(content.events)) == (3, 4, 1)
    tail = rb'], "INFO": "C:\path", "distributedInfo": {"rank": 3}, "baseTimeNanoseconds": "5"}'
    content = read(tmp_path, b'{"traceEvents": [' + FIRST.encode() + tail)
    assert (content.rank, content.events["ts_ns"].tolist()) == (3, [1005])


@pytest.mark.parametrize("info", ["null", "3", '"rank 3"', "[]", '{"rank": null}', '{"rank": -1, "pg_config": 3}'])
def test_odd_process_information_is_absent(tmp_path: Path, info: str) -> None:
    content = read(tmp_path, f'{{"distributedInfo": {info}, "traceEvents": [{FIRST}]}}')
    assert (content.rank, content.world_size, content.backend, content.groups) == (None, None, None, ())


def bomb(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(100):
            file.write(b" " * (1 << 20))


REFUSED = {
    "not JSON": lambda path: path.write_text("hello"),
    "a number": lambda path: path.write_text("3"),
    "empty": lambda path: path.write_text(""),
    "spaces": lambda path: path.write_text("   "),
    "another document": lambda path: path.write_text('{"a": 1}'),
    "no list": lambda path: path.write_text('{"traceEvents": null}'),
    "an object": lambda path: path.write_text('{"traceEvents": {"a": [1]}}'),
    "cut before the events": lambda path: path.write_text('{"schemaVersion": 1, "traceEv'),
    "UTF-16": lambda path: path.write_bytes('{"traceEvents": []}'.encode("utf-16")),
    "bytes": lambda path: path.write_bytes(bytes(range(256)) * 16),
    "only damaged events": lambda path: path.write_text('{"traceEvents": [{"ph" "X"}, {"ph" "X"}]}'),
    "only bad times": lambda path: path.write_text('{"traceEvents": [{"ph": "X", "ts": "soon"}]}'),
    "a damaged gzip": lambda path: path.write_bytes(b"\x1f\x8b" + bytes(100)),
    "a gzip's start": lambda path: path.write_bytes(gzip.compress(b'{"traceEvents": []}')[:12]),
    "a bomb": bomb,
    "a FIFO": os.mkfifo,
    "a directory": lambda path: path.mkdir(),
    "absent": lambda path: None,
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_trace_is_one_line_that_names_the_file(tmp_path: Path, case: str) -> None:
    path = tmp_path / "rank0.json"
    REFUSED[case](path)
    with pytest.raises(OverlaplabError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions bind nobody else")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.touch(mode=0)
    with pytest.raises(OverlaplabError, match="Permission denied"):
        read_trace(path)


def test_an_endless_event_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MOST_BYTES", 1000)
    monkeypatch.setattr(slices, "MOST_EVENT_BYTES", 1000)
    monkeypatch.setattr(inflate, "CHUNK_BYTES", 100)
    endless = '{"ph": "X", "name": "' + "x" * 5000
    content = read(tmp_path, '{"traceEvents": [' + FIRST + ", " + endless + '"}, ' + LAST + "]}")
    assert content.events["name"].tolist() == ["first", "last"]
    with pytest.raises(OverlaplabError, match="no list of traceEvents"):
        read(tmp_path, '{"a": "' + "x" * 5000 + '", "traceEvents": []}')


def test_without_isal_files_are_inflated_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"traceEvents": [' + ", ".join([FIRST] * 1000) + "]}"
    packed = gzip.compress(text[:50_000].encode()) + b"\0" * 512 + gzip.compress(text[50_000:].encode())
    for deflate in (zlib, inflate.deflate):
        monkeypatch.setattr(inflate, "deflate", deflate)
        for chunk in (100, 1 << 20):
            monkeypatch.setattr(inflate, "CHUNK_BYTES", chunk)
            content = read(tmp_path, packed)
            assert (len(content.events), content.warnings) == (1000, ())
            content = read(tmp_path, packed[:-30])
            assert 500 < len(content.events) < 1000
            assert "cut short" in content.warnings[0]
            damaged = bytearray(packed)
            damaged[-6] ^= 255
            content = read(tmp_path, bytes(damaged))
            assert len(content.events) == 1000
            assert "gzip" in content.warnings[0]


def tiny_events(path: Path, count: int) -> Path:
    """A gzip file of so many tiny events, and one more, at a hundredth of their size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    block = b'{"ph":"X","ts":1,"dur":1},' * 10_000
    with path.open("wb") as file:
        file.write(packer.compress(b'{"traceEvents": ['))
        for _ in range(count // 10_000):
            file.write(packer.compress(block))
        file.write(packer.compress(b'{"ph":"X","ts":1,"dur":1}]}') + packer.flush())
    return path


def test_tiny_events_that_fill_memory_are_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As tests/safety/test_server.py tries with a bomb of 2 GB; tracing so much memory would take a quarter minute."""
    path = tiny_events(tmp_path / "rank0.json.gz", 1_600_000)
    monkeypatch.setattr(inflate, "RATIO_FROM_BYTES", inflate.RATIO_FROM_BYTES >> 3)
    tracemalloc.start()
    with pytest.raises(OverlaplabError, match=r"unpacks to over 50 times its size.* OVERLAPLAB_MAX_RATIO=100"):
        read_trace(path)
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
    monkeypatch.setenv("OVERLAPLAB_MAX_RATIO", "1032")
    monkeypatch.setenv("OVERLAPLAB_MAX_EVENTS", "100_000")
    with pytest.raises(OverlaplabError, match=r"holds over 100,000 events.* OVERLAPLAB_MAX_EVENTS=200000"):
        read_trace(path)


def test_limits_that_are_raised_let_it_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_events(tmp_path / "rank0.json.gz", 1_000_000)
    monkeypatch.setattr(inflate, "RATIO_FROM_BYTES", 1 << 20)
    monkeypatch.setenv("OVERLAPLAB_MAX_RATIO", "1032")
    told: list[float] = []
    run = load_run(path, progress=lambda done, files: told.append(done))
    assert len(run.traces[0].events) == 1_000_001
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0, 1)
    assert 0 < told[1] < 1
