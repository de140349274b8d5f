"""What conditions on a run's figures say, once they are judged: a line each, and the title of them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from overlaplab.analyses.across_runs.regression import Condition, Judged
from overlaplab.words import count, ms


class Outcome(StrEnum):
    """What became of a condition."""

    HOLDS = "holds"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    """It must hold, and this recording does not tell whether it does."""


class CheckLine(Struct, frozen=True, kw_only=True):
    """One condition of a check, and what became of it."""

    name: str
    """The condition as it was written."""
    outcome: Outcome
    sentence: str
    """What the figure did or is, and why that is the outcome."""


def check_lines(judged: Sequence[Judged]) -> list[CheckLine]:
    """What became of conditions that must not be met."""
    outcomes = [Outcome.FAILED if each.failed else Outcome.HOLDS for each in judged]
    return [
        CheckLine(name=str(each.condition), outcome=outcome, sentence=_judged_sentence(each))
        for each, outcome in zip(judged, outcomes, strict=True)
    ]


def gate_title(lines: Sequence[CheckLine]) -> str:
    """The verdict of the whole check."""
    if not lines:
        return "Figures of the run"
    counts = Counter(line.outcome for line in lines)
    named = [
        f"{counts[outcome]} of {count(len(lines), 'condition')} {outcome}"
        for outcome in (Outcome.FAILED, Outcome.INCONCLUSIVE)
        if counts[outcome]
    ]
    return ", ".join(named) or "Every condition holds"


def _judged_sentence(judged: Judged) -> str:
    limit = f"{judged.condition.sign} {judged.condition.limit:g}{judged.condition.unit}"
    if judged.holds and judged.within:
        held_against = f"the {count(judged.recordings, 'recording')} that it is held against"
        return f"{_number(judged)}, and may not be {limit}; it lies within {held_against}"
    return f"{_number(judged)}, and may not be {limit}"


def _number(judged: Judged) -> str:
    """What the figure did, or is."""
    condition = judged.condition
    if judged.before is None or judged.now is None:
        return figure_words(condition, judged.number)
    values = " to ".join(_value(condition.column, value) for value in (judged.before, judged.now))
    return f"{condition.column} changed by {judged.number:+.1f} %, from {values} (means)"


def figure_words(condition: Condition, number: float) -> str:
    """What a condition's figure is, in the condition's unit."""
    return f"{condition.column} is {number:.4g}{condition.unit}"


def _value(column: str, value: float) -> str:
    return ms(round(value)) if column.endswith("_ns") else f"{value:.4g}"
