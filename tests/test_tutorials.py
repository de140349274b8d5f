"""docs/tutorials: what they tell to type works, in the order in which they tell it; so do the snippets of other pages.

Where a tutorial draws conclusions from a recording, it is one of `traces/sweep`, made by the very options of the page:
a recording of this moment would tell of the machine's other work.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from ranks.warm_ranks import run_warm
from samples import TRACES
from typer.testing import CliRunner

from overlaplab.cli import app

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = ("first-recording", "your-own-script", "strangers-trace", "bucket-cap", "another-setting", "whole-training")
SLOW = ("first-recording", "whole-training")
ELSEWHERE = ("pip install", "overlaplab app")
"""What other tests try: the wheel's, and those of the dashboard."""


def commands(page: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (TUTORIALS / f"{page}.md").read_text(), re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.name)
def test_nobody_is_sent_to_pages_for_maintainers(page: Path) -> None:
    assert re.findall(r"\]\([^)]*(?:design|CONTRIBUTING)[^)]*\)", page.read_text()) == []


def scripts(page: str) -> dict[str, str]:
    return dict(re.findall(r"as `(\w+\.py)`.*?```python\n(.*?)```", (TUTORIALS / f"{page}.md").read_text(), re.DOTALL))


def on_ranks(folder: Path, count: int, *line: str) -> None:
    for rank in run_warm(count, *line, CUDA_VISIBLE_DEVICES=""):
        assert rank.code == 0, rank.stderr


def pairs(words: list[str]) -> set[tuple[str, str]]:
    """The options and their values."""
    return {pair for pair in pairwise(words) if pair[0].startswith("--")}


def hand_out(sample: Path, words: list[str], out: Path) -> None:
    """Copy a recording, if its command had these options."""
    for manifest in sample.rglob("run.json"):
        recorded = pairs(shlex.split(json.loads(manifest.read_text())["command"]))
        asked = {(name, value) for name, value in pairs(words) if name not in ("--out", "--bucket-cap-mb")}
        assert asked <= recorded, asked - recorded
    shutil.copytree(sample, out)


def record(words: list[str], folder: Path) -> None:
    """What `overlaplab record` starts, once; or what it would leave."""
    told = dict(pairs(words))
    out = folder / told["--out"]
    if (cap := told.get("--bucket-cap-mb")) and "--vocab" in told:
        hand_out(TRACES / "sweep" / f"cap-{cap}", words, out)
    else:
        on_ranks(folder, 2, "-m", "overlaplab_engine", *words, "--out", str(out), "--attempts", "1")


def type_line(line: str, folder: Path) -> None:
    """As in a terminal in this folder."""
    words = shlex.split(line, comments=True)
    match words[:2]:
        case ["torchrun", "--nproc-per-node"]:
            on_ranks(folder, int(words[2]), str(folder / words[3]), *words[4:])
        case ["overlaplab", "record"]:
            record(words[2:], folder)
        case ["overlaplab", "sweep"]:
            hand_out(TRACES / "sweep", words[2:], folder / dict(pairs(words))["--out"])
        case ["overlaplab", _]:
            told = CliRunner().invoke(app, words[1:], catch_exceptions=False)
            assert told.exit_code == 0, told.output
        case _:
            subprocess.run(words, cwd=folder, check=True)


def test_all_tutorials_are_tried() -> None:
    assert sorted(PAGES) == sorted(path.stem for path in TUTORIALS.glob("*.md") if ".zh-CN" not in path.name)


@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.slow if page in SLOW else []) for page in PAGES])
def test_a_tutorial(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, script in scripts(page).items():
        (tmp_path / name).write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{script}")
    for line in commands(page):
        if not line.startswith(ELSEWHERE):
            type_line(line, tmp_path)


def test_what_your_own_script_says_of_the_recording() -> None:
    (script,) = scripts("your-own-script").values()
    assert [line.partition("  # ")[2] for line in script.splitlines() if "ecorder" in line] == ["1", "2", "3"]


@pytest.mark.parametrize("page", ["reference/json", "reference/python", "explanation/arithmetic"])
def test_the_snippets_of_other_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").symlink_to(TRACES)
    for line, file in re.findall(r"```sh\noverlaplab (.*) > (.*)\n```", text):
        (tmp_path / file).write_text(CliRunner().invoke(app, line.split(), catch_exceptions=False).stdout)
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), {})
