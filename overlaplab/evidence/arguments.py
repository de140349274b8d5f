"""Metadata of the collectives that a rank's host launched, from event arguments (see `Trace.collectives`).

One call leaves several nested events: `c10d::allreduce_`, in it `record_param_comms` with group and sequence number,
in that `nccl:all_reduce`. Which event has which argument differs between versions of torch. So each field comes from
the first event that has it, and sizes come from the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.axes import axis_of
from overlaplab.events import Trace, matching, once_per_trace, thread_numbers
from overlaplab.evidence.fields import Fields, Groups
from overlaplab.vocabulary import ANNOTATION_CATEGORIES

TEXTS = ("kind", "dtype", "group", "group_description")
"""Fields that are empty where unknown."""
NUMBERS = ("elements", "bytes", "group_size", "sequence", "source", "destination", "comms_id")
"""Fields that are -1 where unknown; `elements` and `bytes` are the larger of input and output. A message that the rank
receives has a `source`, one that it sends a `destination`: ranks in the job. `comms_id` is the same on all ranks."""


@once_per_trace
def arguments_of(trace: Trace) -> Fields:
    """`Trace.collectives` with `TEXTS` as objects and `NUMBERS`; `event` is the row of `Trace.events`, ascending."""
    source = trace.collectives
    fields: Fields = {name: source[name].to_numpy(dtype=object) for name in TEXTS}
    fields["elements"] = np.maximum(source["elements_in"].to_numpy(np.int64), source["elements_out"].to_numpy(np.int64))
    return fields | {name: source[name].to_numpy(np.int64) for name in (*NUMBERS[1:], "event")}


def operators(trace: Trace) -> tuple[Fields, Fields]:
    """The host's calls that have metadata, and for each `external_id`, in order, the `row` of its call.

    Of nested calls only the outermost has a row, with the metadata of all. Fields: `start_ns`, `end_ns`, `thread`,
    `TEXTS`, `NUMBERS`, in order of thread and start. Gloo's own ranges are not calls.
    """
    metadata = arguments_of(trace)
    events, rows = trace.events, metadata["event"]
    starts, durations, ids = (events[name].to_numpy(np.int64)[rows] for name in ("ts_ns", "dur_ns", "external_id"))
    ends, threads, names = starts + durations, thread_numbers(events, rows), events["name"].iloc[rows]
    host = matching(events["category"].iloc[rows], ANNOTATION_CATEGORIES.__contains__)
    own = np.flatnonzero(host & ~matching(names, lambda name: name.startswith("gloo:")))
    own = own[np.lexsort((-ends[own], starts[own], threads[own]))]
    starts, ends, threads = starts[own], ends[own], threads[own]
    nest = np.cumsum(_opens(starts, ends, threads)) - 1
    calls = Groups(nest)
    first = calls.first(np.ones(len(own), dtype=bool))
    preferred = np.lexsort((_preference(names)[own], nest))
    told = first_known({name: values[own[preferred]] for name, values in metadata.items()}, nest[preferred])
    spans = {"start_ns": starts[first], "end_ns": calls.reduced(np.maximum, ends), "thread": threads[first]}
    known, place = np.unique(ids[own], return_index=True)
    return spans | told, {"external_id": known[known >= 0], "row": nest[place[known >= 0]]}


def _opens(starts: NDArray[np.int64], ends: NDArray[np.int64], threads: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the ranges, in order of thread and start, begin after all before them on their thread have ended."""
    opens = np.ones(len(starts), dtype=bool)
    for thread in np.unique(threads):
        own = np.flatnonzero(threads == thread)
        opens[own[1:]] = starts[own[1:]] >= np.maximum.accumulate(ends[own])[:-1]
    return opens


def first_known(table: Mapping[str, NDArray[Any]], by: NDArray[np.int64]) -> Fields:
    """One row per value of `by`, ascending, with its largest sizes, and the first known value of every other field."""
    groups, found = Groups(by), Fields()
    for name in (*TEXTS, *NUMBERS):
        values = table[name]
        if name in TEXTS:
            found[name] = np.append(values, "")[groups.first(values != "")]
        elif name in ("elements", "bytes"):
            found[name] = groups.reduced(np.maximum, values)
        else:
            found[name] = np.append(values, -1)[groups.first(values >= 0)]
    return found


def axes_of(descriptions: NDArray[np.object_]) -> NDArray[np.object_]:
    """The axis of each group with this description, see `axis_of`."""
    texts = descriptions.tolist()
    axes = {text: axis_of(text) for text in set(texts)}
    return np.array([axes[text] for text in texts], dtype=object)


def around(
    table: pd.DataFrame | Mapping[str, NDArray[Any]], thread: NDArray[np.int64], at_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each moment of a thread the row of the range around it, or -1.

    `table` has the ranges' `start_ns`, `end_ns` and `thread`; none are nested.
    """
    row = np.full(len(at_ns), -1, dtype=np.int64)
    threads, starts, ends = (np.asarray(table[name], dtype=np.int64) for name in ("thread", "start_ns", "end_ns"))
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
