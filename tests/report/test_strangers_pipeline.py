"""The command and the report on pipelines whose stages are not labelled."""

from __future__ import annotations

from pathlib import Path

import pytest
from made.strangers import one_f_one_b, run_of

from overlaplab.findings import PIPELINE_UNLABELLED
from overlaplab.report import terminal
from overlaplab.report.sections import sections
from overlaplab.sections.run_tables import RunTables


def test_the_command_tells_what_is_known(tmp_path: Path) -> None:
    run = run_of(tmp_path, *one_f_one_b())
    lines = [line for line in terminal.pipeline(RunTables(run=run)) if isinstance(line, str)]
    assert lines[1].startswith("Rank 0 computes nothing while it waits")
    assert lines[-1] == PIPELINE_UNLABELLED


@pytest.mark.parametrize("names_peers", [True, False])
def test_the_report_has_the_section(tmp_path: Path, names_peers: bool) -> None:
    run = run_of(tmp_path, *one_f_one_b(names_peers=names_peers))
    (section,) = (own for own in sections(RunTables(run=run)) if own.title == "Pipeline")
    assert PIPELINE_UNLABELLED in section.advice
