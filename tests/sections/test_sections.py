"""Sections as plain data: what they hold, and that a chart is drawn in either theme."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from made.runs import made_runs
from msgspec.structs import replace
from samples import sample_tables

from overlaplab import analyses
from overlaplab.columns import columns
from overlaplab.load.run_folder import load_run
from overlaplab.report.terminal import buckets, terminal_table
from overlaplab.sections.blocks import Bars, Chart, Lines, TableBlock
from overlaplab.sections.run import buckets_section, collectives_section, gathers_section
from overlaplab.sections.run_tables import RunTables
from overlaplab.sections.summary import summary_section
from overlaplab.sections.tables import collectives_rows, lines_rows, sizes_rows
from overlaplab.selection import Selection


def test_buckets_begin_with_what_was_found_and_hold_lines_chart_and_table(tmp_path: Path) -> None:
    tables = RunTables(run=load_run(made_runs(tmp_path / "runs") / "bucketed"))
    table = analyses.rows_of(tables.buckets, {"rank": 0, "step": 1})
    section = buckets_section(tables, table, tables.find_diagnosis(0, 1), "a note")
    assert section is not None
    assert section.lead == ("2 buckets of rank 0, step 1: 1 with exposed communication.")
    lines, chart, rows = section.blocks
    assert isinstance(lines, Lines)
    assert [line.partition(":")[0] for line in lines.lines] == ["Bucket 1"]
    assert isinstance(chart, Chart)
    light, dark = (chart.draw(dark=theme, note=chart.note).to_dict() for theme in (False, True))
    assert light["title"]["subtitle"][-1] == "a note"
    assert light["config"]["title"]["color"] != dark["config"]["title"]["color"]
    assert isinstance(rows, TableBlock)
    assert rows.frame["last_parameter"].tolist() == ["head.weight", "body.weight"]
    assert {column.name for column in rows.wide} - {column.name for column in rows.columns} == {"cause", "gap_ns"}
    assert rows.note == ""


def test_a_run_without_gathers_has_no_section_about_them(tmp_path: Path) -> None:
    tables = RunTables(run=load_run(made_runs(tmp_path / "runs") / "bucketed"))
    assert gathers_section(tables, tables.schedule, None, None) is None


def test_a_table_has_its_columns_for_each_width(tmp_path: Path) -> None:
    run = load_run(made_runs(tmp_path / "runs") / "bucketed")
    block = collectives_rows(analyses.each_collective(analyses.collectives(run)))
    assert block.frame["exposed_ns"].is_monotonic_decreasing
    assert set(block.frame["kind"]) == {"all-reduce"}
    assert {column.name for column in block.narrow} <= {*block.frame}
    assert {"start_ns", "last_word"} <= {column.name for column in block.wide} - {
        column.name for column in block.columns
    }
    assert block.summed_up() == [block]
    (cut,) = replace(block, most=2, ranked_by="").summed_up()
    assert (cut.left_out, terminal_table(cut).row_count) == (f"the first 2 of {len(block.frame)}", 2)
    assert [str(column.header) for column in terminal_table(block).columns][-2:] == ["last", "GB/s"]


def test_a_long_table_is_summed_up() -> None:
    """By its summary where it has one, else by the rows that matter most, in the order of the table."""
    frame = pd.DataFrame({"rank": range(60), "exposed_ns": [*range(30), *range(30, 0, -1)]})
    block = TableBlock(key="table", caption="Caption", frame=frame, columns=columns("exposed", "rank", "exposed_ns"))
    (first,) = block.summed_up()
    assert (first.frame["rank"].tolist(), first.left_out) == ([*range(50)], "the first 50 of 60")
    ranked = replace(block, ranked_by="exposed_ns", ranked_words="that were exposed most")
    (most,) = ranked.summed_up()
    assert (most.frame["rank"].tolist(), most.left_out) == ([*range(20, 40)], "the 20 of 60 that were exposed most")
    short = replace(block, frame=frame.head(3))
    assert replace(ranked, summary=[short]).summed_up() == [short]
    assert short.summed_up() == [short]


def test_what_is_unknown_of_a_collective(tmp_path: Path) -> None:
    run = load_run(made_runs(tmp_path / "runs") / "bucketed")
    rows = analyses.each_collective(analyses.collectives(run)).head(2)
    rows = rows.assign(
        last_rank=pd.array([1, None], dtype="Int64"),
        within_clock_error=pd.array([True, None], dtype="boolean"),
        wait_ns=pd.array([4_000, None], dtype="Int64"),
        exposed_ns=pd.array([2, 1], dtype="Int64"),
        bus_gb_per_s=[None, 12.0],
        bus_is_lower_bound=[False, True],
    )
    frame = collectives_rows(rows).frame
    assert frame["terse_wait_ns"].tolist() == ["≈0", "–"]
    assert frame["terse_bus_gb_per_s"].tolist() == ["–", "≥12.00"]
    assert frame["terse_last_rank"].tolist() == ["≈", "–"]
    missing = rows.assign(last_rank=pd.NA, within_clock_error=True, wait_ns=pd.NA)  # ranks without a trace
    assert collectives_rows(missing).frame["terse_last_rank"].tolist() == ["–", "–"]
    assert [None if pd.isna(word) else word for word in frame["last_word"]] == ["within clock error", None]
    assert [None if pd.isna(word) else word for word in frame["bus_is_lower_bound"]] == [None, "a lower bound"]


def test_a_line_that_explains_nothing_has_no_latency_and_no_bandwidth() -> None:
    """Of two groups the second's line misses its times by more than a quarter."""
    line = {"ranks": (0, 1), "kind": "all_reduce", "count": 12, "sizes": 3, "latency_ns": 5000.0, "bus_gb_per_s": 0.54}
    below = line | {"deviation": 0.1, "r_squared": -0.2}
    table = pd.DataFrame([line | {"deviation": 0.2, "r_squared": 0.9}, line | {"deviation": 0.6, "r_squared": -0.39}])
    block = lines_rows(table)
    assert block.frame["latency_ns"].isna().tolist() == [False, True]
    assert block.frame["bus_gb_per_s"].isna().tolist() == [False, True]
    assert block.frame["r_squared"].isna().tolist() == [False, True]
    assert block.frame["terse_bus_gb_per_s"].tolist() == ["0.54", "–"]
    assert "no line explains the times" in block.legend
    assert "no line explains" not in lines_rows(table.iloc[:1]).legend
    mean = lines_rows(pd.DataFrame([below]))
    assert (mean.frame["latency_ns"].isna().tolist(), mean.frame["r_squared"].isna().tolist()) == ([False], [True])
    assert mean.legend.startswith("R² –: the mean explains the times better than the line. T = ")
    assert mean.notes[0] == "where R² alone is missing, the mean explains the times better than the line"


def test_exposed_times_of_collectives_say_that_they_may_add_up_to_more(tmp_path: Path) -> None:
    run = load_run(made_runs(tmp_path / "runs") / "bucketed")
    legend = collectives_rows(analyses.each_collective(analyses.collectives(run))).legend
    for text in (legend, " ".join(map(str, buckets(RunTables(run=run))))):
        assert "simultaneous collectives each count it" in text


def test_few_sizes_are_a_table_instead_of_charts() -> None:
    """Of the sample's buckets three are of about 4.21 MB: sizes that read alike are one."""
    tables = sample_tables("bucketed")
    rows = analyses.each_collective(tables.collectives)
    block = sizes_rows(rows, 0.125)
    assert block is not None
    assert block.frame["count"].sum() == len(rows) == 21
    assert [round(size / 1e6, 2) for size in block.frame["bytes"]] == [5.23, 4.21, 1.09]
    assert "move 118 MB/s, in the median: 94\u00a0% of the link's bandwidth. In " in block.lead
    section = collectives_section(tables, None, None)
    assert section is not None
    assert {"waits", "bus_bandwidth"} & {shown.key for shown in section.blocks} == set()
    many = rows.assign(bytes=range(1_000, 1_000 + 100 * len(rows), 100))
    assert sizes_rows(many) is None
    assert sizes_rows(rows.assign(bytes=pd.array([None] * len(rows), dtype="Int64"))) is None


def test_a_cause_leads_to_the_bucket_that_has_most_of_it() -> None:
    """The bucket is the one that its line names, not the longest in the time that all of them span."""
    tables = sample_tables("bucketed")
    diagnosis = tables.diagnosis
    assert diagnosis is not None
    rows = analyses.buckets(tables.run, Selection(ranks=[diagnosis.rank or 0], steps=[diagnosis.step or 0]))
    named = 0
    for block in summary_section(tables, diagnosis, None).blocks:
        for bar in block.bars if isinstance(block, Bars) and not block.predicted else ():
            if bar.spot is not None and (number := re.search(r"longest in bucket (\d)", " ".join(bar.lines))):
                row = rows[rows["index"] == int(number[1])].iloc[0]
                start, end = (at - diagnosis.start_ns for at in bar.spot["carried"])
                assert row["start_ns"] - 1_000_000 <= start <= end <= row["end_ns"] + 1_000_000
                named += 1
    assert named >= 2
