"""What the documents tell the owner of GPUs to type is understood, and is worth a GPU's while."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from overlaplab_engine.cli import main
from overlaplab_engine.config import ON_GPUS, Config, Dtype

ROOT = Path(__file__).parents[2]
GPUS = (ROOT / "docs" / "gpus.md").read_text()


def commands(text: str) -> list[list[str]]:
    """The options of each recording on GPUs."""
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    found = [shlex.split(line, comments=True) for line in blocks.splitlines() if "--device cuda" in line]
    return [
        words[words.index("overlaplab_engine" if "overlaplab_engine" in words else "record") + 1 :] for words in found
    ]


@pytest.mark.parametrize("options", commands((ROOT / "README.md").read_text()) + commands(GPUS), ids=" ".join)
def test_a_recording_on_gpus(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    ranks = int(options[options.index("--nproc") + 1]) if "--nproc" in options else 16
    environment = {"RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": min(ranks, 8)}
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    asked: list[Config] = []
    monkeypatch.setattr("overlaplab_engine.worker.work", lambda config, argv: asked.append(config))
    assert main(options) == 0
    assert (asked[0].layers, asked[0].dtype) == (32, Dtype.BFLOAT16)
    assert asked[0].width >= 1024


def test_there_are_such_commands() -> None:
    assert len(commands((ROOT / "README.md").read_text())) == 2
    assert len(commands(GPUS)) == 4


def test_the_table_of_defaults() -> None:
    rows = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in GPUS.splitlines() if "|" in line]
    names = next(row for row in rows if "--width" in row)
    for where, defaults in (("CPU", {name: getattr(Config, name) for name in ON_GPUS}), ("GPUs", ON_GPUS)):
        told = dict(zip(names, next(row for row in rows if row[0] == where), strict=True))
        assert told == {"": where} | {f"--{name}": str(value) for name, value in defaults.items()}


def test_links_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", GPUS):
        assert (ROOT / "docs" / target).exists(), target
