"""Steps that are longer at regular distances, such as those with a checkpoint: a kind of steps, and no anomaly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

MIN_LONGER = 1.3
"""A step this many times as long as the steps around it stands out."""
MIN_MEMBERS = 3
"""Fewer long steps at one distance may be chance."""
MIN_MEMBER_SHARE = 0.8
"""At least 80 % of the steps at one distance must stand out."""
MAX_KINDS = 5
_BLOCK_STEPS = 50
"""A step is compared with so many, among which it is."""


def watched_kinds(steps: pd.DataFrame) -> pd.DataFrame:
    """The kinds of steps of a training, from the table of `watched_steps`: the ordinary one, then periodic ones.

    Columns: `period` (each so many steps there is one; null for ordinary steps), `first_step`, `steps` (how many there
    are), `span_ns` (their median, each step's being the median over the ranks) and `extra_ns` (how much longer than an
    ordinary step).
    """
    spans = step_times(steps)
    periods = periodic_steps(spans)
    ordinary = spans[~is_periodic(spans.index.to_numpy(), periods)]
    median_ns = float(ordinary.median()) if len(ordinary) else 0.0
    rows: list[dict[str, Any]] = [
        {"period": None, "first_step": spans.index.min(), "steps": len(ordinary), "span_ns": median_ns, "extra_ns": 0}
    ]
    for period, first in periods:
        members = spans[is_periodic(spans.index.to_numpy(), [(period, first)])]
        span_ns = float(members.median())
        rows.append(
            {"period": period, "first_step": first, "steps": len(members), "span_ns": span_ns}
            | {"extra_ns": span_ns - median_ns}
        )
    table = pd.DataFrame(rows if len(spans) else [], columns=["period", "first_step", "steps", "span_ns", "extra_ns"])
    return (
        table.astype(dict.fromkeys(("period", "first_step"), "Int64"))
        .round({"span_ns": 0, "extra_ns": 0})
        .astype({"steps": "int64", "span_ns": "int64", "extra_ns": "int64"})
    )


def step_times(steps: pd.DataFrame) -> pd.Series[Any]:
    """The median time of each step over the ranks, by step, without steps in which a profiler ran."""
    undisturbed = steps[~steps["profiled"]]
    by_rank = [rows.set_index("step")["span_ns"] for _, rows in undisturbed.groupby("rank")]
    if not by_rank:
        return pd.Series(dtype=float, index=pd.Index([], dtype="int64"))
    if all(spans.index.equals(by_rank[0].index) for spans in by_rank):  # a million steps are better not aligned
        return pd.Series(np.median([spans.to_numpy() for spans in by_rank], axis=0), index=by_rank[0].index)
    return pd.concat(by_rank, axis=1).sort_index().median(axis=1)


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
