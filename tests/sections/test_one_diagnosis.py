"""No two screens name different ranks, steps, causes or remedies for the same rank and step: in the samples, and in
anybody's traces with `STRANGERS=DIR pytest tests/sections/test_one_diagnosis.py` (a folder of runs).
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from browsing.pages import pages
from made.traces import gloo, op, run_of, step
from rich.console import Console
from samples import each_gpu_sample, each_sample, sample_tables

from overlaplab import analyses, findings
from overlaplab.causes import Cause
from overlaplab.events import Run
from overlaplab.findings import Diagnosis
from overlaplab.findings.thresholds import LITTLE_GAIN
from overlaplab.report import terminal
from overlaplab.report.blocks import Drawn, Shown
from overlaplab.report.documents import exposed_document
from overlaplab.report.sections import sections
from overlaplab.sections.blocks import Bars, Lines, Section, Tiles
from overlaplab.sections.run_tables import RunTables
from overlaplab.sections.summary import summary_section
from overlaplab.selection import Selection
from overlaplab.timeline.marks import MarkKind
from overlaplab.timeline.window_statistics import timeline_window

STRANGERS = (
    sorted(path for path in Path(os.environ["STRANGERS"]).resolve().iterdir() if path.is_dir())
    if "STRANGERS" in os.environ
    else []
)
REMEDIES = re.compile(r"\bTry\b|bucket_cap|faster link|prefetch \d|Go after|Look first|fewer bytes|precision|no_sync")


def printed(run: Run, found: Diagnosis) -> str:
    """What `overlaplab summary` and `exposed` print about the rank and step."""
    ranks, steps = ([value] if value is not None else None for value in (found.rank, found.step))
    console = Console(file=StringIO(), width=10_000)
    for command in (terminal.summary, terminal.exposed):
        for part in command(RunTables(run=run, selection=Selection(ranks=ranks, steps=steps))):
            console.print(part, markup=False, highlight=False)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def sentences(section: Section | Shown) -> Iterator[str]:
    """What a section says in words: in the report with its charts' titles."""
    yield section.lead.rpartition(" · ")[2]  # before it the run's own settings
    for block in section.blocks:
        match block:
            case Lines():
                yield from block.lines
            case Drawn():
                yield block.title
            case Bars():
                yield from (block.heading, block.remainder)
                yield from (line for bar in block.bars for line in (bar.label, *bar.lines))
            case Tiles():
                yield from (str(tile) for tile in block.tiles)


def contradictions(text: str, found: Diagnosis) -> list[str]:
    """What a screen's sentence says that the diagnosis does not."""
    own = " ".join(
        [
            found.headline,
            found.advice,
            found.outliers or "",
            found.kinds or "",
            found.late_reason or "",
            *(share.remedy for share in found.causes),
        ]
        + [share.what for share in found.causes]
    )
    late = {share.late_rank for share in found.causes}
    ranks = {
        number
        for number in re.findall(r"(?<!differ from )\brank (\d+)", text)
        if int(number) not in {found.rank, *late}
    }
    steps = {number for number in re.findall(r"(?<!median |. mean )\bstep (\d+)", text) if int(number) != found.step}
    labels = {share.label for share in found.causes}
    causes = {cause.label for cause in Cause if cause.label in text and cause.label not in labels}
    rest = text
    ahead = () if found.ahead is None else (f"with prefetch {found.ahead.depth}", f"prefetch {found.ahead.depth}")
    actions = [each.short for each in found.actions]
    for said in (found.advice, found.headline, *ahead, *(share.remedy for share in found.causes), *actions):
        rest = rest.replace(said, "")
    remedies = REMEDIES.findall(rest)
    wrong = [f"rank {number}" for number in sorted(ranks) if f"rank {number}" not in own]
    wrong += [f"step {number}" for number in sorted(steps) if f"tep {number}" not in own]
    return [*wrong, *sorted(causes), *remedies]


def little_gains(found: Diagnosis) -> list[str]:
    """Remedies, under a cause's bar, too, that gain too little, or fewer bytes without what they gain."""
    little_ns = LITTLE_GAIN * min((each.gain_ns + each.step_ns for each in found.actions), default=found.span_ns)
    said = [
        f"{share.label}: {share.remedy}"
        for share in found.causes
        if share.remedy and share.gain_ns is not None and share.gain_ns <= little_ns
    ]
    return [
        *said,
        *re.findall(
            r"(?:fewer|half the) bytes \([^)]*\) or a (?:faster link|link twice as fast)"
            r"(?!\. Predicted|, against|: −|\. The cause: [^.]*(?:\.\d[^.]*)?\. Its gain is not predicted)",
            found.advice,
        ),
    ]


def both_some_and_no_option(tables: RunTables, found: Diagnosis) -> list[str]:
    """What `advise` says of no option's gain, where the diagnosis that it begins with advises one."""
    if findings.advice_refused(tables.run) is not None:
        return []
    lines = [line for line in findings.advice_sentences(tables.advice, found) if line.startswith("Another ")]
    option = re.search(r"Try (bucket_cap_mb|a first bucket|prefetch)", found.advice)
    return lines if option else []


def causes_on_the_timeline(tables: RunTables, found: Diagnosis) -> tuple[dict[str, int], dict[str, int]]:
    """What the exposed lane and the panel beside it say of the rank and step, in ns by cause."""
    timeline = tables.timeline
    step = analyses.rows_of(timeline.steps, {"rank": found.rank, "step": found.step}).iloc[0]
    window = int(step["start_ns"]), int(step["end_ns"])
    ranks = None if found.rank is None else {found.rank}
    lanes = timeline.lanes[(timeline.lanes["kind"] == "exposed") & timeline.lanes["rank"].isin(ranks or {pd.NA})]
    drawn = timeline.events[timeline.events["lane"].isin(lanes["lane"])]
    drawn = drawn[(drawn["start_ns"] >= window[0]) & (drawn["end_ns"] <= window[1])]
    lane: Counter[str] = Counter()
    for name, took in zip(drawn["name"], drawn["end_ns"] - drawn["start_ns"], strict=True):
        lane[str(name).partition(": ")[0]] += int(took)  # as the tooltip begins
    panel = timeline_window(timeline, *window, ranks).causes
    words = map(findings.mark_word, map(MarkKind, panel["part"]))
    return dict(lane), dict(zip(words, panel["exposed_ns"].tolist(), strict=True))


def places(tables: RunTables) -> Iterator[tuple[int | None, int | None]]:
    """The one that speaks for the run, and the last rank's last step."""
    yield None, None
    last = tables.summary.dropna(subset=["rank", "step"]).tail(1)
    yield from zip(last["rank"].astype(int).tolist(), last["step"].astype(int).tolist(), strict=True)


@pytest.mark.parametrize("folder", [*each_sample(), *each_gpu_sample(), *STRANGERS], ids=lambda folder: folder.name)
def test_all_screens_say_the_same_of_a_step(folder: Path) -> None:
    tables = sample_tables(folder)
    run = tables.run
    speaks = tables.diagnosis
    if speaks is None:
        pytest.skip("nothing was measured")
    for asked in places(tables):
        found = tables.find_diagnosis(*asked)
        assert found is not None
        assert sum(share.exposed_ns for share in found.causes) == found.exposed_ns
        assert little_gains(found) == []
        for page in pages(tables, found):
            assert page.advice == findings.why_and_what_to_do(found), page.title
            for text in sentences(page):
                assert contradictions(text, found) == [], f"{page.title}: {text}"
        for text in sentences(summary_section(tables, found, None)):
            assert contradictions(text, found) == [], text
        lane, panel = causes_on_the_timeline(tables, found)
        labels, causes = Counter[str](), Counter[str]()
        for share in found.causes:
            labels[share.label] += share.exposed_ns
            causes[findings.mark_word(MarkKind(share.cause.value))] += share.exposed_ns
        assert (lane, panel) == (labels, causes)
        out = printed(run, found)
        assert (out.count(found.headline), out.count(found.advice)) == (2, 2)
    assert both_some_and_no_option(tables, speaks) == []
    document = exposed_document(RunTables(run=run))
    json.dumps(document, allow_nan=False)
    assert document["worst"] == {"rank": speaks.rank, "step": speaks.step}
    assert (document["advice"], document["verdict"]) == (speaks.advice, tables.verdict)
    assert contradictions(tables.verdict, speaks) == []
    worth = [each.is_worth_it for each in speaks.actions]
    assert worth == sorted(worth, reverse=True)
    for section in sections(tables):
        said = (findings.what_to_do(speaks), " ".join(findings.why_and_what_to_do(speaks)))
        own = " ".join(findings.pipeline_advice(tables.pipeline_remedies)) if section.title == "Pipeline" else ""
        assert section.advice.removeprefix(own).strip() in (*said, ""), section.title
        for text in sentences(section):
            assert contradictions(text, speaks) == [], f"{section.title}: {text}"


def test_a_step_of_a_quiet_machine_speaks_for_the_run(tmp_path: Path) -> None:
    """The machine was busy in the first two of three; a busy step that is asked for is shown, and says so."""
    steps = [
        [step(number, at, at + 100), op("mm", at, at + 60), gloo(at + 40, at + 60 + exposed)]
        for number, at, exposed in ((3, 0, 39), (4, 100, 35), (5, 200, 20))
    ]
    machine = [
        {"rank": 0, "step": number, "took_ns": 100_000, "cores": 2, "busy": number < 5, "delayed_ns": 30_000}
        for number in (3, 4, 5)
    ]
    run = run_of(tmp_path, [event for events in steps for event in events], manifest={"machine": machine})
    tables = RunTables(run=run)
    diagnosis = tables.diagnosis
    assert diagnosis is not None
    assert (diagnosis.step, diagnosis.chosen, tables.window) == (5, "the only one", {"rank": 0, "step": 5})
    assert not diagnosis.headline.startswith("The machine was busy")
    of_step_4 = tables.find_diagnosis(0, 4)
    assert of_step_4 is not None
    assert of_step_4.headline.startswith("The machine was busy in this step")
