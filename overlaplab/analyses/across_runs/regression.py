"""Conditions on a run, or on how it differs from earlier ones, for checks that fail a build.

A change is one of the figure's mean over the earlier recordings. Where there are several, it counts only if the figure
lies beyond that of every one of them: recordings of equal settings do so in one of (their number + 1) cases by chance.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from overlaplab.analyses.scalars import HIDDEN, OF_CAUSE, SHARES, Scalars
from overlaplab.analyses.summary import FIGURES
from overlaplab.errors import OverlaplabError
from overlaplab.words import known_names, ms

_CONDITION = re.compile(r"\s*([\w.-]+)\s*([<>]=?)\s*([-+]?\d+(?:\.\d+)?)\s*(%|ns|us|µs|ms|s|)\s*")
_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_WITHOUT_UNIT = {"overlap_ratio", *SHARES, *HIDDEN}
_UNKNOWN_CAUSE = "exposed.unknown"
_SIGNS = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}


class Condition(Struct, frozen=True, kw_only=True):
    """A figure changed by more (`>`, `>=`) or less (`<`, `<=`) than so many percent, or is more or less than a limit.

    The figure is one of `scalars`.
    """

    column: str
    sign: str
    limit: float
    """In the unit."""
    unit: str
    """`%` of a change; of a limit a unit of time, or empty for a ratio or a count."""

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {self.limit:g}{self.unit}"

    @property
    def is_change(self) -> bool:
        """Whether it is about the change between two runs, and not about one."""
        return self.unit == "%"

    @property
    def is_of_cause(self) -> bool:
        """Whether it is about the exposed time of one cause."""
        return SHARES.get(self.column, self.column) in OF_CAUSE

    def value(self, figures: Scalars) -> float | None:
        """A run's figure in the condition's unit (ns, where that is %); None where unknown."""
        figure = figures.get(self.column)
        return None if figure is None else figure / _NS.get(self.unit, 1)

    def change(self, before: Sequence[Scalars], figures: Scalars) -> float | None:
        """By how many percent the figure changed, from its mean over earlier recordings; None where unknown."""
        after, earlier = figures.get(self.column), [each.get(self.column) for each in before]
        figures_before = [figure for figure in earlier if figure is not None]
        if after is None or len(figures_before) < len(before):
            return None
        mean = fmean(figures_before)
        if mean == 0:
            return 0.0 if after == 0 else float("inf") if after > 0 else float("-inf")
        return 100 * (after - mean) / abs(mean)

    def met_by(self, number: float) -> bool:
        """Whether such a change, or such a value, meets the condition."""
        return bool(_SIGNS[self.sign](number, self.limit))


class Judged(Struct, frozen=True, kw_only=True):
    """What became of a condition."""

    condition: Condition
    number: float
    """The change in percent, or the figure in the condition's unit."""
    before: float | None
    """The figure's mean over the earlier recordings, in its own unit, where the number is a change."""
    now: float | None
    """The figure itself, in the same unit, where the number is a change."""
    holds: bool
    """Whether the number meets the condition."""
    recordings: int
    """How many earlier ones the change is from."""
    within: bool
    """Whether the figure lies within those of several earlier recordings."""

    @property
    def failed(self) -> bool:
        """Whether the check fails."""
        return self.holds and not self.within


def judged(conditions: Sequence[Condition], before: Sequence[Scalars], figures: Scalars) -> list[Judged]:
    """Each condition on a run's `scalars`, with those of earlier recordings that changes are from.

    Raises `OverlaplabError` where a figure is unknown, and where the check of a cause passes only if none of the
    exposed time of unknown cause is due to it.
    """
    return [_judge(condition, before, figures) for condition in conditions]


def _judge(condition: Condition, before: Sequence[Scalars], figures: Scalars) -> Judged:
    judged = _apply_condition(condition, before, figures)
    if not condition.is_of_cause or judged.failed:
        return judged
    at_most = [with_unknown(each, condition.column) for each in (*before, figures)]
    if _apply_condition(condition, at_most[:-1], at_most[-1]).failed:
        why = f"{unknown_ms(figures)} of exposed time per step have no known cause"
        what = f"--fail-if: {condition} cannot be judged: {why}"
        raise OverlaplabError(what, remedy="`overlaplab exposed` says why.")
    return judged


def unknown_ms(figures: Scalars) -> str:
    """How much exposed time has no known cause."""
    return ms(round(figures.get(_UNKNOWN_CAUSE) or 0))


def with_unknown(figures: Scalars, column: str) -> Scalars:
    """The figures as they are if all exposed time of unknown cause is due to the cause that this figure is of."""
    unknown = f"{_UNKNOWN_CAUSE}_share" if column in SHARES else _UNKNOWN_CAUSE
    value = figures.get(column)
    return figures if column == unknown or value is None else {**figures, column: value + (figures.get(unknown) or 0)}


def _apply_condition(condition: Condition, before: Sequence[Scalars], figures: Scalars) -> Judged:
    number = condition.change(before, figures) if condition.is_change else condition.value(figures)
    if number is None:
        raise OverlaplabError(f"--fail-if: {condition.column} is unknown in one of the runs")
    mean, now, within = None, None, False
    if condition.is_change:
        now, others = figures[condition.column] or 0, [each.get(condition.column) or 0 for each in before]
        mean = fmean(others)
        if len(before) > 1:
            within = now <= max(others) if condition.sign[0] == ">" else now >= min(others)
    return Judged(
        condition=condition,
        number=number,
        before=mean,
        now=now,
        holds=condition.met_by(number),
        recordings=len(before),
        within=within,
    )


def parse_condition(text: str, option: str = "--fail-if") -> Condition:
    """Read `exposed_comm_ns > 5%`, `exposed.tail > 5ms`, `overlap_ratio < 0.8` or `hidden_gathers >= 7`.

    Raises `OverlaplabError`, which names the `option`, for another form, an unknown figure, or a unit that is not the
    figure's.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise OverlaplabError(
            f"{option} {text!r} is not a condition", remedy="Write one like 'exposed_comm_ns > 5%' or 'span_ns > 5ms'."
        )
    column, sign, limit, unit = match[1].replace("-", "_"), match[2], float(match[3]), match[4]
    figures = (*FIGURES, *OF_CAUSE, *SHARES, *HIDDEN)
    if column not in figures:
        raise OverlaplabError(f"{option}: no figure {match[1]!r}", remedy=known_names(match[1], figures))
    if unit != "%" and (column in _WITHOUT_UNIT) is not (unit == ""):
        limits = "a count" if column in HIDDEN else "a ratio from 0 to 1"
        by_unit = "Write %, ns, us, ms or s after it."
        remedy = f"Write {limits}, or a change in %." if column in _WITHOUT_UNIT else by_unit
        raise OverlaplabError(f"{option} {text!r}: {match[3]}{unit} is no limit of {column}", remedy=remedy)
    return Condition(column=column, sign=sign, limit=limit, unit=unit)
