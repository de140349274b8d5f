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

from overlaplab.axes import find_axis
from overlaplab.events import Trace, event_times, matching, once_per_trace, thread_numbers
from overlaplab.evidence.arrays import Fields, Groups, take_values
from overlaplab.intervals import Integers, Mask
from overlaplab.vocabulary import ANNOTATION_CATEGORIES

TEXTS = ("kind", "dtype", "group", "group_description")
"""Fields that are empty where unknown."""
NUMBERS = ("elements", "bytes", "group_size", "sequence", "source", "destination", "root", "comms_id")
"""Fields that are -1 where unknown; `elements` and `bytes` are the larger of input and output. A message that the rank
receives has a `source`, one that it sends a `destination`: ranks in the job. `root`: the place in the group of the
rank that a broadcast comes from. `comms_id` is the same on all ranks."""


@once_per_trace
def collective_arguments(trace: Trace) -> Fields:
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
    metadata = collective_arguments(trace)
    events, rows = trace.events, metadata["event"]
    (starts, ends), ids = event_times(events, rows), events["external_id"].to_numpy(np.int64)[rows]
    threads, names = thread_numbers(events, rows), events["name"].iloc[rows]
    host = matching(events["category"].iloc[rows], ANNOTATION_CATEGORIES.__contains__)
    order = np.flatnonzero(host & ~matching(names, lambda name: name.startswith("gloo:")))
    order = order[np.lexsort((-ends[order], starts[order], threads[order]))]
    starts, ends, threads = starts[order], ends[order], threads[order]
    nest = np.cumsum(_starts_of_nests(starts, ends, threads)) - 1
    calls = Groups(nest)
    first = calls.first(np.ones(len(order), dtype=bool))
    preferred = np.lexsort((_preference(names)[order], nest))
    fields = first_known({name: values[order[preferred]] for name, values in metadata.items()}, nest[preferred])
    spans = {"start_ns": starts[first], "end_ns": calls.reduce(np.maximum, ends), "thread": threads[first]}
    unique_ids, place = np.unique(ids[order], return_index=True)
    return spans | fields, {"external_id": unique_ids[unique_ids >= 0], "row": nest[place[unique_ids >= 0]]}


def _starts_of_nests(starts: Integers, ends: Integers, threads: Integers) -> Mask:
    """Mark the ranges, in order of thread and start, that begin after all before them on their thread have ended."""
    opens = np.ones(len(starts), dtype=bool)
    for thread in np.unique(threads):
        of_thread = np.flatnonzero(threads == thread)
        opens[of_thread[1:]] = starts[of_thread[1:]] >= np.maximum.accumulate(ends[of_thread])[:-1]
    return opens


def first_known(table: Mapping[str, NDArray[Any]], by: Integers) -> Fields:
    """One row per value of `by`, ascending, with its largest sizes, and the first known value of every other field."""
    groups, merged = Groups(by), Fields()
    for name in (*TEXTS, *NUMBERS):
        values = table[name]
        if name in TEXTS:
            merged[name] = take_values(values, groups.first(values != ""), "")
        elif name in ("elements", "bytes"):
            merged[name] = groups.reduce(np.maximum, values)
        else:
            merged[name] = take_values(values, groups.first(values >= 0), -1)
    return merged


def group_axes(descriptions: NDArray[np.object_]) -> NDArray[np.object_]:
    """The axis of each group with this description, see `find_axis`."""
    texts = descriptions.tolist()
    axes = {text: find_axis(text) for text in set(texts)}
    return np.array([axes[text] for text in texts], dtype=object)


def enclosing_rows(
    table: pd.DataFrame | Mapping[str, NDArray[Any]], thread: Integers | None, at_ns: Integers
) -> Integers:
    """For each moment of a thread the row of the range around it, or -1; where `thread` is None, of any thread.

    `table` has the ranges' `start_ns`, `end_ns` and `thread`; none are nested. A range holds its end, too.
    """
    row = np.full(len(at_ns), -1, dtype=np.int64)
    starts, ends = (np.asarray(table[name], dtype=np.int64) for name in ("start_ns", "end_ns"))
    threads = np.zeros_like(starts) if thread is None else np.asarray(table["thread"], dtype=np.int64)
    thread = np.zeros(len(at_ns), dtype=np.int64) if thread is None else thread
    for number in np.unique(threads):
        of_thread, moments = np.flatnonzero(threads == number), np.flatnonzero(thread == number)
        of_thread = of_thread[np.argsort(starts[of_thread], kind="stable")]
        place = np.searchsorted(starts[of_thread], at_ns[moments], side="right") - 1
        inside = (place >= 0) & (at_ns[moments] <= ends[of_thread][place])
        row[moments[inside]] = of_thread[place[inside]]
    return row


def _preference(names: pd.Series) -> Integers:
    """`record_param_comms` first, then c10d's operator, then the backend's annotation."""
    order = np.full(len(names), 2, dtype=np.int64)
    order[matching(names, lambda name: name.startswith("c10d::"))] = 1
    order[matching(names, lambda name: name == "record_param_comms")] = 0
    return order
