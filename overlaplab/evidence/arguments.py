"""What arguments tell of the collectives that a rank's host launched (see `Trace.collectives`).

One call leaves several nested events: `c10d::allreduce_`, in it `record_param_comms` with group and sequence number,
in that `nccl:all_reduce`. Which of them tells what has changed over the years, so each field comes from the first
that knows it, and sizes from the largest.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Trace, lanes, matching, once_per_trace
from overlaplab.vocabulary import ANNOTATION_CATEGORIES

__all__ = ["NUMBERS", "TEXTS", "Groups", "around", "first_known", "operators", "told_of"]

TEXTS = ("kind", "dtype", "group", "group_description")
"""Fields that are empty where unknown."""
NUMBERS = ("elements", "bytes", "group_size", "sequence")
"""Fields that are -1 where unknown; `elements` and `bytes` are the larger of input and output."""


@once_per_trace
def told_of(trace: Trace) -> pd.DataFrame:
    """`Trace.collectives` with `TEXTS` as objects and `NUMBERS`, by row of `Trace.events`."""
    told = trace.collectives
    table = pd.DataFrame({name: told[name].astype(object) for name in TEXTS})
    table["elements"] = np.maximum(told["elements_in"].to_numpy(np.int64), told["elements_out"].to_numpy(np.int64))
    for name in NUMBERS[1:]:
        table[name] = told[name].to_numpy(np.int64)
    return table.set_index(pd.Index(told["event"].to_numpy(np.int64), name="event"))


def operators(trace: Trace) -> tuple[pd.DataFrame, pd.Series]:
    """The host's calls that arguments tell of, the outermost of nested ones, with what any of them tells.

    Columns `start_ns`, `end_ns`, `lane`, `TEXTS`, `NUMBERS`, in order of lane and start; and by external id the row.
    Gloo's own ranges are no calls.
    """
    told = told_of(trace)
    events = trace.events.iloc[told.index]
    host = events["category"].isin(ANNOTATION_CATEGORIES) & ~matching(events["name"], lambda n: n.startswith("gloo:"))
    told, events = told[host.to_numpy()], events[host.to_numpy()]
    starts = events["ts_ns"].to_numpy(np.int64)
    table = told.reset_index(drop=True).assign(
        start_ns=starts,
        end_ns=starts + events["dur_ns"].to_numpy(np.int64),
        lane=lanes(events),
        external_id=events["external_id"].to_numpy(np.int64),
        preference=_preference(events["name"]),
    )
    table = table.iloc[np.lexsort((-table["end_ns"], table["start_ns"], table["lane"]))]
    reach = table.groupby("lane")["end_ns"].cummax().groupby(table["lane"]).shift(fill_value=np.iinfo(np.int64).min)
    nest = (table["start_ns"] >= reach).cumsum() - 1
    ids = pd.Series(nest.to_numpy(), index=table["external_id"].to_numpy())
    merged = table.groupby(nest.to_numpy()).agg({"start_ns": "first", "end_ns": "max", "lane": "first"})
    table = table.assign(nest=nest).sort_values(["nest", "preference"], kind="stable")
    return merged.join(first_known(table, table["nest"].to_numpy())), ids[(ids.index >= 0) & ~ids.index.duplicated()]


def first_known(table: pd.DataFrame, by: NDArray[np.int64]) -> pd.DataFrame:
    """One row per value of `by`: of texts, group size and sequence the first known, of sizes the largest."""
    groups = Groups(by)
    found: dict[str, pd.Series] = {}
    for name in (*TEXTS, *NUMBERS):
        values = table[name].to_numpy(dtype=object if name in TEXTS else np.int64)
        if name in TEXTS:
            held = np.append(values, "")[groups.first(values != "")]
        elif name in ("elements", "bytes"):
            held = groups.reduced(np.maximum, values)
        else:
            held = np.append(values, -1)[groups.first(values >= 0)]
        found[name] = pd.Series(held, index=groups.values, dtype=values.dtype)
    return pd.DataFrame(found, index=groups.values)


class Groups:
    """Rows by a number: what pandas' groupby does, at a tenth of its price for few rows and many columns."""

    def __init__(self, by: NDArray[np.int64]) -> None:
        self._order = np.argsort(by, kind="stable")
        there = by[self._order]
        self._opens = np.flatnonzero(np.append(True, there[1:] != there[:-1])[: len(there)])
        self.values = there[self._opens]
        """The groups' numbers, the smallest first."""

    def reduced(self, what: np.ufunc, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """One value per group."""
        return np.asarray(what.reduceat(values[self._order], self._opens) if len(values) else values)

    def first(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Per group its first row of the chosen ones; the number of all rows where it has none."""
        places = np.where(chosen, np.arange(len(chosen)), len(chosen))
        return self.reduced(np.minimum, places)


def around(table: pd.DataFrame, lane: NDArray[np.int64], at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of the range (of `start_ns`, `end_ns`, `lane`; none nested) around each moment of a thread, or -1."""
    found = np.full(len(at_ns), -1, dtype=np.int64)
    lanes_, starts, ends = (table[name].to_numpy(np.int64) for name in ("lane", "start_ns", "end_ns"))
    for one in np.unique(lanes_):
        own, asked = np.flatnonzero(lanes_ == one), np.flatnonzero(lane == one)
        own = own[np.argsort(starts[own], kind="stable")]
        place = np.searchsorted(starts[own], at_ns[asked], side="right") - 1
        inside = (place >= 0) & (at_ns[asked] <= ends[own][place])
        found[asked[inside]] = own[place[inside]]
    return found


def _preference(names: pd.Series) -> NDArray[np.int64]:
    """`record_param_comms` knows best, then c10d's operator, then the backend's annotation."""
    order = np.full(len(names), 2, dtype=np.int64)
    order[matching(names, lambda name: name.startswith("c10d::"))] = 1
    order[matching(names, lambda name: name == "record_param_comms")] = 0
    return order
