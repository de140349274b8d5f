"""What starting loads: the help and shell completion answer at once, and neither torch nor streamlit is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW = {"pandas", "numpy", "altair", "pyarrow", "streamlit", "torch", "loky", "distributed", "fsspec", "hta"}
DRAWING = {"jinja2", "jsonschema", "vl_convert"}
COMMAND = "import sys; sys.argv[0] = 'overlaplab'; from overlaplab.cli import main; main()"
"""What the installed script `overlaplab` does: completion depends on its name."""


def loaded(*arguments: str, **environment: str) -> set[str]:
    """The packages that Python imports with these arguments, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def test_importing_the_package_loads_nothing_slow() -> None:
    found = loaded("-c", "import overlaplab")
    assert "overlaplab" in found
    assert found & {*SLOW, "overlaplab_engine", "rich", "typer"} == set()


@pytest.mark.parametrize("command", ["", "summary", "compare", "report", "slice", "sweep", "app"])
def test_help_loads_nothing_slow(command: str) -> None:
    found = loaded("-c", COMMAND, *command.split(), "--help")
    assert "overlaplab" in found
    assert found & {*SLOW, "overlaplab_engine"} == set()


def test_the_engines_help_needs_no_torch() -> None:
    found = loaded("-m", "overlaplab_engine", "--help")
    assert "overlaplab_engine" in found
    assert found & {*SLOW, "overlaplab"} == set()


def test_records_help_is_shown_where_there_is_no_torch() -> None:
    hidden = "import importlib.util as u, os, sys; find = u.find_spec; "
    hidden += "u.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more); "
    needs = subprocess.run(
        [sys.executable, "-c", hidden + COMMAND, "record", "--out", "x"], cwd=ROOT, capture_output=True, text=True
    )
    assert (needs.returncode, needs.stdout) == (2, "")
    assert "recording needs torch" in needs.stderr
    told = subprocess.run([sys.executable, "-c", hidden + COMMAND, "record", "--help"], cwd=ROOT, capture_output=True)
    assert told.returncode == 0
    assert b"--bucket-cap-mb" in told.stdout


@pytest.mark.parametrize(
    ("shell", "typed"),
    [
        ("bash", "overlaplab co"),
        ("bash", "overlaplab report --skip"),
        ("bash", "overlaplab record --strategy zero"),
        ("zsh", "overlaplab record --strategy zero"),
        ("bash", "overlaplab compare traces/naive traces/"),
        ("zsh", "overlaplab compare --"),
        ("fish", "overlaplab compare --"),
    ],
)
def test_completion_loads_nothing_slow(shell: str, typed: str) -> None:
    """Nor rich, although these shells but bash show help texts."""
    asked = {"_OVERLAPLAB_COMPLETE": f"complete_{shell}", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    asked |= {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    found = loaded("-c", COMMAND, **asked)
    assert "typer" in found
    assert found & {*SLOW, "overlaplab_engine", "rich"} == set()


@pytest.mark.parametrize(
    "command",
    [
        "summary traces/naive",
        "summary traces/naive --line",
        "exposed traces/naive --json",
        "buckets traces/naive",
        "schedule traces/zero3",
        "collectives traces/naive --json",
        "pipeline traces/pipeline",
        "compare traces/naive traces/per-param",
        "advise traces/naive",
    ],
)
def test_figures_are_printed_without_drawing(command: str) -> None:
    """Importing altair takes seconds, which every command would."""
    found = loaded("-c", COMMAND, *command.split())
    assert "pandas" in found
    assert found & (DRAWING | SLOW - {"pandas", "numpy", "pyarrow", "msgspec"}) == set()


def test_only_the_dashboard_needs_streamlit_and_nothing_torch() -> None:
    files = [file.relative_to(ROOT) for file in (ROOT / "overlaplab").rglob("*.py")]
    names = {".".join(file.with_suffix("").parts) for file in files if "dashboard" not in file.parts}
    modules = sorted(name.removesuffix(".__init__") for name in names - {"overlaplab.__main__"})
    found = loaded("-c", f"import {', '.join(modules)}")
    assert "altair" in found
    assert found & {"hta", "overlaplab_engine", "streamlit", "torch"} == set()


def test_records_are_structs() -> None:
    """Making a dataclass takes 35 times as long, each time that a command starts. Colours have metadata; of traits a
    machine speaks, too, that has no msgspec.
    """
    files = (path for path in (ROOT / "overlaplab").rglob("*.py") if "@dataclass" in path.read_text())
    assert sorted(path.name for path in files) == ["theme.py", "traits.py"]
