"""docs/schema is written by its script, and holds for what commands print of sample runs.

Commands that other tests in tests/cli call with --json are held against it, too (tests/cli/conftest.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loaded_script import script
from schemas import FOLDER, expect_schema

import overlaplab
from overlaplab.report import documents
from overlaplab.sections.run_tables import RunTables

SAMPLES = Path(__file__).parents[2] / "traces"
RUNS = ("bucketed", "torch-ddp", "zero3", "torch-fsdp2", "torch-ddp-gloo/rank0.pt.trace.json.gz")


def test_the_files_are_those_that_the_script_writes() -> None:
    schemas = script("scripts/schemas.py")
    assert sorted(file.stem for file in FOLDER.iterdir()) == sorted(schemas.DOCUMENTS)
    for command in schemas.DOCUMENTS:
        assert (FOLDER / f"{command}.json").read_text() == schemas.text(command), "run scripts/schemas.py"


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("command", ["summary", "exposed", "buckets", "schedule", "collectives"])
def test_figures_of_a_run(command: str, name: str) -> None:
    document = getattr(documents, f"{command}_document")(RunTables(run=overlaplab.load_run(SAMPLES / name)))
    expect_schema(command, json.loads(json.dumps({"schema_version": 2} | document)))


def test_a_sweep(command: Any) -> None:
    assert command("compare", SAMPLES / "sweep", "--json")[0] == 0


def test_what_is_not_told_does_not_fit() -> None:
    document: dict[str, Any] = {"schema_version": 2, "run": None, "warnings": [], "ranks": [], "predicted": None}
    expect_schema("summary", document | {"delays": []})
    for other in (document, document | {"delays": [], "more": 1}, document | {"delays": 0}):
        with pytest.raises(AssertionError):
            expect_schema("summary", other)
