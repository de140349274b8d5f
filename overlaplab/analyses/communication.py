"""Communication time by process group (data, tensor, expert parallel) and kind of collective."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from overlaplab.analyses.collectives import collectives
from overlaplab.axes import find_axis
from overlaplab.events import Run, Trace, activity, window_bounds
from overlaplab.evidence.clocks import run_zero_ns
from overlaplab.evidence.selection import measured_traces, selected_windows
from overlaplab.intervals import Intervals, intersect, subtract, total, union
from overlaplab.selection import EVERYTHING, Selection

_COLUMNS = ("rank", "group", "group_description", "axis", "kind", "count", "bytes", "busy_ns", "exposed_ns")


def communication_by(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, process group and kind of collective, the one that took longest first within each rank.

    Columns: `rank` (Int64), `group`, `group_description` (the group's purpose, such as `mesh_tp`), `axis` (of the mesh,
    see `axes`), `kind` (all null where unknown), `count`, `bytes` (Int64, the sum of `collectives`' bytes, null if any
    is), `busy_ns` (the union of their times) and `exposed_ns` (its part during which the rank computed nothing). Counts
    and bytes are of the collectives that the chosen steps launched; times are cut to the steps' windows. Groups may
    communicate at the same time, so the parts may add up to more than `comm_ns`. A rank whose device activity was not
    recorded has no rows. Raises `OverlaplabError` for an unknown rank or step.
    """
    launched = collectives(run, selection)
    timed = collectives(run, Selection(ranks=selection.ranks))
    rows: list[dict[str, Any]] = []
    for trace in measured_traces(run, selection):
        chosen = selected_windows(trace, selection)
        window = union(*window_bounds(chosen))
        stepless = any(step.step is None for step in chosen)
        rows += _trace_rows(run, trace, launched if stepless else launched.dropna(subset=["step"]), timed, window)
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(
        {"rank": "Int64", "bytes": "Int64"} | dict.fromkeys(("count", "busy_ns", "exposed_ns"), "int64")
    )


def _trace_rows(
    run: Run, trace: Trace, launched: pd.DataFrame, timed: pd.DataFrame, window: Intervals
) -> list[dict[str, Any]]:
    busy, zero = activity(trace), run_zero_ns(run, trace)
    identity = ["group", "group_description", "kind"]
    unknown = dict.fromkeys(identity, "")
    launched, timed = (t[(t["rank"] == trace.rank) | t["rank"].isna()].fillna(unknown) for t in (launched, timed))
    spans = dict(list(timed.dropna(subset=["start_ns"]).groupby(identity)))
    rows = []
    for key, rows_of_key in launched.groupby(identity):
        ran = spans.get(key)
        inside = busy.communication[:0]
        if ran is not None:
            hulls = union(*(ran[name].to_numpy(np.int64) + zero for name in ("start_ns", "end_ns")))
            inside = intersect(intersect(hulls, busy.communication), window)
        rows.append(
            {
                "rank": trace.rank,
                **{name: text or None for name, text in zip(identity, key, strict=True)},
                "axis": find_axis(str(key[1])) or None,
                "count": len(rows_of_key),
                "bytes": int(rows_of_key["bytes"].sum()) if rows_of_key["bytes"].notna().all() else None,
                "busy_ns": total(inside),
                "exposed_ns": total(subtract(inside, busy.compute)),
            }
        )
    return sorted(rows, key=lambda row: -row["busy_ns"])
