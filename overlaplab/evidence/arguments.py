"""Metadata of the collectives that a rank's host launched, from event arguments (see `Trace.collectives`).

One call leaves several nested events: `c10d::allreduce_`, in it `record_param_comms` with group and sequence number,
in that `nccl:all_reduce`. Which event has which argument differs between versions of torch. So each field comes from
the first event that has it, and sizes come from the largest.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Trace, matching, once_per_trace, thread_numbers
from overlaplab.vocabulary import ANNOTATION_CATEGORIES

TEXTS = ("kind", "dtype", "group", "group_description")
"""Fields that are empty where unknown."""
NUMBERS = ("elements", "bytes", "group_size", "sequence", "source", "destination")
"""Fields that are -1 where unknown; `elements` and `bytes` are the larger of input and output. A message that the rank
receives has a `source`, one that it sends a `destination`: ranks in the job."""


@once_per_trace
def arguments_of(trace: Trace) -> pd.DataFrame:
    """`Trace.collectives` with `TEXTS` as objects and `NUMBERS`, by row of `Trace.events`."""
    source = trace.collectives
    table = pd.DataFrame({name: source[name].astype(object) for name in TEXTS})
    table["elements"] = np.maximum(source["elements_in"].to_numpy(np.int64), source["elements_out"].to_numpy(np.int64))
    for name in NUMBERS[1:]:
        table[name] = source[name].to_numpy(np.int64)
    return table.set_index(pd.Index(source["event"].to_numpy(np.int64), name="event"))


def operators(trace: Trace) -> tuple[pd.DataFrame, pd.Series]:
    """The host's calls that have metadata, and for each external id the row of its call.

    Of nested calls only the outermost has a row, with the metadata of all. Columns: `start_ns`, `end_ns`, `thread`,
    `TEXTS`, `NUMBERS`, in order of thread and start. Gloo's own ranges are not calls.
    """
    metadata = arguments_of(trace)
    events = trace.events.iloc[metadata.index]
    host = events["category"].isin(ANNOTATION_CATEGORIES) & ~matching(events["name"], lambda n: n.startswith("gloo:"))
    metadata, events = metadata[host.to_numpy()], events[host.to_numpy()]
    starts = events["ts_ns"].to_numpy(np.int64)
    table = metadata.reset_index(drop=True).assign(
        start_ns=starts,
        end_ns=starts + events["dur_ns"].to_numpy(np.int64),
        thread=thread_numbers(events),
        external_id=events["external_id"].to_numpy(np.int64),
        preference=_preference(events["name"]),
    )
    table = table.iloc[np.lexsort((-table["end_ns"], table["start_ns"], table["thread"]))]
    reach = table.groupby("thread")["end_ns"].cummax().groupby(table["thread"]).shift(fill_value=np.iinfo(np.int64).min)
    nest = (table["start_ns"] >= reach).cumsum() - 1
    ids = pd.Series(nest.to_numpy(), index=table["external_id"].to_numpy())
    merged = table.groupby(nest.to_numpy()).agg({"start_ns": "first", "end_ns": "max", "thread": "first"})
    table = table.assign(nest=nest).sort_values(["nest", "preference"], kind="stable")
    return merged.join(first_known(table, table["nest"].to_numpy())), ids[(ids.index >= 0) & ~ids.index.duplicated()]


def first_known(table: pd.DataFrame, by: NDArray[np.int64]) -> pd.DataFrame:
    """One row per value of `by`, with its largest sizes, and the first known value of every other field."""
    groups = Groups(by)
    columns: dict[str, pd.Series] = {}
    for name in (*TEXTS, *NUMBERS):
        values = table[name].to_numpy(dtype=object if name in TEXTS else np.int64)
        if name in TEXTS:
            merged = np.append(values, "")[groups.first(values != "")]
        elif name in ("elements", "bytes"):
            merged = groups.reduced(np.maximum, values)
        else:
            merged = np.append(values, -1)[groups.first(values >= 0)]
        columns[name] = pd.Series(merged, index=groups.values, dtype=values.dtype)
    return pd.DataFrame(columns, index=groups.values)


class Groups:
    """Rows grouped by a number: for few rows and many columns ten times as fast as pandas' groupby."""

    def __init__(self, by: NDArray[np.int64]) -> None:
        self._order = np.argsort(by, kind="stable")
        keys = by[self._order]
        self._opens = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
        self.values = keys[self._opens]
        """The groups' numbers, in ascending order."""

    def reduced(self, ufunc: np.ufunc, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """One value per group."""
        return np.asarray(ufunc.reduceat(values[self._order], self._opens) if len(values) else values)

    def first(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """For each group its first chosen row, or the total number of rows if it has none."""
        places = np.where(chosen, np.arange(len(chosen)), len(chosen))
        return self.reduced(np.minimum, places)


def around(table: pd.DataFrame, thread: NDArray[np.int64], at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each moment of a thread the row of the range around it, or -1.

    `table` has the ranges' `start_ns`, `end_ns` and `thread`; none are nested.
    """
    row = np.full(len(at_ns), -1, dtype=np.int64)
    threads, starts, ends = (table[name].to_numpy(np.int64) for name in ("thread", "start_ns", "end_ns"))
    for number in np.unique(threads):
        own, asked = np.flatnonzero(threads == number), np.flatnonzero(thread == number)
        own = own[np.argsort(starts[own], kind="stable")]
        place = np.searchsorted(starts[own], at_ns[asked], side="right") - 1
        inside = (place >= 0) & (at_ns[asked] <= ends[own][place])
        row[asked[inside]] = own[place[inside]]
    return row


def _preference(names: pd.Series) -> NDArray[np.int64]:
    """`record_param_comms` first, then c10d's operator, then the backend's annotation."""
    order = np.full(len(names), 2, dtype=np.int64)
    order[matching(names, lambda name: name.startswith("c10d::"))] = 1
    order[matching(names, lambda name: name == "record_param_comms")] = 0
    return order
