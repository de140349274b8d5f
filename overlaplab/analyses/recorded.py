"""Every collective that a rank's trace holds, whether or not its launch was recorded.

Who tells depends on the recording: the engine's labels; else the arguments of the kernel or of the operator that
launched it; else the kind follows from names, and nothing tells the rest. Several kernels or copies that one label or
one operator launched are one collective. Kernels of a CUDA graph share one correlation, that of the graph's launch:
of those, nothing but the kernel itself is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.analyses.labels import Label, labels_of
from overlaplab.analyses.recorded_host import on_gloo, on_link
from overlaplab.analyses.recorded_rows import (
    RECORDED_COLUMNS,
    UNKNOWN_NS,
    around_any,
    blank_rows,
    fill,
    fill_labelled,
    fill_told,
    kinds_by_name,
    label_rows,
    not_run,
    stacked,
)
from overlaplab.analyses.told import NUMBERS, TEXTS, Groups, around, first_known, operators
from overlaplab.events import Kind, Trace, lanes, launchers, matching, of_kind, once_per_trace, rule_of
from overlaplab.vocabulary import DEVICE_KERNEL_CATEGORIES, Rule

__all__ = ["RECORDED_COLUMNS", "UNKNOWN_NS", "recorded", "recorded_of_events"]


def recorded(trace: Trace) -> pd.DataFrame:
    """The trace's collectives in order of start (launch, where it is not known that they ran): `RECORDED_COLUMNS`."""
    return _recorded(trace)[0]


def recorded_of_events(trace: Trace) -> NDArray[np.int64]:
    """For every event the row of `recorded` that it communicates for, -1 for none; read-only."""
    return _recorded(trace)[1]


@once_per_trace
def _recorded(trace: Trace) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    labels = labels_of(trace)
    unit: NDArray[np.int64] | None = None
    rule = rule_of(trace)
    # Around a launch on a GPU the engine's own ranges do not tell when it ran.
    if rule is Rule.GPU or (rule is Rule.UNRECORDED and any(label.word == "comm" for label in labels)):
        found, unit = _on_device(trace, labels)
    elif any(label.word in ("launch", "comm") for label in labels):
        found = on_link(trace, labels)
    else:
        found = on_gloo(trace, labels)
    if len(trace.groups) == 1:  # then it can be no other
        found["group"] = found["group"].where(found["group"] != "", trace.groups[0].name)
    for group in trace.groups:
        undescribed = (found["group"] == group.name) & (found["group_description"] == "")
        found.loc[undescribed, "group_description"] = group.description
    began = np.where(found["start_ns"] != UNKNOWN_NS, found["start_ns"], found["launch_ns"])
    order = np.argsort(began, kind="stable")
    found = found.iloc[order].reset_index(drop=True)
    rows = np.flatnonzero(of_kind(trace, Kind.COMMUNICATION))
    of_event = np.full(len(trace.events), -1, dtype=np.int64)
    of_event[rows] = _by_time(found, trace.events.iloc[rows]) if unit is None else np.argsort(order)[unit]
    of_event.flags.writeable = False
    return found, of_event


def _by_time(found: pd.DataFrame, events: pd.DataFrame) -> NDArray[np.int64]:
    """The row of `found` that has each event's times, else the last begun one that holds it, else -1."""
    ran = np.flatnonzero(found["start_ns"] != UNKNOWN_NS)
    bounds = pd.MultiIndex.from_arrays([found["start_ns"].to_numpy()[ran], found["end_ns"].to_numpy()[ran]])
    starts = events["ts_ns"].to_numpy(np.int64)
    ends = starts + events["dur_ns"].to_numpy(np.int64)
    first = ~bounds.duplicated()
    exact = bounds[first].get_indexer(pd.MultiIndex.from_arrays([starts, ends]))
    last = np.searchsorted(found["start_ns"].to_numpy()[ran], starts, side="right") - 1
    holds = (last >= 0) & (np.append(found["end_ns"].to_numpy()[ran], UNKNOWN_NS)[last] >= ends)
    place = np.where(exact >= 0, np.append(np.flatnonzero(first), -1)[exact], np.where(holds, last, -1))
    return np.asarray(np.append(ran, -1)[place], dtype=np.int64)


def _on_device(trace: Trace, labels: Sequence[Label]) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """The collectives, and for each event that communicates the place of its own among them."""
    events = trace.events
    rows = np.flatnonzero(of_kind(trace, Kind.COMMUNICATION))
    found = _device_events(trace, rows)
    calls, by_external_id = operators(trace)
    comms = _renumbered(label_rows([label for label in labels if label.word == "comm"]), calls)
    launched = found["launch_ns"].to_numpy() != UNKNOWN_NS
    in_label = np.where(launched, around_any(comms, found["host_ns"]), -1)
    in_call = np.where(launched, around(calls, found["lane"].to_numpy(), found["host_ns"].to_numpy()), -1)
    linked = events["external_id"].to_numpy(np.int64)[rows]
    linked = np.where(linked != events["correlation"].to_numpy(np.int64)[rows], linked, -1)  # as old traces write it
    by_id = by_external_id.reindex(linked, fill_value=-1).to_numpy(np.int64)
    graph = _of_graph(events, rows)
    in_call = np.where(graph, -1, np.where(in_call >= 0, in_call, by_id))
    _forget(found, graph & (in_label < 0))
    fill(found, calls, in_call)
    unit = np.where(in_label >= 0, -1 - in_label, np.where(in_call >= 0, in_call, len(calls) + np.arange(len(found))))
    merged = _merged(found, unit)
    fill_labelled(merged, comms, np.where(merged.index < 0, -1 - merged.index, -1))
    merged["told"] |= merged.index < 0
    place = merged.index.get_indexer(pd.Index(unit))
    return stacked(merged, not_run(comms, in_label)), place


def _renumbered(comms: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """The labels with the backend's numbers in those of its groups whose operators tell them.

    It counts what nobody labels, too: barriers, objects, what others send. So a label's own number would be another's.
    """
    inside = around_any(comms, calls["start_ns"])
    numbered = (calls["sequence"] >= 0).to_numpy()
    told = np.full(len(comms), -1, dtype=np.int64)
    told[inside[numbered & (inside >= 0)]] = calls["sequence"].to_numpy()[numbered & (inside >= 0)]
    counted = comms["group"].isin(calls.loc[numbered, "group"])
    return comms.assign(sequence=np.where(counted, told, comms["sequence"]))


def _device_events(trace: Trace, rows: NDArray[np.int64]) -> pd.DataFrame:
    """These device events, with the runtime call that launched each and what its own arguments tell."""
    device = trace.events.iloc[rows]
    found = blank_rows(len(rows))
    found["start_ns"] = device["ts_ns"].to_numpy(np.int64)
    found["end_ns"] = found["start_ns"] + device["dur_ns"].to_numpy(np.int64)
    call = launchers(trace)[rows]
    at = trace.events["ts_ns"].to_numpy(np.int64)[call]
    for name in ("launch_ns", "launch_end_ns", "host_ns"):
        found[name] = np.where(call >= 0, at, UNKNOWN_NS)
    found["lane"] = np.where(call >= 0, lanes(trace.events.iloc[call]), -1)
    found["named"] = kinds_by_name(device["name"])
    fill_told(found, trace, rows)
    return found


def _of_graph(events: pd.DataFrame, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these events are kernels that share their correlation with another kernel."""
    correlation = events["correlation"].to_numpy(np.int64)
    kernel = matching(events["category"], DEVICE_KERNEL_CATEGORIES.__contains__) & (correlation >= 0)
    values, counts = np.unique(correlation[kernel & np.isin(correlation, correlation[rows])], return_counts=True)
    return kernel[rows] & np.isin(correlation[rows], values[counts > 1])


def _forget(found: pd.DataFrame, rows: NDArray[np.bool_]) -> None:
    """Keep of these only when they ran, what their names tell, and when the host was there."""
    if not rows.any():
        return
    found.loc[rows, ["launch_ns", "launch_end_ns"]] = UNKNOWN_NS
    found.loc[rows, list(NUMBERS)] = -1
    found.loc[rows, list(TEXTS)] = ""


def _merged(found: pd.DataFrame, unit: NDArray[np.int64]) -> pd.DataFrame:
    """One row per unit, from its first launch and start to its last end."""
    groups, table = Groups(unit), first_known(found, unit)
    table["start_ns"] = groups.reduced(np.minimum, found["start_ns"].to_numpy())
    for name in ("launch_ns", "host_ns"):
        known = found[name].to_numpy()
        first = groups.reduced(np.minimum, np.where(known != UNKNOWN_NS, known, np.iinfo(np.int64).max))
        table[name] = np.where(first != np.iinfo(np.int64).max, first, UNKNOWN_NS)
    for name in ("launch_end_ns", "end_ns"):
        table[name] = groups.reduced(np.maximum, found[name].to_numpy())
    table["arrived_ns"] = table["start_ns"]
    firsts = groups.first(np.ones(len(found), dtype=bool))
    table["lane"], table["named"] = (found[name].to_numpy()[firsts] for name in ("lane", "named"))
    table["told"] = table["kind"] != ""
    table["kind"] = table["kind"].where(table["told"], table["named"])
    return table[list(RECORDED_COLUMNS)]
