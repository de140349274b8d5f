"""Threads that are the first to use something, all at once, as sessions of the dashboard right after its start."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from made.runs import engine_events
from made.traces import write

from overlaplab.analyses.across_runs.baseline import Baseline
from overlaplab.load.file.trace_file import read_trace
from overlaplab.load.packed import pack

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "programs" / "first_uses.py"
MANIFEST = {
    "format_version": 1,
    "world_size": 1,
    "mesh": {"dp": 1},
    "parameters": [{"name": "w", "shape": [2], "dtype": "float32", "bytes": 8}],
    "buckets": [{"index": 0, "bytes": 8, "parameters": ["w"]}],
    "link": {"emulated": True, "bandwidth_gbps": 1.0, "latency_us": 2.0, "world_size": 1},
}
FROM = re.compile(r"^\s*from msgspec[\w.]* import (.*)$", re.MULTILINE)
GROUPS = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 1, "ranks": [0]}]


def test_forty_processes_of_eight_threads_live(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(MANIFEST))
    trace = write(tmp_path / "rank0.json", engine_events(), distributedInfo={"rank": 0, "pg_config": GROUPS})
    (tmp_path / "packed").write_bytes(pack(read_trace(trace)))
    (tmp_path / "baseline.json").write_text(Baseline(settings=None, recordings=({"step_ns": 1.0},)).text())
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "40", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def unprepared(file: Path) -> Iterator[str]:
    """The calls of a file by which msgspec would see a class for the first time while threads run."""
    tree = ast.parse(file.read_text())
    at_import = {id(node) for statement in tree.body if not _is_scope(statement) for node in ast.walk(statement)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    decoders = [node for node in calls if id(node) in at_import and ast.unparse(node.func).endswith(".Decoder")]
    prepared = {ast.unparse(node.args[0]) for node in decoders}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = ast.unparse(node.func)
        typed = len(node.args) > 1 or any(keyword.arg in ("type", None) for keyword in node.keywords)
        if call == "msgspec.convert" and len(node.args) > 1 and ast.unparse(node.args[1]) in prepared:
            continue  # by the class's own cache
        if call == "msgspec.convert" or (call.startswith("msgspec.") and call.endswith(".decode") and typed):
            yield f"{file.name}:{node.lineno}: {call} with a type"
        if call.startswith("msgspec.") and call.endswith(".Decoder") and id(node) not in at_import:
            yield f"{file.name}:{node.lineno}: {call} within a function"


def _is_scope(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def test_msgspec_sees_each_class_at_import() -> None:
    """By a Decoder that a module makes once; what it builds is complete for nested classes, too."""
    files = [file for room in ("overlaplab", "engine") for file in (ROOT / room).rglob("*.py")]
    users = [file for file in files if "msgspec" in file.read_text()]
    assert len(users) > 5
    imported = {each for file in users for line in FROM.findall(file.read_text()) for each in line.split(", ")}
    assert imported <= {"Struct", "field", "to_builtins", "asdict", "replace"}, "what decodes is called by `msgspec.`"
    assert [line for file in users for line in unprepared(file)] == []
