"""Conditions on a run, or on how it differs from another, for checks that fail a build."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from overlaplab.analyses.exposed import CAUSES, exposed
from overlaplab.analyses.summary import FIGURES, summary
from overlaplab.errors import OverlaplabError
from overlaplab.events import Run
from overlaplab.selection import EVERYTHING, Selection

_CONDITION = re.compile(r"\s*([\w.-]+)\s*(>|<)\s*([-+]?\d+(?:\.\d+)?)\s*(%|ns|us|µs|ms|s|)\s*")
_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_RATIO = "overlap_ratio"
_OF_CAUSE = {"exposed." + re.sub(r"\W", "_", cause): cause for cause in CAUSES}
"""Figures that are the exposed time of one cause: `exposed.tail`, `exposed.straggler_wait`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A figure changed by more (`>`) or less (`<`) than so many percent, or is more or less than a limit.

    The figure is a column of `figures`: its mean over all steps of all ranks, or the ratio of the sums.
    """

    column: str
    sign: str
    limit: float
    """In the unit."""
    unit: str
    """`%` of a change; of a limit a unit of time, or empty for a ratio."""

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {self.limit:g}{self.unit}"

    @property
    def is_change(self) -> bool:
        """Whether it is about the change between two runs, and not about one."""
        return self.unit == "%"

    @property
    def is_of_cause(self) -> bool:
        """Whether it is about the exposed time of one cause."""
        return self.column in _OF_CAUSE

    def value(self, table: pd.DataFrame) -> float | None:
        """A run's figure in the condition's unit (ns, where that is %), from `figures`; None where unknown."""
        found = _mean(table, self.column)
        return None if pd.isna(found) else found / _NS.get(self.unit, 1)

    def change(self, first: pd.DataFrame, last: pd.DataFrame) -> float | None:
        """By how many percent the figure changed between two tables of `figures`; None where unknown."""
        before, after = _mean(first, self.column), _mean(last, self.column)
        if pd.isna(before) or pd.isna(after):
            return None
        if before == 0:
            return 0.0 if after == 0 else float("inf") if after > 0 else float("-inf")
        return float(100 * (after - before) / abs(before))

    def met_by(self, number: float) -> bool:
        """Whether such a change, or such a value, meets the condition."""
        return number > self.limit if self.sign == ">" else number < self.limit


def figures(run: Run, conditions: Sequence[Condition], selection: Selection = EVERYTHING) -> pd.DataFrame:
    """What the conditions are about: `summary`, and if any needs it a column per cause with its exposed time in ns."""
    table = summary(run, selection)
    if not any(condition.is_of_cause for condition in conditions):
        return table
    keys = ["rank", "step"]
    sums = exposed(run, selection).groupby([*keys, "cause"], dropna=False)["exposed_ns"].sum().unstack("cause")
    found = table[keys].merge(sums.reset_index(), on=keys, how="left")
    nothing = pd.Series(0, index=found.index)
    return table.assign(**{name: found.get(cause, nothing).fillna(0).to_numpy() for name, cause in _OF_CAUSE.items()})


def parse_condition(text: str) -> Condition:
    """Read `exposed_comm_ns > 5%`, `exposed.tail > 5ms` or `overlap_ratio < 0.8`.

    Raises `OverlaplabError` for another form, an unknown figure, or a unit that is not the figure's.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise OverlaplabError(
            f"--fail-if {text!r} is not a condition", remedy="Write one like 'exposed_comm_ns > 5%' or 'span_ns > 5ms'."
        )
    column, sign, limit, unit = match[1].replace("-", "_"), match[2], float(match[3]), match[4]
    if column not in FIGURES and column not in _OF_CAUSE:
        raise OverlaplabError(
            f"--fail-if: no figure {match[1]!r}", remedy=f"There are {', '.join((*FIGURES, *_OF_CAUSE))}."
        )
    if unit != "%" and (column == _RATIO) is not (unit == ""):
        remedy = (
            "Write a ratio from 0 to 1, or a change in %." if column == _RATIO else "Write %, ns, us, ms or s after it."
        )
        raise OverlaplabError(f"--fail-if {text!r}: {match[3]}{unit} is no limit of {column}", remedy=remedy)
    return Condition(column=column, sign=sign, limit=limit, unit=unit)


def _mean(table: pd.DataFrame, column: str) -> float:
    """The column's mean; for `overlap_ratio` the ratio of the sums."""
    if column == _RATIO:
        comm = table["comm_ns"].sum()
        return float(table["overlapped_ns"].sum() / comm) if comm else float("nan")
    return float(table[column].astype("Float64").mean()) if table[column].notna().any() else float("nan")
