"""`overlaplab advise`: its document, what it refuses, and `--verify` with an engine that hands out recorded runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import overlaplab
from overlaplab import OverlaplabError, Run
from overlaplab.cli import advise, shared
from overlaplab.cli.engine import recorded_options
from overlaplab.cli.options import Opening

SAMPLES = Path(__file__).parents[2] / "traces"
SWEEP = SAMPLES / "sweep"
ENGINE = """
import shutil, sys
from pathlib import Path
words = [part for word in sys.argv[1:] for part in word.split("=", 1)]
told = dict(zip(words, words[1:]))
out = Path(told["--out"])
number = out.name.partition("-")[2]
cap = {"25": "25", "1.2": "1"}.get(told["--bucket-cap-mb"], "4")
with open("recorded", "a") as file:
    print(out.name, told["--bucket-cap-mb"], file=file)
shutil.copytree(Path(SWEEP) / f"cap-{cap}{'-' + number if number else ''}", out)
"""
"""Hands out the sweep's recordings: of cap 1 for the cap that is advised."""


@pytest.fixture
def command(command: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """In a terminal that breaks no line."""
    monkeypatch.setenv("COLUMNS", "400")
    return command


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `python -m overlaplab_engine` hand out runs; returns where it notes which."""
    package = tmp_path / "elsewhere" / "overlaplab_engine"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(f"SWEEP = {str(SWEEP)!r}\n{ENGINE}")
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "recorded"


def test_the_document_tells_settings_caps_limit_and_lines(command: Any) -> None:
    code, out, err = command("advise", SWEEP / "cap-25", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert list(document) == [
        *("schema_version", "advice", "actions", "advised", "settings", "caps", "no_cutting_gains_more_than_ns"),
        *("sentences", "lines", "verified", "emulated", "warnings"),
    ]
    assert document["advised"]["bucket_cap_mb"] == 1.2
    assert [row["option"] for row in document["settings"]] == ["first_bucket", "cap", "cap_and_first_bucket", "buckets"]
    best = max(row["gain_ns"] for row in document["settings"])
    assert best <= document["no_cutting_gains_more_than_ns"]
    assert len(document["caps"]) > 40
    assert document["emulated"] is True
    assert document["verified"] is None


def test_the_terminal_begins_with_the_runs_own_advice(command: Any) -> None:
    code, out, _ = command("advise", SWEEP / "cap-25")
    assert code == 0
    assert "Try bucket_cap_mb 1.2 (now 25). Predicted gain: " in out
    assert "First to try: bucket_cap_mb 1.2, 5 buckets" in out
    assert "overlaplab record … --bucket-cap-mb 1.2" in out


def test_settings_come_after_another_action(command: Any) -> None:
    code, out, _ = command("advise", SAMPLES / "ring")
    assert code == 0
    assert "First to try" not in out
    assert "Of these settings: bucket_cap_mb 0.9" in out
    assert out.rstrip().endswith("overlaplab record … --strategy bucketed")


def test_what_it_cannot_answer_is_one_line(command: Any, tmp_path: Path) -> None:
    code, _, err = command("advise", SAMPLES / "zero3", "--verify", "--out", tmp_path)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


def test_verifying_records_all_settings_in_turn(
    command: Any, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openings: list[Opening] = []

    def load(paths: list[str], opening: Opening) -> list[Run]:
        openings.append(opening)
        return shared.load(paths, opening)

    monkeypatch.setattr(advise, "load", load)
    line = ("advise", SWEEP / "cap-25", "--verify", "--out", tmp_path / "out", "--json", "--no-cache")
    code, out, _ = command(*line, "--communication", "x{9}")
    assert openings == [Opening(no_cache=True, communication="x{9}")] * 4
    found = json.loads(out)["verified"]
    recorded = [line.split() for line in engine.read_text().splitlines()]
    assert sorted(name for name, _ in recorded) == sorted(
        f"{name}{number}" for name in ("present", "advised", "neighbour") for number in ("", "-2", "-3")
    )
    assert {name.partition("-")[0] for name, _ in recorded[:3]} == {"present", "advised", "neighbour"}  # interleaved
    assert {cap for name, cap in recorded if name.startswith("advised")} == {"1.2"}
    assert {cap for name, cap in recorded if name.startswith("present")} == {"25"}
    assert found["faster"] is True
    assert found["recordings"] == 3
    assert found["gained_ms"] == pytest.approx(found["before_ms"] - found["after_ms"])
    assert found["gained_ms"] > 20
    assert code == (0 if found["confirmed"] else 1)
    assert found["sentence"].startswith("Confirmed" if found["confirmed"] else "Not confirmed")


def test_ones_own_command_verifies_a_cap(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import json, os, pathlib, shutil, sys\nout = pathlib.Path(os.environ['OVERLAPLAB_RECORD'])\n"
        f"shutil.copytree(pathlib.Path({str(SWEEP)!r}, 'cap-25' if sys.argv[1] == '25' else 'cap-1'), out)\n"
        "file = out / 'run.json'\nfound = json.loads(file.read_text())\n"
        "file.write_text(json.dumps(found | {'bucket_cap_mb': float(sys.argv[1])}))\n"
    )
    line = ["advise", SWEEP / "cap-25", "--verify", "--out", "DIR", "--json", "--", sys.executable, "train.py"]
    code, out, said = command(*line, "{bucket_cap_mb}")
    assert code in (0, 1), said
    assert json.loads(out)["verified"]["faster"] is True
    assert json.loads(Path("DIR/advised/run.json").read_text())["swept"]["settings"] == {"bucket_cap_mb": 1.2}
    assert command(*line, "25")[2].startswith("overlaplab: the command has no {bucket_cap_mb}")


def test_a_run_is_recorded_again_with_its_own_options() -> None:
    run = overlaplab.load_run(SWEEP / "cap-4")
    assert run.manifest is not None
    own = " --strategy bucketed --out x --save y --tied --link auto --steps=3"
    for command, options in (
        ("overlaplab record" + own, ["--strategy=bucketed", "--tied", "--link=auto", "--steps=3", "--link", run.path]),
        ("overlaplab record --link 1Gbps,1us", ["--link=1Gbps,1us"]),
    ):
        raw = {**run.manifest.raw, "command": command}
        assert recorded_options(replace(run, manifest=replace(run.manifest, raw=raw))) == options
    for command in ("python train.py", ""):
        raw = {**run.manifest.raw, "command": command}
        with pytest.raises(OverlaplabError, match="Give its command after --"):
            recorded_options(replace(run, manifest=replace(run.manifest, raw=raw)))
