"""Whatever comes in, the answer is a table or one error that names the file, in bounded time and memory.

`FUZZ=100000 pytest tests/load/test_trace_fuzz.py` tries so many mutations instead of a few hundred; FUZZ_FROM
gives the number of the first.
"""

from __future__ import annotations

import io
import os
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hostile.mutations import damage_once, mutated, seeds

from overlaplab import OverlaplabError
from overlaplab.event_columns import COLLECTIVE_COLUMNS, DAMAGED, EVENT_COLUMNS, INPUT_COLUMNS, SYNC_COLUMNS
from overlaplab.load.file import inflate
from overlaplab.load.file.trace_file import TraceFile, read_trace

COUNT = int(os.environ.get("FUZZ", "300"))
FIRST = int(os.environ.get("FUZZ_FROM", "0"))
MOST_SECONDS = 5.0
MOST_BYTES = 64 << 20
CHUNKS = (1 << 20, 4096, 700)


def check(content: TraceFile) -> None:
    """The promises of a table."""
    events = content.events
    assert list(events) == list(EVENT_COLUMNS)
    for name, dtype in EVENT_COLUMNS.items():
        assert str(events[name].dtype) in (dtype, "int64")
    start, duration = events["ts_ns"].to_numpy(), events["dur_ns"].to_numpy()
    assert (np.diff(start) >= 0).all()
    assert (duration >= 0).all()
    assert ((start + duration) >= start).all()
    assert set(events["phase"]) <= {"X", "i", DAMAGED}
    for name in ("name", "category", "pid", "tid"):
        categories = events[name].cat.categories
        assert categories.is_unique
        assert all(isinstance(text, str) and text.encode() is not None for text in categories)
    sides = (COLLECTIVE_COLUMNS, INPUT_COLUMNS, SYNC_COLUMNS)
    for table, columns in zip((content.collectives, content.inputs, content.syncs), sides, strict=True):
        assert table.dtypes.astype(str).to_dict() == columns
        assert table["event"].between(0, len(events) - 1).all()
        assert table["event"].is_monotonic_increasing
    assert content.event_ranks is None or len(content.event_ranks) == len(events)
    assert all("\n" not in warning for warning in content.warnings)


@pytest.mark.timeout(0 if COUNT > 10_000 else 300)
def test_any_mutation_is_a_table_or_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = seeds()
    path = tmp_path / "rank0.json"
    answers: Counter[str] = Counter()
    slowest = 0.0
    try:
        for number in range(FIRST, FIRST + COUNT):
            monkeypatch.setattr(inflate, "CHUNK_BYTES", CHUNKS[number % len(CHUNKS)])
            path.write_bytes(mutated(texts[number % len(texts)], number))
            if measured := number % 20 == 0:
                tracemalloc.start()
            began = time.process_time()
            try:
                content = read_trace(path)
                check(content)
                answers["with warnings" if content.warnings else "without a warning"] += 1
            except OverlaplabError as error:
                is_one_line = str(error).startswith(f"{path}: ") and "\n" not in str(error)
                answers["errors" if is_one_line else "bad errors"] += 1
            except Exception as error:
                raise AssertionError(f"mutation {number}") from error
            took = time.process_time() - began
            slowest = max(slowest, took)
            assert took < MOST_SECONDS, f"mutation {number} took {took:.1f} s"
            if measured:
                assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, f"mutation {number}"
                tracemalloc.stop()
    finally:
        tracemalloc.stop()
    assert answers["bad errors"] == 0
    print(f"{COUNT} mutations: {dict(answers)}, the slowest took {slowest:.2f} s")
    assert COUNT < 100 or min(answers[kind] for kind in ("with warnings", "without a warning", "errors")) > 0


def test_sound_seeds_give_tables_without_warnings(tmp_path: Path) -> None:
    for text in seeds():
        path = tmp_path / "rank0.json"
        path.write_bytes(text)
        content = read_trace(path)
        check(content)
        assert content.warnings == ()
        assert len(content.events) >= 10


@pytest.mark.parametrize("number", range(150))
def test_one_damage_costs_few_events(number: int) -> None:
    """A changed byte, or text inserted or removed among the events, damages only the events that it touches."""
    seed = seeds()[number % len(seeds())]
    head, tail = seed.index(b'"traceEvents"') + 30, seed.index(b"]", seed.rindex(b'"ts"')) - 20
    damaged = seed[:head] + damage_once(seed[head:tail], number) + seed[tail:]
    whole, left = (read_trace("rank0.json", io.BytesIO(text)).events for text in (seed, damaged))
    rows, kept = (Counter(zip(table["name"], table["ts_ns"], strict=True)) for table in (whole, left))
    assert (rows - kept).total() <= 4
    assert (kept - rows).total() <= 2
