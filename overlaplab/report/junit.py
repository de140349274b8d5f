"""A check's conditions as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from overlaplab.findings import CheckLine, Outcome

_ELEMENTS = {Outcome.FAILED: "failure", Outcome.INCONCLUSIVE: "skipped"}


def junit_xml(lines: Sequence[CheckLine], path: str) -> bytes:
    """One test case per condition; `path` is the run's, and stands as their class name."""
    outcomes = [line.outcome for line in lines]
    suite = _suite(len(lines), failures=outcomes.count(Outcome.FAILED), skipped=outcomes.count(Outcome.INCONCLUSIVE))
    for line in lines:
        case = ElementTree.SubElement(suite, "testcase", classname=path, name=line.name)
        if line.outcome is Outcome.HOLDS:
            ElementTree.SubElement(case, "system-out").text = line.sentence
        else:
            begin = "inconclusive: " if line.outcome is Outcome.INCONCLUSIVE else ""
            ElementTree.SubElement(case, _ELEMENTS[line.outcome], message=begin + line.sentence)
    return _text(suite)


def not_judged_xml(conditions: Sequence[str], path: str, why: str) -> bytes:
    """An error for each condition, or for the comparison where there is none: nothing was judged."""
    names = conditions or ["compare"]
    suite = _suite(len(names), errors=len(names))
    for name in names:
        case = ElementTree.SubElement(suite, "testcase", classname=path, name=name)
        ElementTree.SubElement(case, "error", message=why)
    return _text(suite)


def _suite(tests: int, *, failures: int = 0, errors: int = 0, skipped: int = 0) -> ElementTree.Element:
    counts = {"tests": tests, "failures": failures, "errors": errors, "skipped": skipped}
    return ElementTree.Element("testsuite", {"name": "overlaplab"} | {name: str(n) for name, n in counts.items()})


def _text(suite: ElementTree.Element) -> bytes:
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
