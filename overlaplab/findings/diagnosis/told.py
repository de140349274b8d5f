"""Exposed time by the causes under which it is told: what no schedule hides has one of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from overlaplab.analyses.exposed import Cause
from overlaplab.findings.diagnosis.bound import unavoidable_ns

_MAY_BE_HIDDEN = (Cause.LINK, Cause.TAIL, Cause.QUEUED, Cause.BLOCKING, Cause.LATE, Cause.UNKNOWN)
"""From which causes that is taken which nothing can hide, in this order: other causes are no communication's fault."""
_KINDS = ("all_reduce", "reduce_scatter", "all_gather")
_WINDOW = ["rank", "step"]


def told_causes(table: pd.DataFrame, bounds: pd.DataFrame) -> pd.DataFrame:
    """Rows of `overlaplab.exposed` or `analyses.exposed_moments`, with what nothing can hide as rows of its own.

    `bounds`: rows of `simulate.bound`. So much of a step as its bound leaves exposed is called `Cause.UNHIDEABLE`, or
    `Cause.LINK` where the best buckets are unknown: of each cause the last collectives, of a collective the last
    moments. Moments are cut there, so that both tables tell the same of a step and collective. A step without a
    bound stays as it is.
    """
    table = table.reset_index(drop=True)
    excess = table[_WINDOW].merge(_excess(bounds), on=_WINDOW, how="left")
    order = _order_of_taking(table[excess["called"].notna().to_numpy()])
    window = table.loc[order].groupby(_WINDOW, dropna=False, sort=False)["exposed_ns"]
    left_ns = excess.loc[order, "excess_ns"].astype("int64") - window.cumsum() + table.loc[order, "exposed_ns"]
    taken_ns = left_ns.clip(lower=0, upper=table.loc[order, "exposed_ns"]).reindex(table.index, fill_value=0)
    apart = table.assign(exposed_ns=taken_ns, start_ns=table["end_ns"] - taken_ns, cause=excess["called"])
    rest = table.assign(exposed_ns=table["exposed_ns"] - taken_ns, end_ns=table["end_ns"] - taken_ns)
    both = pd.concat([rest[rest["exposed_ns"] > 0], apart[taken_ns > 0]])
    found: pd.DataFrame = both.astype(table.dtypes.to_dict()).sort_index(kind="stable").reset_index(drop=True)
    return found


def _excess(bounds: pd.DataFrame) -> pd.DataFrame:
    """What nothing hides, by rank and step: `excess_ns`, and the cause that it is `called`."""
    rows = [
        (
            row["rank"],
            row["step"],
            unavoidable_ns({str(name): value for name, value in row.items()}),
            Cause.LINK.value if pd.isna(row["any_cap_ns"]) else Cause.UNHIDEABLE.value,
        )
        for row in bounds.to_dict("records")
    ]
    return pd.DataFrame(rows, columns=[*_WINDOW, "excess_ns", "called"]).astype(dict.fromkeys(_WINDOW, "Int64"))


def _order_of_taking(rows: pd.DataFrame) -> pd.Index:
    """The places of those rows from which may be taken: by window and cause, the last collective and moment first."""
    turn = rows["cause"].map({cause.value: place for place, cause in enumerate(_MAY_BE_HIDDEN)})
    may = (turn.notna() & rows["kind"].isin(_KINDS)).to_numpy()
    rows = rows[may]
    alike = [*_WINDOW, "cause", "collective", "what"]
    begun = rows.groupby(alike, dropna=False, sort=False)["start_ns"].transform("min")
    return rows.index[np.lexsort((-rows["start_ns"], -begun, turn[may]))]
