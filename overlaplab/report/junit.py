"""A check's conditions as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from overlaplab import findings
from overlaplab.analyses.across_runs.regression import Judged

__all__ = ["junit_xml"]


def junit_xml(found: Sequence[Judged], path: str) -> bytes:
    """One test case per condition; `path` is the run's, and stands as their class name."""
    failed = sum(one.failed for one in found)
    suite = ElementTree.Element(
        "testsuite", name="overlaplab", tests=str(len(found)), failures=str(failed), errors="0", skipped="0"
    )
    for one in found:
        case = ElementTree.SubElement(suite, "testcase", classname=path, name=str(one.condition))
        said = findings.judged_sentence(one)
        if one.failed:
            ElementTree.SubElement(case, "failure", message=said)
        else:
            ElementTree.SubElement(case, "system-out").text = said
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
