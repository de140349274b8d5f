"""`overlaplab pipeline`, and the section that report and dashboard draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from made.pipeline import made_pipeline

from overlaplab.sections.blocks import Chart
from overlaplab.sections.run import pipeline_section
from overlaplab.sections.run_tables import RunTables, pipeline_of

SAMPLES = Path(__file__).parents[2] / "traces"


def test_the_document(command: Any, tmp_path: Path) -> None:
    made_pipeline(tmp_path)
    code, out, err = command("pipeline", tmp_path, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert list(document) == ["schema_version", "pipeline", "steps", "ranks", "actions", "played", "warnings"]
    assert [len(document[name]) for name in ("steps", "ranks", "actions", "played")] == [1, 2, 8, 0]
    assert document["steps"][0]["bubble"] == 100 / 220


def test_the_terminal_says_what_is_bubble(command: Any, tmp_path: Path) -> None:
    made_pipeline(tmp_path)
    code, out, _ = command("pipeline", tmp_path)
    text = " ".join(out.replace("\u00a0", " ").split())
    assert code == 0
    assert (
        "45 % of the stages' time is bubble: 27 % is the schedule's own, 13 % waiting for sends and 5 % the host"
        in text
    )
    assert "theory 33 % ((p−1)/(m+p−1), p 2, m 2)" in text
    code, out, _ = command("pipeline", SAMPLES / "naive")
    assert (code, "No stages of a pipeline are labelled in this run." in out) == (0, True)


def test_the_section_and_its_charts(tmp_path: Path) -> None:
    found = RunTables(run=made_pipeline(tmp_path))
    said = found.diagnosis
    assert said is not None
    assert "pipeline bubble" in said.causes[0].label
    section = pipeline_section(*pipeline_of(found, said.rank, said.step), found.pipeline_remedies, None, said)
    assert section is not None
    assert section.advice[0].startswith("What other settings gain cannot be played")
    charts = {
        block.key: block.draw(dark=False, note=block.note) for block in section.blocks if isinstance(block, Chart)
    }
    assert charts["pipeline_chart"].title.text == "Who does what when: 2 stages, 2 microbatches"
    assert charts["pipeline_held_chart"].title.text == "Activations held, at most: stage 0 2, stage 1 2"
    drawn = charts["pipeline_chart"].to_dict()["datasets"].values()
    bars = [row for rows in drawn for row in rows if row.get("part") in ("forward", "backward")]
    assert len({(row["row"], row["part"], row["microbatch"]) for row in bars}) == 2 * 2 * 2
