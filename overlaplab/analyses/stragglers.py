"""Ranks that arrived last at collectives, and what that cost the others.

A rank that is always late never waits, so its own overlap ratio looks best.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from msgspec.structs import replace

from overlaplab.analyses.collectives import collectives
from overlaplab.events import Run
from overlaplab.evidence.selection import selected_traces
from overlaplab.selection import EVERYTHING, Selection

_COLUMNS = {
    "rank": "Int64",
    "collectives": "int64",
    "last": "int64",
    "late_median_ns": "Int64",
    "late_max_ns": "Int64",
    "cost_ns": "int64",
    "alone_ns": "int64",
}


def stragglers(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank that took part in a collective whose waits are known; the most expensive first.

    A collective's waits are known if that of a rank other than the last is, as of a reduce the root's. Where steps are
    marked, a collective counts that a rank launched in one of them.

    Columns: `rank` (Int64), `collectives` (those it took part in whose waits are known), `last` (in how many of them it
    arrived last, by more than the clocks may differ), `late_median_ns` and `late_max_ns` (Int64: how much later than
    the median arrival of the others, in those; null if it was never last), `cost_ns` (the sum of all others' waits for
    it in those: of a kernel that carries several messages, for the last of their ranks), `alone_ns` (the part of that
    which would vanish had it arrived with the second to last). `ranks` only selects rows: all ranks' arrivals count.
    Raises `OverlaplabError` for an unknown rank or step.
    """
    everything, of_steps = collectives(run), collectives(run, replace(selection, ranks=None))
    in_steps = of_steps.loc[of_steps["step"].notna(), "index"]  # none in a trace without steps
    rows = stragglers_of(everything[everything["index"].isin(in_steps)] if len(in_steps) else of_steps)
    if selection.ranks is None:
        return rows
    selected_traces(run, selection)  # raises for an unknown rank
    return rows[rows["rank"].isin(list(selection.ranks))].reset_index(drop=True)


def stragglers_of(table: pd.DataFrame) -> pd.DataFrame:
    """`stragglers` of these rows of `collectives`: all of each collective, though a rank may have launched it in a
    neighbouring step.
    """
    waits_known = table["wait_ns"].notna() & (table["rank"] != table["last_rank"])
    arrived = table[table["skew_ns"].notna() & table["index"].isin(table.loc[waits_known, "index"])]
    arrived = arrived.assign(latest_ns=arrived.groupby("index")["arrived_ns"].transform("max"))
    late = arrived[~arrived["within_clock_error"].astype(bool)]
    rows = []
    for rank, count in arrived.groupby("rank")["index"].nunique().items():
        last = late[late["last_rank"] == rank]
        others = last[last["rank"] != rank]
        arrivals = others.groupby("index")["arrived_ns"]
        last_arrivals = last[last["rank"] == rank].set_index("index")["arrived_ns"].reindex(list(arrivals.groups))
        beyond = last_arrivals.to_numpy(np.float64) - arrivals.median().to_numpy(np.float64)
        waits = _waits_for_last(others.assign(second_ns=arrivals.transform("max")))
        rows.append(
            {
                "rank": rank,
                "collectives": count,
                "last": len(last_arrivals),
                "late_median_ns": round(float(np.median(beyond))) if len(beyond) else None,
                "late_max_ns": round(float(beyond.max())) if len(beyond) else None,
                "cost_ns": int(waits["cost_ns"].sum()),
                "alone_ns": int(waits["alone_ns"].sum()),
            }
        )
    result = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)
    return result.sort_values(["cost_ns", "rank"], ascending=[False, True], kind="stable", ignore_index=True)


def _waits_for_last(others: pd.DataFrame) -> pd.DataFrame:
    """`cost_ns` and `alone_ns` of the rows of ranks that were not last; a kernel's wait counts once."""
    cost = np.minimum(others["wait_ns"], others["latest_ns"] - others["arrived_ns"])
    alone = np.minimum(cost, others["latest_ns"] - others["second_ns"])
    waits = others.assign(cost_ns=cost, alone_ns=alone).sort_values("cost_ns", ascending=False, kind="stable")
    return waits.drop_duplicates(["rank", "start_ns", "end_ns"])
