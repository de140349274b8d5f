"""Exposed time by the causes under which it is told: what no schedule hides has one of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from overlaplab.causes import Cause
from overlaplab.findings.diagnosis.bound import unavoidable_ns

_MAY_BE_HIDDEN = (Cause.LINK, Cause.TAIL, Cause.QUEUED, Cause.BLOCKING, Cause.LATE, Cause.UNKNOWN)
"""From which causes that is taken which nothing can hide, in this order: other causes are no communication's fault."""
_KINDS = ("all_reduce", "reduce_scatter", "all_gather")
_WINDOW = ["rank", "step"]


def told_causes(table: pd.DataFrame, bounds: pd.DataFrame) -> pd.DataFrame:
    """Rows of `overlaplab.exposed` or `analyses.exposed_moments`, with what nothing can hide as rows of its own.

    `bounds`: rows of `simulate.bound`. So much of a step as its bound leaves exposed is called `Cause.UNHIDEABLE`, or
    `Cause.LINK` where the best buckets are unknown: of each cause the last collectives, of a collective the last
    moments. Where buckets were played, only gradients' collectives are called so, as far as no buckets make the step
    shorter. Moments are cut there, so that both tables tell the same of a step and collective. A step without a bound
    stays as it is.
    """
    table = table.reset_index(drop=True)
    if bounds.empty:
        return table
    bounds = bounds.astype(dict.fromkeys(_WINDOW, "Int64"))
    played = bounds["least_ns"].notna() if "least_ns" in bounds else pd.Series(False, index=bounds.index)
    with_bound = table[_WINDOW].merge(bounds[_WINDOW].assign(played=played, known=True), on=_WINDOW, how="left")
    gradients = table["what"].notna().to_numpy() | ~with_bound["played"].eq(True).to_numpy()
    order = _order_of_taking(table[with_bound["known"].eq(True).to_numpy() & gradients])
    may_be_taken = table.loc[order].groupby(_WINDOW, dropna=False)["exposed_ns"].sum()
    excess = table[_WINDOW].merge(_excess(bounds, may_be_taken), on=_WINDOW, how="left")
    window = table.loc[order].groupby(_WINDOW, dropna=False, sort=False)["exposed_ns"]
    left_ns = excess.loc[order, "excess_ns"].astype("int64") - window.cumsum() + table.loc[order, "exposed_ns"]
    taken_ns = left_ns.clip(lower=0, upper=table.loc[order, "exposed_ns"]).reindex(table.index, fill_value=0)
    apart = table.assign(exposed_ns=taken_ns, start_ns=table["end_ns"] - taken_ns, cause=excess["called"])
    hideable = table.assign(exposed_ns=table["exposed_ns"] - taken_ns, end_ns=table["end_ns"] - taken_ns)
    both = pd.concat([hideable[hideable["exposed_ns"] > 0], apart[taken_ns > 0]])
    split: pd.DataFrame = both.astype(table.dtypes.to_dict()).sort_index(kind="stable").reset_index(drop=True)
    return split


def _excess(bounds: pd.DataFrame, may_be_taken: pd.Series) -> pd.DataFrame:
    """What nothing hides, by rank and step: `excess_ns`, and the cause that it is `called`.

    `may_be_taken`: of each rank and step the exposed time from which it is taken.
    """
    rows = []
    with_exposed = bounds.merge(may_be_taken.rename("exposed_ns").reset_index(), on=_WINDOW, how="left")
    for row in with_exposed.fillna({"exposed_ns": 0}).to_dict("records"):
        is_cutting_known = pd.notna(row["any_cap_ns"]) or pd.notna(row.get("least_ns"))
        excess_ns = unavoidable_ns({str(name): value for name, value in row.items()}, int(row["exposed_ns"]))
        called = Cause.UNHIDEABLE if is_cutting_known else Cause.LINK
        rows.append((row["rank"], row["step"], excess_ns, called.value))
    return pd.DataFrame(rows, columns=[*_WINDOW, "excess_ns", "called"]).astype(dict.fromkeys(_WINDOW, "Int64"))


def _order_of_taking(rows: pd.DataFrame) -> pd.Index:
    """The places of those rows from which may be taken: by window and cause, the last collective and moment first."""
    turn = rows["cause"].map({cause.value: place for place, cause in enumerate(_MAY_BE_HIDDEN)})
    may = (turn.notna() & rows["kind"].isin(_KINDS)).to_numpy()
    rows = rows[may]
    alike = [*_WINDOW, "cause", "collective", "what"]
    begun = rows.groupby(alike, dropna=False, sort=False)["start_ns"].transform("min")
    return rows.index[np.lexsort((-rows["start_ns"], -begun, turn[may]))]
