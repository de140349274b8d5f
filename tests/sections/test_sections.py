"""Sections as plain data: what they hold, and that a chart is drawn in either theme."""

from __future__ import annotations

from pathlib import Path

from made_runs import made_runs

from overlaplab import analyses
from overlaplab.load import load_run
from overlaplab.sections.blocks import Chart, Lines, TableBlock
from overlaplab.sections.run import buckets_section, gathers_section


def test_buckets_begin_with_what_was_found_and_hold_lines_chart_and_table(tmp_path: Path) -> None:
    run = load_run(made_runs(tmp_path / "runs") / "bucketed")
    table = analyses.buckets(run)
    section = buckets_section(table[(table["rank"] == 0) & (table["step"] == 1)], "a note")
    assert section is not None
    assert section.lead == "2 buckets of rank 0, step 1: 1 with exposed communication, 0 that made a ready bucket wait."
    assert section.shows.endswith("and what of that showed: rank 0, step 1.")
    lines, chart, rows = section.blocks
    assert isinstance(lines, Lines)
    assert [line.partition(" waited")[0] for line in lines.lines] == ["Bucket 1"]
    assert isinstance(chart, Chart)
    light, dark = (chart.draw(dark=theme, note=chart.note).to_dict() for theme in (False, True))
    assert light["title"]["subtitle"][-1] == "a note"
    assert light["config"]["title"]["color"] != dark["config"]["title"]["color"]
    assert isinstance(rows, TableBlock)
    assert rows.frame["last_parameter"].tolist() == ["head.weight", "body.weight"]
    assert {column.name for column in rows.wide} - {column.name for column in rows.columns} == {"gap_ns"}
    assert rows.note == ""


def test_a_run_without_gathers_has_no_section_about_them(tmp_path: Path) -> None:
    run = load_run(made_runs(tmp_path / "runs") / "bucketed")
    table, scatters, steps = analyses.schedule(run), analyses.scatters(run), analyses.summary(run)
    assert gathers_section(table, scatters, steps, run.manifest, None) is None
