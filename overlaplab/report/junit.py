"""A check's conditions as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from overlaplab import findings
from overlaplab.analyses.across_runs.regression import Condition, Judged


def junit_xml(found: Sequence[Judged], path: str) -> bytes:
    """One test case per condition; `path` is the run's, and stands as their class name."""
    failed = sum(one.failed for one in found)
    suite = _suite(len(found), failures=failed)
    for one in found:
        case = ElementTree.SubElement(suite, "testcase", classname=path, name=str(one.condition))
        said = findings.judged_sentence(one)
        if one.failed:
            ElementTree.SubElement(case, "failure", message=said)
        else:
            ElementTree.SubElement(case, "system-out").text = said
    return _text(suite)


def not_judged_xml(conditions: Sequence[Condition], path: str, why: str) -> bytes:
    """An error for each condition, or for the comparison where there is none: nothing was judged."""
    names = [str(condition) for condition in conditions] or ["compare"]
    suite = _suite(len(names), errors=len(names))
    for name in names:
        case = ElementTree.SubElement(suite, "testcase", classname=path, name=name)
        ElementTree.SubElement(case, "error", message=why)
    return _text(suite)


def _suite(tests: int, *, failures: int = 0, errors: int = 0) -> ElementTree.Element:
    counts = {"tests": tests, "failures": failures, "errors": errors, "skipped": 0}
    return ElementTree.Element("testsuite", {"name": "overlaplab"} | {name: str(n) for name, n in counts.items()})


def _text(suite: ElementTree.Element) -> bytes:
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
