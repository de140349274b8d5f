"""Recordings whose one true cause and remedy are known: what is said of them, and whether the remedy gains as much."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from browsing.pages import pages, timeline_page
from situations import SITUATIONS, Situation, record

import overlaplab
from overlaplab import findings
from overlaplab.causes import Cause
from overlaplab.cli import main
from overlaplab.findings.runs import describe_machine
from overlaplab.report.page import report_page
from overlaplab.sections.blocks import Bars, Section, TableBlock
from overlaplab.sections.run_tables import RunTables
from overlaplab.sections.summary import summary_section

pytestmark = pytest.mark.alone
WITHIN = 0.1
"""Of what recording the remedy gives."""
ATTEMPTS = 4
"""Recordings of a situation, until one says of itself that nothing disturbed it: what is built in is its only cause."""
MADE_TOO = (
    *("slow link", "first bucket too large", "queueing behind a gather", "cannot be hidden"),
    *("blocking hook", "host paused"),
)
"""Situations recorded by hand only: queues, what no bucketing hides, waits at once and a paused host are in made traces
of tests/analyses, too. The others are about one page each.
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Situation], RunTables]:
    """A situation's run, recorded when it is first asked for."""
    known: dict[str, RunTables] = {}

    def run_of(situation: Situation) -> RunTables:
        if situation.name not in known:
            known[situation.name] = undisturbed(tmp_path_factory.mktemp("situation"), *situation.options)
        return known[situation.name]

    return run_of


def undisturbed(folder: Path, *options: str) -> RunTables:
    """A recording for which the machine was free and which attained its link; the test is skipped where none did."""
    for attempt in range(ATTEMPTS):
        run = overlaplab.load_run(record(folder / str(attempt), *options))
        assert run.manifest is not None
        if run.manifest.link_attained and not describe_machine(run.manifest):
            return RunTables(run=run)
    pytest.skip(f"other processes disturbed {ATTEMPTS} recordings")


def setting(situation: Situation, tables: RunTables) -> float:
    return float(tables.replays.set_index("remedy").loc[[situation.remedy], "setting"].iloc[0])


def each(*, remedied: bool = False) -> pytest.MarkDecorator:
    chosen = [
        pytest.param(situation, marks=pytest.mark.slow if situation.name in MADE_TOO else (), id=situation.name)
        for situation in SITUATIONS
        if situation.remedied or not remedied
    ]
    return pytest.mark.parametrize("situation", chosen)


@each()
def test_every_screen_says_the_cause_and_the_remedy(
    situation: Situation,
    recorded: Callable[[Situation], RunTables],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = recorded(situation)
    found = tables.diagnosis
    assert found is not None
    assert situation.is_problem in (None, found.is_problem), found.headline
    assert headline_words(situation.label) in found.headline
    said = situation.advice.format(setting=setting(situation, tables)) if situation.remedy else situation.advice
    assert said in found.advice
    assert (found.gain_ns is not None) == bool(situation.remedy)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(sys, "argv", ["overlaplab", "exposed", str(tables.run.path)])
    with pytest.raises(SystemExit):
        main()
    sections = {page.title: page for page in (*pages(tables, found), timeline_page(tables, found))}
    page = sections[situation.page]
    assert situation.shown in shown(page)
    on_page = [] if situation.page == "Timeline" else [" ".join(page.advice)]  # whose head alone has it
    for text in (capsys.readouterr().out, report_page([tables.run]), *on_page):
        assert plain(found.headline) in plain(text)
        assert plain(found.advice) in plain(text)
    summary = summary_section(tables, found, None)
    assert summary.advice == (findings.what_to_do(found),)
    if found.is_problem:
        causes = next(block for block in summary.blocks if isinstance(block, Bars) and block.key == "causes")
        own = next(bar for bar in causes.bars if situation.label in bar.label)
        assert any(line in found.advice for line in own.lines)


def headline_words(label: str) -> str:
    """What a headline says of a cause with this label, without where its sentence begins; of no cause's the label."""
    clause = next((cause.clause for cause in Cause if cause.label.endswith(label)), None)
    return label if clause is None else max(re.split(r"\{\}| of it, ", clause), key=len)[1:].strip()


def shown(page: Section) -> str:
    """What a page says of its own: its lead, and the causes in its tables."""
    tables = [block.frame for block in page.blocks if isinstance(block, TableBlock)]
    causes = [str(cause) for table in tables if "cause" in table for cause in table["cause"]]
    return "; ".join([page.lead, *causes])


def plain(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", text)).split())


@pytest.mark.slow
@each(remedied=True)
def test_the_remedy_gains_what_was_said(
    situation: Situation, recorded: Callable[[Situation], RunTables], tmp_path: Path
) -> None:
    tables = recorded(situation)
    found = tables.diagnosis
    assert found is not None
    assert found.gain_ns is not None
    number = f"{setting(situation, tables):g}"
    options = (number if option == "SETTING" else option for option in situation.remedied)
    summary = undisturbed(tmp_path, *options).summary
    gained_ns = found.span_ns - int(summary.groupby("step")["span_ns"].max().median())
    print(f"{situation.name}: {found.gain_ns / 1e6:.1f} ms predicted, {gained_ns / 1e6:.1f} ms recorded")
    assert found.gain_ns == pytest.approx(gained_ns, rel=WITHIN)
