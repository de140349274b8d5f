"""What the README tells a newcomer to type."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

import overlaplab

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_notebook_snippets_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for snippet in blocks("python"):
        if "Recorder" not in snippet:
            exec(compile(snippet, "README.md", "exec"), names)
    assert len(names["table"]) == 6  # type: ignore[arg-type]


def test_the_snippet_for_hta_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    (snippet,) = blocks("python", (ROOT / "docs" / "hta.md").read_text())
    exec(compile(snippet, "docs/hta.md", "exec"), names)
    assert names["analysis"].t.traces.keys() == {0, 1}  # type: ignore[attr-defined]


def test_the_recorder_snippet_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = (snippet for snippet in blocks("python") if "Recorder" in snippet)
    exec(compile(snippet, "README.md", "exec"), {"model": torch.nn.Linear(2, 1), "batches": range(6)})
    assert overlaplab.summary(overlaplab.load_run("runs/mine"))["step"].tolist() == [2, 3, 4]


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README + (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_names_in_contributing_exist() -> None:
    rooms = ("overlaplab", "engine", "tests", "scripts")
    text = "\n".join(source.read_text() for room in rooms for source in (ROOT / room).rglob("*.py"))
    for name in set(re.findall(r"`(_?[A-Z][A-Z_]{2,})`", (ROOT / "CONTRIBUTING.md").read_text())):
        assert re.search(rf"^{name}\b", text, re.MULTILINE), name


def test_links_and_pictures_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_without_chromium_one_line_says_how_to_install_it() -> None:
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / "chromium.sh")], env={"PATH": "/nowhere"}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "apt-get install chromium" in done.stderr
