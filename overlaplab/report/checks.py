"""A check as JUnit XML, which CI shows as tests, and as Markdown, for a comment on a change or a job's summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import fmean
from xml.etree import ElementTree

from overlaplab import findings
from overlaplab.analyses.scalars import Scalars
from overlaplab.columns import column
from overlaplab.events import Run
from overlaplab.findings import CheckLine, Outcome
from overlaplab.formats import UNKNOWN, text
from overlaplab.sections.run_tables import RunTables
from overlaplab.selection import Selection
from overlaplab.words import visible_line

_ELEMENTS = {Outcome.FAILED: "failure", Outcome.INCONCLUSIVE: "skipped"}
_MARKS = {Outcome.HOLDS: "✅", Outcome.FAILED: "❌", Outcome.INCONCLUSIVE: "❔ inconclusive:"}
_SHOWN = ("span_ns", "compute_ns", "comm_ns", "overlapped_ns", "exposed_comm_ns", "idle_ns", "overlap_ratio")


def junit_xml(lines: Sequence[CheckLine], path: str) -> bytes:
    """One test case per condition; `path` is the run's, and stands as their class name."""
    outcomes = [line.outcome for line in lines]
    suite = _suite(len(lines), failures=outcomes.count(Outcome.FAILED), skipped=outcomes.count(Outcome.INCONCLUSIVE))
    for line in lines:
        case = ElementTree.SubElement(suite, "testcase", classname=visible_line(path), name=line.name)
        if line.outcome is Outcome.HOLDS:
            ElementTree.SubElement(case, "system-out").text = line.sentence
        else:
            begin = "inconclusive: " if line.outcome is Outcome.INCONCLUSIVE else ""
            ElementTree.SubElement(case, _ELEMENTS[line.outcome], message=begin + line.sentence)
    return _xml_text(suite)


def not_judged_xml(conditions: Sequence[str], path: str, why: str) -> bytes:
    """An error for each condition, or for the comparison where there is none: nothing was judged."""
    names = conditions or ["compare"]
    suite = _suite(len(names), errors=len(names))
    for name in names:
        case = ElementTree.SubElement(suite, "testcase", classname=visible_line(path), name=visible_line(name))
        ElementTree.SubElement(case, "error", message=visible_line(why))
    return _xml_text(suite)


def _suite(tests: int, *, failures: int = 0, errors: int = 0, skipped: int = 0) -> ElementTree.Element:
    counts = {"tests": tests, "failures": failures, "errors": errors, "skipped": skipped}
    return ElementTree.Element("testsuite", {"name": "overlaplab"} | {name: str(n) for name, n in counts.items()})


def _xml_text(suite: ElementTree.Element) -> bytes:
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def gate_markdown(
    run: Run, selection: Selection, figures: Scalars, before: Sequence[Scalars], lines: Sequence[CheckLine]
) -> bytes:
    """The verdict on the conditions, the run's own headline and advice, and its figures beside earlier ones."""
    diagnosis = RunTables(run=run, selection=selection).diagnosis
    parts = [f"### overlaplab: {findings.gate_title(lines)}"]
    parts += ["\n".join(f"- {_MARKS[line.outcome]} {_escape_markdown(line.sentence)}" for line in lines)]
    parts += [
        _escape_markdown(words) for words in (() if diagnosis is None else (diagnosis.headline, diagnosis.advice))
    ]
    parts += ["\n".join(_table(figures, before))]
    return ("\n\n".join(part for part in parts if part) + "\n").encode("utf-8", errors="replace")


def not_judged_markdown(why: str) -> bytes:
    """That nothing was judged, and why."""
    return f"### overlaplab: nothing was judged\n\n- ❌ {_escape_markdown(why)}\n".encode("utf-8", errors="replace")


def _table(figures: Scalars, before: Sequence[Scalars]) -> Iterator[str]:
    """A row per figure: its mean over earlier recordings, what it is now, and by how much it changed."""
    yield "| figure, mean per step | before | now | change |"
    yield "|---|--:|--:|--:|"
    for name in _SHOWN:
        shown = column("summary", name)
        values = [value for earlier in before if (value := earlier.get(name)) is not None]
        was, now = fmean(values) if values else None, figures[name]
        change = f"{100 * (now - was) / abs(was):+.1f} %" if was and now is not None else UNKNOWN
        cells = (shown.title, text(was, shown.unit, 2), text(now, shown.unit, 2), change)
        yield f"| {' | '.join(cells)} |"


def _escape_markdown(words: str) -> str:
    """Words without the characters that Markdown reads as marks."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", words)
