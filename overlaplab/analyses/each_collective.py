"""`collectives` with one row per collective instead of one per rank: what a chart's point or a table's line needs."""

from __future__ import annotations

import pandas as pd

__all__ = ["each_collective"]

_FIRST = (
    *("step", "group", "group_description", "group_size", "kind", "dtype", "bytes", "transfer_ns", "bus_gb_per_s"),
    *("bus_is_lower_bound", "skew_ns", "within_clock_error", "last_rank", "unmatched"),
)


def each_collective(table: pd.DataFrame) -> pd.DataFrame:
    """One row per collective out of `overlaplab.collectives`' rows, in their order.

    Columns: `index`, `ranks` (int64, how many ranks' rows there are), `start_ns` (the first of them), `end_ns` (the
    last), `longest_ns` (the longest that a rank spent in it), `wait_ns` (the longest that a rank waited, null where
    unknown), `waits_ns` (all ranks' waits together), `exposed_ns` (the most of a rank), and as in `collectives`: `step`
    (the first rank's), `group`, `group_description`, `group_size`, `kind`, `dtype`, `bytes`, `transfer_ns`,
    `bus_gb_per_s`, `bus_is_lower_bound`, `skew_ns`, `within_clock_error`, `last_rank`, `unmatched`. Times in ns from
    the run's start, Int64.
    """
    own = table.assign(longest_ns=table["end_ns"] - table["start_ns"])
    by = own.groupby("index", sort=False)
    found = by[list(_FIRST)].first()
    found["ranks"] = by.size()
    found["start_ns"], found["end_ns"] = by["start_ns"].min(), by["end_ns"].max()
    for name in ("longest_ns", "wait_ns", "exposed_ns"):
        found[name] = by[name].max()
    found["waits_ns"] = by["wait_ns"].sum(min_count=1)
    return found.reset_index()
