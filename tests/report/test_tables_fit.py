"""Tables for terminals of 80 columns: no number is cut or wrapped, however large; names give way."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from made.runs import engine_step, zero3_manifest
from made.traces import MANIFEST, write
from made.zero3 import zero3_events
from rich.cells import cell_len

from overlaplab.cli import main

LONG = "/".join(["a-folder-with-quite-a-long-name"] * 3)


def slowed(events: list[dict[str, Any]], factor: float) -> list[dict[str, Any]]:
    return [e | {"ts": e["ts"] * factor, "dur": e["dur"] * factor} for e in events]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of ranks 1022 and 1023 of 1024, in a step 12345 that takes minutes, and in one that takes milliseconds."""
    folder = tmp_path_factory.mktemp("large")
    gathers = zero3_events(4, 1)
    for event in gathers:
        event["name"] = event["name"].replace("ProfilerStep#0", "ProfilerStep#12345")
    made = {
        "slow": (slowed(engine_step(12345, 0), 200_000), {"bucket_cap_mb": 0.15}),
        "quick": (engine_step(12345, 0), {"bucket_cap_mb": 1000.0}),
        f"{LONG}/zero3": (slowed(gathers, 2_000), zero3_manifest(1)),
    }
    for name, (events, manifest) in made.items():
        (folder / name).mkdir(parents=True)
        for rank in (1022, 1023):
            late = [e | {"ts": e["ts"] + 100 * (rank == 1023)} for e in events]
            info = {"rank": rank, "world_size": 1024, "backend": "gloo"}
            write(folder / name / f"rank{rank}.json", late, distributedInfo=info)
        (folder / name / "run.json").write_text(json.dumps(MANIFEST | {"world_size": 1024} | manifest))
    return folder


@pytest.mark.parametrize("name", ["slow", "quick", f"{LONG}/zero3"])
@pytest.mark.parametrize("command", ["summary", "exposed", "buckets", "schedule", "collectives"])
def test_no_number_is_cut(
    command: str, name: str, large: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fits(said(capsys, monkeypatch, command, large / name))


@pytest.mark.parametrize("names", [("slow", "quick"), ("slow", "quick", f"{LONG}/zero3")])
def test_no_number_of_a_comparison_is_cut(
    names: tuple[str, ...], large: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said(capsys, monkeypatch, "compare", *(large / name for name in names))
    fits(text)
    assert all(word in text for word in ("slow", "quick"))


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["overlaplab", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    return capsys.readouterr().out


def fits(text: str) -> None:
    lines = text.splitlines()
    for line in lines:
        assert cell_len(line) <= 80, line
        assert not re.search(r"[\d.,]…|…\s*$", line), line
    ruled = [place for place, line in enumerate(lines) if re.fullmatch(r"\s*─{10,}\s*", line)]
    for place in ruled:
        assert "…" not in lines[place - 1], lines[place - 1]
