"""Numbers that decide which sentence is chosen are all in one file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import overlaplab.findings
import overlaplab.sections
from overlaplab.findings import thresholds

MODULES = sorted(Path(overlaplab.findings.__file__).parent.rglob("*.py"))
SECTIONS = sorted(Path(overlaplab.sections.__file__).parent.rglob("*.py"))
"""They choose which findings a page shows, by the same numbers."""
PLAIN = {0, 1, 2}
"""These numbers ask for none, one or several, and are no thresholds."""


def numbers_compared(code: str) -> list[float]:
    """The numbers in comparisons, alone or as a factor."""
    compared = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Compare)]
    constants = [part.value for node in compared for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [value for value in constants if isinstance(value, int | float) and value not in PLAIN]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_sentence_has_a_threshold_of_its_own(path: Path) -> None:
    assert numbers_compared(path.read_text()) == []


def test_numbers_in_comparisons_are_found() -> None:
    assert numbers_compared("if 10 * memory > span and wait <= 0.02 * step and len(rows) > 1: pass") == [10, 0.02]


def test_every_threshold_is_used() -> None:
    names = {name for name in vars(thresholds) if name.isupper()}
    assert names
    code = "\n".join(path.read_text() for path in (*MODULES, *SECTIONS) if path.stem != "thresholds")
    assert names - set(re.findall(r"\w+", code)) == set()
