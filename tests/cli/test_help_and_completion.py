"""The command line's help, and what a shell completes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from made.runs import engine_events
from made.traces import run_of
from overlaplab_engine.strategy_names import StrategyName
from rich.cells import cell_len

from overlaplab.cli import app, main
from overlaplab.cli.completion import STRATEGIES

COMMANDS = sorted(getattr(typer.main.get_command(app), "commands"))  # noqa: B009 (typer does not say that it has them)


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["overlaplab", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"record"}))
def test_every_command_has_an_example(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = call(capsys, monkeypatch, name, "--help")
    assert f"Example: overlaplab {name} " in told
    assert "<bool>" not in told
    assert "<list[int]>" not in told
    assert all(cell_len(line) <= 80 for line in told.splitlines())


def test_record_has_an_example() -> None:
    line = [sys.executable, "-m", "overlaplab", "record", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "80"})
    assert "Example: overlaplab record --strategy bucketed" in done.stdout
    assert "<bool>" not in done.stdout
    panels = re.findall(r"╭─ ([A-Z][^:─]+?)(?:: [^─]+)? ─", done.stdout)
    assert panels[0] == "Options"
    assert {"Ranks", "Memory", "Pipelines", "Emulation"} <= set(panels)
    assert all(cell_len(line) <= 80 for line in done.stdout.splitlines())


def test_examples_name_options_that_there_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name in sorted(set(COMMANDS) - {"record", "sweep"}):
        told = call(capsys, monkeypatch, name, "--help")
        listed, _, example = told.partition("Example: ")
        example = re.split(r"\s--\s", example)[0]  # behind it is a command of the user's
        assert set(re.findall(r"--?[a-z][a-z-]*(?= |$)", example)) <= set(re.findall(r"--?[a-z][a-z-]*", listed))


def test_strategies_are_the_engines() -> None:
    assert sorted(STRATEGIES) == sorted(StrategyName)


@pytest.fixture
def complete(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """A function from a partly typed command line to the completions that bash gets, in a folder with runs."""
    for name in ("bucketed", "naive"):
        run_of(tmp_path / "runs" / name, engine_events(), manifest={})
    (tmp_path / "runs" / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("no trace")
    monkeypatch.chdir(tmp_path)

    def offered(typed: str) -> list[str]:
        words = typed.split(" ")
        monkeypatch.setenv("_OVERLAPLAB_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        return call(capsys, monkeypatch).split()

    return offered


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("overlaplab co", ["collectives", "compare"]),
        ("overlaplab ", COMMANDS),
        ("overlaplab record --strategy zero", ["zero1", "zero2", "zero3"]),
        ("overlaplab record --strategy ", list(STRATEGIES)),
        ("overlaplab sweep --strategy b", ["bucketed"]),
        ("overlaplab report --skip", ["--skip-steps"]),
        ("overlaplab summary ru", ["runs/bucketed", "runs/naive"]),
        ("overlaplab summary runs/n", ["runs/naive"]),
        ("overlaplab compare runs/naive runs/b", ["runs/bucketed"]),
        ("overlaplab export runs/naive/", ["runs/naive/rank0.pt.trace.json.gz"]),
        ("overlaplab summary no", []),
        ("overlaplab summary nowhere/x", []),
    ],
)
def test_bash_is_offered(typed: str, offered: list[str], complete: object) -> None:
    assert callable(complete)
    assert sorted(complete(typed)) == sorted(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_options_of_record_are_the_engines(shell: str) -> None:
    typed = "overlaplab record --out x --st"
    asked = {"_OVERLAPLAB_COMPLETE": f"complete_{shell}", "COMP_WORDS": typed, "COMP_CWORD": "4"}
    asked |= {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    line = [sys.executable, "-m", "overlaplab"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=os.environ | asked)
    assert set(re.findall(r"--[a-z-]+", done.stdout)) == {"--strategy", "--steps", "--stages"}


def test_the_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(capsys, monkeypatch, "--version") == f"overlaplab {version('overlaplab')}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_OVERLAPLAB_COMPLETE", f"source_{shell}")
    assert "_OVERLAPLAB_COMPLETE" in call(capsys, monkeypatch)
