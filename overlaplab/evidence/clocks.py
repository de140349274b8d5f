"""The offsets between ranks' clocks, from the ends of shared collectives (docs/design.md, "Ranks' clocks")."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, once_per_run
from overlaplab.evidence.alignment import FEWEST
from overlaplab.evidence.matching import matched
from overlaplab.evidence.recorded import recorded

__all__ = ["LEAST_OFFSET_NS", "clocks", "corrections", "zero_of"]

LEAST_OFFSET_NS = 200_000
"""Smaller offsets are not corrected."""
_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds of collectives that end on all ranks at once."""


def clocks(run: Run) -> pd.DataFrame:
    """One row per trace: how far its clock is ahead of the first rank's.

    Columns: `rank` (Int64); `offset_ns` (Int64: how much later this clock shows the ends of matched all-reduces,
    all-gathers and reduce-scatters, the median; null if it shares none); `iqr_ns` (Int64, the interquartile range of
    those differences); `collectives` (their number); `applied` (bool: whether the rank's times are corrected by the
    offset, which takes 3 differences or more, and an offset above 200 µs and above 3 × the range); `error_ns` (Int64:
    skews up to this are meaningless: the range, or an uncorrected offset if that is larger; 200 µs where unknown).
    A rank that shares no collective with the first is compared with the already placed rank that it shares most with.
    """
    return _clocks(run).copy()


def corrections(run: Run) -> NDArray[np.int64]:
    """What to subtract from each trace's times, in ns, so that all ranks' times are comparable."""
    table = _clocks(run)
    return np.asarray(table["offset_ns"].where(table["applied"], 0).fillna(0), dtype=np.int64)


def zero_of(run: Run, trace: Trace) -> int:
    """The run's zero by the trace's own clock, in Unix ns. Subtract it from the trace's times to compare ranks."""
    return trace.origin_ns + int(corrections(run)[run.traces.index(trace)])


@once_per_run
def _clocks(run: Run) -> pd.DataFrame:
    traces = len(run.traces)
    ends = _ends_together(run) if traces > 1 else pd.DataFrame()
    offsets: dict[int, int] = {0: 0}
    ranges: dict[int, int] = {0: 0}
    counts: dict[int, int] = {0: 0}
    while (pair := _next_pair(ends, offsets)) is not None:
        placed, new = pair
        both = ends[[placed, new]].dropna()
        differences = (both[new] - both[placed]).to_numpy(np.int64) + offsets[placed]
        low, middle, high = np.percentile(differences - differences[0], [25, 50, 75])
        offsets[new] = int(differences[0]) + round(middle)
        ranges[new] = round(high - low)
        counts[new] = len(both)
    places = range(traces)
    table = pd.DataFrame(
        {
            "rank": pd.array([trace.rank for trace in run.traces], dtype="Int64"),
            "offset_ns": pd.array([offsets.get(place) for place in places], dtype="Int64"),
            "iqr_ns": pd.array([ranges.get(place) for place in places], dtype="Int64"),
            "collectives": np.array([counts.get(place, 0) for place in places], dtype=np.int64),
        }
    )
    size = table["offset_ns"].abs()
    enough = table["collectives"] >= FEWEST
    table["applied"] = (enough & (size > LEAST_OFFSET_NS) & (size > 3 * table["iqr_ns"])).fillna(False).astype(bool)
    left = size.where(~table["applied"], 0)
    table["error_ns"] = left.where(left > table["iqr_ns"], table["iqr_ns"]).fillna(LEAST_OFFSET_NS).astype("Int64")
    return table


def _ends_together(run: Run) -> pd.DataFrame:
    """The ends of matched collectives that end on all ranks at once: a row for each, a column per trace.

    Null where absent; in ns from the first end, so that the numbers stay small enough for the arithmetic.
    """
    pairs = matched(run)
    pairs = pairs[pairs["reason"].isna()]
    tables = []
    for place, trace in enumerate(run.traces):
        own = pairs[pairs["trace"] == place]
        table = recorded(trace).iloc[own["row"]]
        kinds = table["kind"].isin(_TOGETHER).to_numpy()
        tables.append(pd.Series(table["end_ns"].to_numpy()[kinds], index=own["match"].to_numpy()[kinds], name=place))
    first = min((int(table.min()) for table in tables if len(table)), default=0)
    return pd.concat([(table - first).astype("Int64") for table in tables], axis=1)


def _next_pair(ends: pd.DataFrame, placed: dict[int, int]) -> tuple[int, int] | None:
    """A placed trace, and a new one to compare with it. The first trace is preferred, then the one that shares most."""
    there = ends.notna().to_numpy()
    best: tuple[bool, int, int, int] | None = None
    for new in range(there.shape[1]):
        if new in placed:
            continue
        for old in placed:
            shared = int((there[:, old] & there[:, new]).sum())
            rated = (old == 0, shared, -old, -new)
            if shared and (best is None or rated > best):
                best = rated
    return None if best is None else (-best[2], -best[3])
