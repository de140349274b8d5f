"""From which step on a training has gone otherwise: its steps take longer or shorter, or a rank is late.

[Note: Pettitt's test]
A sequence is cut where the ranks of its values before and after differ most, as long as chance would hardly do that
(p = 2·exp(−6K²/(n³ + n²)) is at most `MAX_CHANCE` or `MAX_LATE_CHANCE`), and so are its parts. The test asks for no
distribution, and single long steps do not move it. Cuts between parts whose medians differ by less than matters are
dropped again.
A. N. Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28 (1979).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from overlaplab.analyses.watched.kinds import is_periodic, kinds_periods

MIN_CHANGE = 0.1
"""Steps that take a tenth longer or shorter have changed."""
MIN_STEPS = 20
"""What lasts for fewer steps is no lasting change."""
MIN_SHARE = 0.01
"""Nor is what lasts for less of the training."""
MIN_LATE_ROWS = 5
"""A rank must be late at so many measured steps before it is late from one on."""
MAX_CHANCE, MAX_LATE_CHANCE = 1e-6, 1e-3
"""How probable a change may be by chance: of times of all steps, and of lateness, of which only some are measured."""

_COLUMNS = ["change", "rank", "step", "since_step", "before_ns", "after_ns", "exposed_before_ns", "exposed_after_ns"]


def watched_changes(
    bursts: pd.DataFrame, late: pd.DataFrame, times: pd.Series[Any], kinds: pd.DataFrame
) -> pd.DataFrame:
    """What has changed for good, in order of steps.

    Takes the tables of `watched_bursts`, `watched_late`, `watched_step_times` and `watched_kinds`.

    Columns: `change` (`step time` or `late rank`), `rank` (the late one; null of step times), `step` (the first that is
    otherwise), `since_step` (the last measured step that was as before), `before_ns` and `after_ns` (the median step,
    or how late the rank was, before and after), `exposed_before_ns` and `exposed_after_ns` (the median exposed
    communication of a rank's measured step; null where unknown, and of late ranks).
    """
    rows = [*_time_changes(bursts, times, kinds), *_late_changes(late)]
    table = pd.DataFrame(rows, columns=_COLUMNS).sort_values("step", kind="stable", ignore_index=True)
    return table.astype({column: "Int64" for column in _COLUMNS if column != "change"})


def _time_changes(bursts: pd.DataFrame, times: pd.Series[Any], kinds: pd.DataFrame) -> list[dict[str, Any]]:
    spans = times[~is_periodic(times.index.to_numpy(), kinds_periods(kinds))]
    values, numbers = spans.to_numpy(float), spans.index.to_numpy()
    shortest = max(MIN_STEPS, int(MIN_SHARE * len(values)))
    borders = change_points(values, shortest, MAX_CHANCE, lambda a, b: abs(b / a - 1) >= MIN_CHANGE if a else b > 0)
    ends = [0, *borders, len(values)]
    measured = bursts[~bursts["profiled"] & bursts["exposed_comm_ns"].notna()]
    rows = []
    for place, border in enumerate(borders):
        begin, end = ends[place], ends[place + 2]
        before = measured[measured["step"].between(numbers[begin], numbers[border - 1])]
        after = measured[measured["step"].between(numbers[border], numbers[end - 1])]
        where = {"change": "step time", "step": int(numbers[border]), "since_step": int(numbers[border - 1])}
        before_ns, after_ns = (round(float(np.median(part))) for part in (values[begin:border], values[border:end]))
        exposed = {"exposed_before_ns": _median_exposed(before), "exposed_after_ns": _median_exposed(after)}
        rows.append(where | {"before_ns": before_ns, "after_ns": after_ns} | exposed)
    return rows


def _median_exposed(measured: pd.DataFrame) -> int | None:
    return round(float(measured["exposed_comm_ns"].median())) if len(measured) else None


def _late_changes(late: pd.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for rank in sorted(set(late.loc[late["late"], "late_rank"])):
        groups = set(late.loc[late["late_rank"] == rank, "group"])
        of_groups = late[late["group"].isin(groups)]
        behind = of_groups["late_ns"].where((of_groups["late_rank"] == rank) & of_groups["late"], 0)
        series = behind.groupby(of_groups["step"]).max()
        values, numbers = series.to_numpy(float), series.index.to_numpy()
        borders = change_points(values, MIN_LATE_ROWS, MAX_LATE_CHANCE, lambda a, b: max(a, b) > 2 * min(a, b))
        ends = [0, *borders, len(values)]
        for place, border in enumerate(borders):
            before, after = (
                round(float(np.median(values[a:b]))) for a, b in ((ends[place], border), (border, ends[place + 2]))
            )
            if before != after:
                times = {"before_ns": before, "after_ns": after}
                where = {"step": int(numbers[border]), "since_step": int(numbers[border - 1])}
                rows.append({"change": "late rank", "rank": int(rank)} | where | times)
    return rows


def change_points(
    values: npt.NDArray[Any], shortest: int, max_chance: float, differ: Callable[[float, float], bool]
) -> list[int]:
    """Where a sequence changes: the places of the first values that are otherwise; see [Note: Pettitt's test].

    Parts have at least `shortest` values; `differ` says whether two medians, before and after, differ enough.
    """
    cuts, parts = [], [(0, np.argsort(values, kind="stable"))]  # each with its places in order of value
    while parts:
        begin, places = parts.pop()
        cut = _cut(values[places], places - begin, shortest, max_chance)
        if cut is not None:
            cuts.append(begin + cut)
            is_before = places < begin + cut
            parts += [(begin, places[is_before]), (begin + cut, places[~is_before])]
    cuts.sort()
    while True:
        ends = [0, *cuts, len(values)]
        medians = [float(np.median(values[a:b])) for a, b in pairwise(ends)] if cuts else []
        alike = [place for place in range(len(cuts)) if not differ(medians[place], medians[place + 1])]
        if not alike:
            return cuts
        cuts.pop(min(alike, key=lambda place: abs(medians[place + 1] - medians[place])))


def _cut(values: npt.NDArray[Any], places: npt.NDArray[np.intp], shortest: int, max_chance: float) -> int | None:
    """The place that divides a sequence best, if chance hardly would: from its values in order, and their places."""
    count = len(values)
    if count < 2 * shortest:
        return None
    firsts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    counts = np.diff(firsts, append=count)
    ranks = np.empty(count)
    ranks[places] = np.repeat(firsts + (counts + 1) / 2, counts)  # of equal values the mean of their ranks
    sums = 2 * np.cumsum(ranks)[:-1] - np.arange(1, count) * (count + 1)  # Pettitt's U for each place
    inner = np.abs(sums[shortest - 1 : count - shortest])
    place = int(np.argmax(inner))
    strength = float(inner[place])
    if 2 * exp(-6 * strength**2 / (float(count) ** 3 + float(count) ** 2)) > max_chance:
        return None
    return place + shortest
