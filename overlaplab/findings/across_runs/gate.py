"""What became of the conditions of a check, and how a run's figures changed."""

from __future__ import annotations

from collections.abc import Sequence

from overlaplab.analyses.across_runs.regression import Judged
from overlaplab.words import count, ms


def failed_line(found: Judged) -> str:
    """A condition that failed, in one line: what the figure did or is, then the condition."""
    return f"{_number(found)}: {found.condition}"


def judged_sentence(found: Judged) -> str:
    """What became of a condition, and why."""
    said = f"{_number(found)}, and may not be {found.condition.sign} {found.condition.limit:g}{found.condition.unit}"
    if found.holds and found.within:
        return f"{said}; it lies within the {count(found.recordings, 'recording')} that it is held against"
    return said


def gate_title(found: Sequence[Judged]) -> str:
    """The verdict of the whole check."""
    failed = sum(one.failed for one in found)
    if not found:
        return "Figures of the run"
    return f"{failed} of {count(len(found), 'condition')} failed" if failed else "Every condition holds"


def _number(found: Judged) -> str:
    """What the figure did, or is."""
    condition = found.condition
    if found.before is None or found.now is None:
        return f"{condition.column} is {found.number:.4g}{condition.unit}"
    values = " to ".join(_value(condition.column, value) for value in (found.before, found.now))
    return f"{condition.column} changed by {found.number:+.1f} %, from {values} (means)"


def _value(column: str, value: float) -> str:
    return ms(round(value)) if column.endswith("_ns") else f"{value:.4g}"
