"""A condition on how one run differs from another, for checks that fail a build."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from overlaplab.analyses.summary import FIGURES
from overlaplab.errors import OverlaplabError

_CONDITION = re.compile(r"\s*(\w+)\s*(>|<)\s*([-+]?\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """`column` of `summary` changed by more (`>`) or less (`<`) than `percent`: its mean, or the ratio of sums."""

    column: str
    sign: str
    percent: float

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {self.percent:g}%"

    def change(self, first: pd.DataFrame, last: pd.DataFrame) -> float | None:
        """By how many percent the mean changed between two `summary` tables; None where unknown."""
        before, after = _figure(first, self.column), _figure(last, self.column)
        if pd.isna(before) or pd.isna(after):
            return None
        if before == 0:
            return 0.0 if after == 0 else float("inf") if after > 0 else float("-inf")
        return float(100 * (after - before) / abs(before))

    def met_by(self, change: float) -> bool:
        """Whether such a change meets the condition."""
        return change > self.percent if self.sign == ">" else change < self.percent


def _figure(table: pd.DataFrame, column: str) -> float:
    """The column's mean; for `overlap_ratio` the ratio of the sums."""
    if column == "overlap_ratio":
        comm = table["comm_ns"].sum()
        return float(table["overlapped_ns"].sum() / comm) if comm else float("nan")
    return float(table[column].astype("Float64").mean()) if table[column].notna().any() else float("nan")


def parse_condition(text: str) -> Condition:
    """Read `exposed_comm_ns > 5%`; raises `OverlaplabError` for another form or an unknown column."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise OverlaplabError(f"--fail-if {text!r} is not a condition", remedy="Write one like 'exposed_comm_ns > 5%'.")
    if match[1] not in FIGURES:
        raise OverlaplabError(f"--fail-if: no figure {match[1]!r}", remedy=f"There are {', '.join(FIGURES)}.")
    return Condition(column=match[1], sign=match[2], percent=float(match[3]))
