"""How much shorter other buckets make a step, and how much of its exposed time nothing could have hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from overlaplab.causes import Cause


class DeeperPrefetch(NamedTuple):
    """A prefetch depth beyond the recorded one that was replayed."""

    depth: int
    step_ns: int
    """How long the step then takes."""


def gains_by_buckets(bound: Mapping[str, Any], exposed_ns: int) -> int | None:
    """How many ns the best buckets found gain, or any buckets could gain; None where unknown.

    `exposed_ns`: what other transfers could hide, without pauses of the host.
    """
    if pd.notna(bound.get("found_ns")):
        return max(int(bound["span_ns"]) - int(bound["found_ns"]), 0)
    if pd.isna(bound["any_cap_ns"]):
        return None
    unavoidable = int(bound["any_cap_ns"]) - int(bound["compute_ns"])
    return max(exposed_ns - unavoidable, 0)


def unavoidable_ns(bound: Mapping[str, Any], exposed_ns: int) -> int:
    """The part of `exposed_ns` that no buckets hide; where the best buckets are unknown, that no schedule hides.

    Where buckets were played, `exposed_ns` less the most by which any buckets shorten the step; else what the best
    buckets leave exposed, or by how much all transfers take longer than all computation.
    """
    if pd.notna(bound.get("least_ns")):
        return max(exposed_ns - max(int(bound["span_ns"]) - int(bound["least_ns"]), 0), 0)
    least = bound["any_cap_ns"] if pd.notna(bound["any_cap_ns"]) else bound["transfer_ns"]
    return max(int(least) - int(bound["compute_ns"]), 0)


_MAY_BE_UNHIDEABLE = (Cause.LINK, Cause.TAIL, Cause.QUEUED, Cause.BLOCKING, Cause.LATE, Cause.UNKNOWN)
"""Causes from which unhideable time is taken, in this order; the others are not communication's fault."""
_KINDS = ("all_reduce", "reduce_scatter", "all_gather")
"""Only collectives of these kinds may be unhideable."""
_WINDOW = ["rank", "step"]


def split_unhideable(table: pd.DataFrame, bounds: pd.DataFrame) -> pd.DataFrame:
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
    by_window = table.loc[order].groupby(_WINDOW, dropna=False, sort=False)["exposed_ns"]
    excess = table[_WINDOW].merge(_excess(bounds, by_window.sum()), on=_WINDOW, how="left")
    left_ns = excess.loc[order, "excess_ns"].astype("int64") - by_window.cumsum() + table.loc[order, "exposed_ns"]
    taken_ns = left_ns.clip(lower=0, upper=table.loc[order, "exposed_ns"]).reindex(table.index, fill_value=0)
    unhideable = table.assign(exposed_ns=taken_ns, start_ns=table["end_ns"] - taken_ns, cause=excess["new_cause"])
    hideable = table.assign(exposed_ns=table["exposed_ns"] - taken_ns, end_ns=table["end_ns"] - taken_ns)
    both = pd.concat([hideable[hideable["exposed_ns"] > 0], unhideable[taken_ns > 0]])
    split: pd.DataFrame = both.astype(table.dtypes.to_dict()).sort_index(kind="stable").reset_index(drop=True)
    return split


def _excess(bounds: pd.DataFrame, may_be_taken: pd.Series) -> pd.DataFrame:
    """What nothing hides, by rank and step: `excess_ns`, and its `new_cause`.

    `may_be_taken`: of each rank and step the exposed time from which it is taken.
    """
    rows = []
    with_exposed = bounds.merge(may_be_taken.rename("exposed_ns").reset_index(), on=_WINDOW, how="left")
    for row in with_exposed.fillna({"exposed_ns": 0}).to_dict("records"):
        is_cutting_known = pd.notna(row["any_cap_ns"]) or pd.notna(row.get("least_ns"))
        excess_ns = unavoidable_ns({str(name): value for name, value in row.items()}, int(row["exposed_ns"]))
        new_cause = Cause.UNHIDEABLE if is_cutting_known else Cause.LINK
        rows.append((row["rank"], row["step"], excess_ns, new_cause.value))
    return pd.DataFrame(rows, columns=[*_WINDOW, "excess_ns", "new_cause"]).astype(dict.fromkeys(_WINDOW, "Int64"))


def _order_of_taking(rows: pd.DataFrame) -> pd.Index:
    """The index of rows that may be unhideable, in the order of taking: by cause, of each the last moments first."""
    cause_places = rows["cause"].map({cause.value: place for place, cause in enumerate(_MAY_BE_UNHIDEABLE)})
    is_eligible = (cause_places.notna() & rows["kind"].isin(_KINDS)).to_numpy()
    rows = rows[is_eligible]
    same_collective = [*_WINDOW, "cause", "collective", "what"]
    first_start_ns = rows.groupby(same_collective, dropna=False, sort=False)["start_ns"].transform("min")
    return rows.index[np.lexsort((-rows["start_ns"], -first_start_ns, cause_places[is_eligible]))]
