"""Steps that are longer at regular distances, such as those with a checkpoint: a kind of steps, and no anomaly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from overlaplab.analyses.watched.steps import rank_parts

MIN_LONGER = 1.3
"""A step this many times as long as the steps around it stands out."""
MIN_MEMBERS = 3
"""Fewer long steps at one distance may be chance."""
MIN_MEMBER_SHARE = 0.8
"""At least 80 % of the steps at one distance must stand out."""
MAX_KINDS = 5
_KINDS = {"period": "Int64", "first_step": "Int64", **dict.fromkeys(("steps", "span_ns", "extra_ns"), "int64")}
_BLOCK_STEPS = 50
"""A step is compared with so many, among which it is."""


def watched_kinds(times: pd.Series[Any]) -> pd.DataFrame:
    """The kinds of steps of a training, from `watched_step_times`: the ordinary one, then periodic ones.

    Columns: `period` (each so many steps there is one; null for ordinary steps), `first_step`, `steps` (how many there
    are), `span_ns` (their median, each step's being the median over the ranks) and `extra_ns` (how much longer than an
    ordinary step).
    """
    periods = periodic_steps(times)
    ordinary = times[~is_periodic(times.index.to_numpy(), periods)]
    median_ns = float(ordinary.median()) if len(ordinary) else 0.0
    rows: list[tuple[Any, ...]] = [(None, ordinary.index.min(), len(ordinary), median_ns, 0.0)] if len(times) else []
    for period, first in periods:
        members = times[is_periodic(times.index.to_numpy(), [(period, first)])]
        span_ns = float(members.median())
        rows.append((period, first, len(members), span_ns, span_ns - median_ns))
    return pd.DataFrame(rows, columns=list(_KINDS)).round({"span_ns": 0, "extra_ns": 0}).astype(_KINDS)


def watched_step_times(steps: pd.DataFrame) -> pd.Series[Any]:
    """The median time in ns of each step over the ranks, by step, without steps in which a profiler ran.

    Takes the table of `watched_steps`.
    """
    spans, numbers, profiled = (steps[column].to_numpy() for column in ("span_ns", "step", "profiled"))
    if profiled.any():
        spans, numbers, steps = spans[~profiled], numbers[~profiled], steps[~profiled]
    parts = [part for _, part in rank_parts(steps)]
    step_of_rank = [numbers[part] for part in parts]
    if not parts:
        return pd.Series(dtype=float, index=pd.Index([], dtype="int64"))
    alike = all(np.array_equal(each, step_of_rank[0]) for each in step_of_rank)
    every = step_of_rank[0] if alike else _sorted_union(step_of_rank)
    by_rank = np.full((len(parts), len(every)), np.nan)
    for row, part, steps_there in zip(by_rank, parts, step_of_rank, strict=True):
        row[np.searchsorted(every, steps_there) if len(steps_there) < len(every) else slice(None)] = spans[part]
    by_rank.sort(axis=0)  # NaN come last
    counts = len(parts) - np.isnan(by_rank).sum(axis=0)
    at = np.arange(len(every))
    return pd.Series((by_rank[(counts - 1) // 2, at] + by_rank[counts // 2, at]) / 2, index=pd.Index(every))


def _sorted_union(numbers: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """All that are in any of these, each once; numpy's `unique` takes ten times as long of integers."""
    every = np.sort(np.concatenate(numbers))
    return every[np.concatenate([[True], np.diff(every) > 0])] if len(every) else every


def periodic_steps(spans: pd.Series[Any]) -> list[tuple[int, int]]:
    """The period and the first step of each kind of steps that are longer at regular distances."""
    values = spans.to_numpy()
    long_steps = spans.index.to_numpy()[values > MIN_LONGER * _block_medians(values)]
    periods: list[tuple[int, int]] = []
    while len(periods) < MAX_KINDS:
        period = _period(long_steps, spans.index.to_numpy())
        if period is None:
            break
        periods.append(period)
        long_steps = long_steps[~is_periodic(long_steps, [period])]
    return periods


def _block_medians(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """For each value the median of the block of steps that it is in."""
    blocks = len(values) // _BLOCK_STEPS
    whole = values[: blocks * _BLOCK_STEPS].reshape(blocks, _BLOCK_STEPS)
    medians = np.repeat(np.median(whole, axis=1), _BLOCK_STEPS) if blocks else np.empty(0)
    if len(values) == len(medians):
        return medians
    last = float(np.median(values[-_BLOCK_STEPS:]))  # the steps after the last whole block, with some of it
    return np.append(medians, np.full(len(values) - len(medians), last))


def kinds_periods(kinds: pd.DataFrame) -> list[tuple[int, int]]:
    """The period and the first step of each periodic kind in the table of `watched_kinds`."""
    periodic = kinds[kinds["period"].notna()]
    return [(int(period), int(first)) for period, first in zip(periodic["period"], periodic["first_step"], strict=True)]


def is_periodic(steps: npt.NDArray[Any], periods: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Whether each step is one of these periodic kinds."""
    periodic = np.zeros(len(steps), bool)
    for period, first in periods:
        periodic |= (steps >= first) & ((steps - first) % period == 0)
    return periodic


def _period(long_steps: npt.NDArray[Any], steps: npt.NDArray[Any]) -> tuple[int, int] | None:
    """The period that most of these steps have in common, with its first step."""
    distances = Counter(
        int(distance) for apart in (1, 2, 3) for distance in long_steps[apart:] - long_steps[:-apart] if distance > 1
    )
    for period, count in distances.most_common(8):
        if count < MIN_MEMBERS - 1:
            break
        remainder, members = Counter((long_steps % period).tolist()).most_common(1)[0]
        first = int(long_steps[long_steps % period == remainder][0])
        due = int(((steps >= first) & (steps % period == remainder)).sum())
        if members >= MIN_MEMBERS and members >= MIN_MEMBER_SHARE * due:
            return period, first
    return None
