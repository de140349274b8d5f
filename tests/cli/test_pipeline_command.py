"""`overlaplab pipeline`, and the section that report and dashboard draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made.pipeline import made_pipeline
from msgspec.structs import replace

import overlaplab
from overlaplab import charts
from overlaplab.sections.blocks import Chart
from overlaplab.sections.run import pipeline_section
from overlaplab.sections.run_tables import RunTables

SAMPLES = Path(__file__).parents[2] / "traces"


def test_the_document(command: Any, tmp_path: Path) -> None:
    made_pipeline(tmp_path)
    code, out, err = command("pipeline", tmp_path, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert list(document) == ["schema_version", "pipeline", "steps", "ranks", "waits", "actions", "played", "warnings"]
    assert [len(document[name]) for name in ("steps", "ranks", "waits", "actions", "played")] == [1, 2, 0, 8, 3]
    assert document["steps"][0]["bubble"] == 100 / 220


def test_the_terminal_says_what_is_bubble(command: Any, tmp_path: Path) -> None:
    made_pipeline(tmp_path)
    code, out, _ = command("pipeline", tmp_path)
    text = " ".join(out.replace("\u00a0", " ").split())
    assert code == 0
    assert (
        "45 % of the stages' time is bubble: 27 % is the schedule's own (33 % of an ideal step), 13 % waiting for sends"
        " and 5 % the host" in text
    )
    assert "theory 33 % ((p−1)/(m+p−1), p 2, m 2)" in text
    code, out, _ = command("pipeline", SAMPLES / "naive")
    assert (code, "No stages of a pipeline are found in this run." in out) == (0, True)


def test_the_section_and_its_charts(tmp_path: Path) -> None:
    found = RunTables(run=made_pipeline(tmp_path))
    said = found.diagnosis
    assert said is not None
    assert "idle by the pipeline's schedule" in said.causes[0].label
    section = pipeline_section(found, said, (said.rank, said.step))
    assert section is not None
    assert section.advice[0].startswith("Try the schedule 1F1B: bubble 29\u00a0%")
    shown = {block.key: block.draw(dark=False, note=block.note) for block in section.blocks if isinstance(block, Chart)}
    assert shown["pipeline_chart"].title.text == "Who does what when: GPipe, 2 stages, 2 microbatches"
    assert shown["pipeline_held_chart"].title.text == "Activations held, at most: 2 in stage 0, 2 in stage 1"
    drawn = shown["pipeline_chart"].to_dict()["datasets"].values()
    bars = [row for rows in drawn for row in rows if row.get("part") in ("forward", "backward")]
    assert len({(row["row"], row["part"], row["microbatch"]) for row in bars}) == 2 * 2 * 2


def test_bubbles_are_hatched(tmp_path: Path) -> None:
    chart = charts.pipeline(overlaplab.pipeline(made_pipeline(tmp_path)), title="")
    spec = chart.to_dict()
    hatch = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "point")
    strokes = spec["datasets"][hatch["data"]["name"]]
    assert all(row["begin"] <= row["middle"] < row["end"] for row in strokes)
    apart = 0.11 / 120  # ms: the step takes 110 µs
    for bubble in {(row["row"], row["begin"], row["end"]) for row in strokes}:
        own = sum((row["row"], row["begin"], row["end"]) == bubble for row in strokes)
        assert abs(own - (bubble[2] - bubble[1]) / apart) < 1
    bubbles = {(row["row"], row["begin"]) for row in strokes}
    assert ("stage 0, rank 0", 0.02) in bubbles  # between its last forward and its first backward


def test_a_remedy_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = RunTables(run=made_pipeline(tmp_path))
    said = found.diagnosis
    assert said is not None
    row = {"remedy": "microbatches", "setting": 4, "gain_ns": 9, "recorded_ns": 100, "bubble": 0.2, "held": 2}
    monkeypatch.setattr(RunTables, "pipeline_remedies", pd.DataFrame([row]))
    for advice, own in (("Try 4 smaller microbatches. Replayed, the step is 9 ns shorter.", 0), ("Try no link.", 1)):
        told = replace(said, advice=advice)
        section = pipeline_section(found, told, (said.rank, said.step))
        assert section is not None
        assert section.advice[0].startswith("Try 4 smaller microbatches: bubble 20\u00a0%")
        assert len(section.advice) == 2 + own
