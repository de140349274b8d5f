"""Every collective that a rank's trace holds, whether or not its launch was recorded.

A collective's metadata come from the engine's labels; without them from the arguments of the kernel, or of the operator
that launched it; without those only the kind is known, from names. All kernels or copies that one label or one operator
launched are one collective. Kernels of a CUDA graph share the correlation of the graph's launch, so only the kernel
itself is known.

There are three kinds of recordings: a device's, the engine's emulated link on a host, and plain gloo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Trace, Work, counting_as, launchers, matching, once_per_trace, rule_of, thread_numbers
from overlaplab.evidence.arguments import NUMBERS, TEXTS, Groups, arguments_of, around, first_known, operators
from overlaplab.evidence.labels import Label, labels_of
from overlaplab.intervals import Intervals, union
from overlaplab.vocabulary import DEVICE_KERNEL_CATEGORIES, Rule, collective_kind

__all__ = ["RECORDED_COLUMNS", "UNKNOWN_NS", "recorded", "recorded_of_events"]

UNKNOWN_NS = int(np.iinfo(np.int64).min)
"""An unknown time."""

RECORDED_COLUMNS = {
    **dict.fromkeys(("launch_ns", "launch_end_ns", "thread", "host_ns", "arrived_ns", "start_ns", "end_ns"), "int64"),
    "stream": "int64",
    **dict.fromkeys((*TEXTS, "named"), "object"),
    **dict.fromkeys(NUMBERS, "int64"),
    "kind_known": "bool",
}
"""The columns of `recorded`.

`launch_ns`, `launch_end_ns` and `thread`: the host range that launched it. `host_ns`: when it was launched, also for a
CUDA graph's kernels. `start_ns`, `end_ns`: the communication itself. `arrived_ns`: when the rank arrived. That is the
start, except on an emulated link: there it is the launch, or the end of the previous collective if that is later, since
the link's thread wakes up a little later. `stream`: of a device, -1 on a host. Times are absolute, `UNKNOWN_NS` where
unknown. `named`: the kind by the kernel's name alone. It is not certain: NCCL also calls the kernel of an all-to-all
SendRecv. `kind`: the kind from labels or arguments (then `kind_known`), else `named`.
"""


@once_per_trace
def recorded(trace: Trace) -> pd.DataFrame:
    """The trace's collectives in order of start, or of launch where the start is unknown: `RECORDED_COLUMNS`."""
    return _recorded(trace)[0]


def recorded_of_events(trace: Trace) -> NDArray[np.int64]:
    """For every event its collective's row in `recorded`, -1 for none; read-only."""
    return _recorded(trace)[1]


@once_per_trace
def _recorded(trace: Trace) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    labels = labels_of(trace)
    unit: NDArray[np.int64] | None = None
    rule = rule_of(trace)
    # On a GPU the engine's ranges show the launch, not the execution.
    if rule is Rule.GPU or (rule is Rule.UNRECORDED and any(label.word == "comm" for label in labels)):
        table, unit = _on_device(trace, labels)
    elif any(label.word in ("launch", "comm") for label in labels):
        table = _on_link(trace, labels)
    else:
        table = _on_gloo(trace, labels)
    if len(trace.groups) == 1:  # so it must be this one
        table["group"] = table["group"].where(table["group"] != "", trace.groups[0].name)
    described = {group.name: group.description for group in trace.groups}
    lanes = {name: described.get(name.partition(":")[0], "") for name in table["group"].unique()}
    told = table["group"].map(lanes | described)  # a message's is `GROUP:SENDER-RECEIVER`
    table["group_description"] = table["group_description"].where(table["group_description"] != "", told)
    began = np.where(table["start_ns"] != UNKNOWN_NS, table["start_ns"], table["launch_ns"])
    order = np.argsort(began, kind="stable")
    table = table.iloc[order].reset_index(drop=True)
    rows = np.flatnonzero(counting_as(trace, Work.COMMUNICATION))
    of_event = np.full(len(trace.events), -1, dtype=np.int64)
    of_event[rows] = _by_time(table, trace.events.iloc[rows]) if unit is None else np.argsort(order)[unit]
    of_event.flags.writeable = False
    return table, of_event


def _by_time(table: pd.DataFrame, events: pd.DataFrame) -> NDArray[np.int64]:
    """For each event the row of `table` with the same times, else the last started one that contains it, else -1."""
    ran = np.flatnonzero(table["start_ns"] != UNKNOWN_NS)
    bounds = pd.MultiIndex.from_arrays([table["start_ns"].to_numpy()[ran], table["end_ns"].to_numpy()[ran]])
    starts = events["ts_ns"].to_numpy(np.int64)
    ends = starts + events["dur_ns"].to_numpy(np.int64)
    first = ~bounds.duplicated()
    exact = bounds[first].get_indexer(pd.MultiIndex.from_arrays([starts, ends]))
    last = np.searchsorted(table["start_ns"].to_numpy()[ran], starts, side="right") - 1
    holds = (last >= 0) & (np.append(table["end_ns"].to_numpy()[ran], UNKNOWN_NS)[last] >= ends)
    place = np.where(exact >= 0, np.append(np.flatnonzero(first), -1)[exact], np.where(holds, last, -1))
    return np.asarray(np.append(ran, -1)[place], dtype=np.int64)


def _on_device(trace: Trace, labels: Sequence[Label]) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """The collectives, and for each communication event the index of its collective."""
    events = trace.events
    rows = np.flatnonzero(counting_as(trace, Work.COMMUNICATION))
    table = _device_events(trace, rows)
    calls, by_external_id = operators(trace)
    comms = _renumbered(_label_rows([label for label in labels if label.word == "comm"]), calls)
    launched = table["launch_ns"].to_numpy() != UNKNOWN_NS
    in_label = np.where(launched, _around_any(comms, table["host_ns"]), -1)
    in_call = np.where(launched, around(calls, table["thread"].to_numpy(), table["host_ns"].to_numpy()), -1)
    linked = events["external_id"].to_numpy(np.int64)[rows]
    linked = np.where(
        linked != events["correlation"].to_numpy(np.int64)[rows], linked, -1
    )  # old traces repeat the correlation there
    by_id = by_external_id.reindex(linked, fill_value=-1).to_numpy(np.int64)
    graph = _of_graph(events, rows)
    in_call = np.where(graph, -1, np.where(in_call >= 0, in_call, by_id))
    _forget(table, graph & (in_label < 0))
    batches = _batches(table, calls, np.flatnonzero(launched & ~graph & (in_label < 0) & (in_call < 0)), in_call)
    for kernel, batch in batches.items():
        in_call[kernel] = batch[0]
    _fill(table, calls, in_call)
    unit = np.where(in_label >= 0, -1 - in_label, np.where(in_call >= 0, in_call, len(calls) + np.arange(len(table))))
    merged = _merged(table, unit)
    _fill_labelled(merged, comms, np.where(merged.index < 0, -1 - merged.index, -1))
    merged["kind_known"] |= merged.index < 0
    place = merged.index.get_indexer(pd.Index(unit))
    others = [_others(merged.loc[batch[:1]], calls.iloc[batch[1:]]) for batch in batches.values() if len(batch) > 1]
    return _stacked(merged, *others, _not_run(comms, in_label)), place


def _batches(
    table: pd.DataFrame, calls: pd.DataFrame, kernels: NDArray[np.intp], in_call: NDArray[np.int64]
) -> dict[int, list[int]]:
    """For rows of device events the calls whose messages they carry: those of `batch_isend_irecv`.

    That calls for each message, and launches one kernel after the last call, outside all of them (`endCoalescing` in
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp). So such a kernel carries the messages that the same thread called
    for since it launched the last one, and that launched nothing themselves. A batch has one group and, where calls are
    numbered, one number; if calls before it have others, their kernels were not recorded.
    """
    kernels = kernels[(table["named"].to_numpy()[kernels] == "send_recv")]
    messages = (calls["source"] >= 0) | (calls["destination"] >= 0)
    waiting = np.setdiff1d(np.flatnonzero(messages), in_call)
    found: dict[int, list[int]] = {}
    if not len(waiting):
        return found
    threads, hosts = (table[name].to_numpy(np.int64)[kernels] for name in ("thread", "host_ns"))
    same = calls[["group", "sequence"]].to_numpy()
    for thread in np.unique(threads):
        own = kernels[threads == thread][np.argsort(hosts[threads == thread], kind="stable")]
        asked = waiting[calls["thread"].to_numpy()[waiting] == thread]
        ends = calls["end_ns"].to_numpy()[asked]
        order = np.argsort(ends, kind="stable")
        borders = np.searchsorted(ends[order], table["host_ns"].to_numpy()[own], side="right")
        for kernel, first, last in zip(own.tolist(), [0, *borders[:-1].tolist()], borders.tolist(), strict=True):
            batch = asked[order[first:last]].tolist()
            batch = [call for call in batch if (same[call] == same[batch[-1]]).all()]
            if batch:
                found[kernel] = batch
    return found


def _others(first: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """The further messages of a batch, by their calls: carried as its first one was."""
    table = pd.concat([first] * len(calls), ignore_index=True)
    for name in (*TEXTS, *NUMBERS):
        table[name] = calls[name].to_numpy()
    return table


def _renumbered(comms: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """The labels, numbered as the backend does in groups whose operators have sequence numbers.

    The backend also counts unlabelled collectives, such as barriers, so its numbers differ from the labels' own.
    """
    inside = _around_any(comms, calls["start_ns"])
    numbered = (calls["sequence"] >= 0).to_numpy()
    sequence = np.full(len(comms), -1, dtype=np.int64)
    sequence[inside[numbered & (inside >= 0)]] = calls["sequence"].to_numpy()[numbered & (inside >= 0)]
    counted = comms["group"].isin(calls.loc[numbered, "group"])
    return comms.assign(sequence=np.where(counted, sequence, comms["sequence"]))


def _device_events(trace: Trace, rows: NDArray[np.int64]) -> pd.DataFrame:
    """These device events, with the runtime call that launched each and its own arguments."""
    device = trace.events.iloc[rows]
    table = _blank_rows(len(rows))
    table["start_ns"] = device["ts_ns"].to_numpy(np.int64)
    table["end_ns"] = table["start_ns"] + device["dur_ns"].to_numpy(np.int64)
    table["stream"] = device["stream"].to_numpy(np.int64)
    call = launchers(trace)[rows]
    at = trace.events["ts_ns"].to_numpy(np.int64)[call]
    for name in ("launch_ns", "launch_end_ns", "host_ns"):
        table[name] = np.where(call >= 0, at, UNKNOWN_NS)
    table["thread"] = np.where(call >= 0, thread_numbers(trace.events.iloc[call]), -1)
    table["named"] = _kinds_by_name(device["name"])
    _fill_from_arguments(table, trace, rows)
    return table


def _of_graph(events: pd.DataFrame, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these events are kernels that share their correlation with another kernel."""
    correlation = events["correlation"].to_numpy(np.int64)
    kernel = matching(events["category"], DEVICE_KERNEL_CATEGORIES.__contains__) & (correlation >= 0)
    values, counts = np.unique(correlation[kernel & np.isin(correlation, correlation[rows])], return_counts=True)
    return kernel[rows] & np.isin(correlation[rows], values[counts > 1])


def _forget(table: pd.DataFrame, rows: NDArray[np.bool_]) -> None:
    """Keep only these rows' execution times, kinds by name and `host_ns`."""
    if not rows.any():
        return
    table.loc[rows, ["launch_ns", "launch_end_ns"]] = UNKNOWN_NS
    table.loc[rows, list(NUMBERS)] = -1
    table.loc[rows, list(TEXTS)] = ""


def _merged(events: pd.DataFrame, unit: NDArray[np.int64]) -> pd.DataFrame:
    """One row per unit, from its first launch and start to its last end."""
    groups, table = Groups(unit), first_known(events, unit)
    table["start_ns"] = groups.reduced(np.minimum, events["start_ns"].to_numpy())
    for name in ("launch_ns", "host_ns"):
        known = events[name].to_numpy()
        first = groups.reduced(np.minimum, np.where(known != UNKNOWN_NS, known, np.iinfo(np.int64).max))
        table[name] = np.where(first != np.iinfo(np.int64).max, first, UNKNOWN_NS)
    for name in ("launch_end_ns", "end_ns"):
        table[name] = groups.reduced(np.maximum, events[name].to_numpy())
    table["arrived_ns"] = table["start_ns"]
    firsts = groups.first(np.ones(len(events), dtype=bool))
    table["thread"], table["stream"], table["named"] = (
        events[name].to_numpy()[firsts] for name in ("thread", "stream", "named")
    )
    table["kind_known"] = table["kind"] != ""
    table["kind"] = table["kind"].where(table["kind_known"], table["named"])
    return table[list(RECORDED_COLUMNS)]


def _on_link(trace: Trace, labels: Sequence[Label]) -> pd.DataFrame:
    """The emulated link: calls on the caller's thread, joined by number with the ranges of the link's thread.

    Gloo ranges inside those belong to them, and gloo's messages, which begin before their lane takes them up; other
    gloo ranges are collectives of their own.
    """
    calls = _label_rows([label for label in labels if label.word == "launch"])
    comms = _label_rows([label for label in labels if label.word == "comm"])
    number = ["group", "sequence"] if calls["group"].ne("").any() else ["sequence"]  # older recorders name no group
    last = calls.drop_duplicates(number, keep="last")
    call = pd.MultiIndex.from_frame(last[number]).get_indexer(pd.MultiIndex.from_frame(comms[number]))
    call = np.append(last.index.to_numpy(), -1)[call]
    carried = _blank_rows(len(comms))
    _fill_from_label(carried, comms, np.arange(len(comms)))
    carried[["start_ns", "end_ns"]] = comms[["start_ns", "end_ns"]].to_numpy()
    _fill_launch(carried, calls, call)
    carried["arrived_ns"] = _arrivals(carried, comms["thread"])
    alone = _gloo_ranges(trace)
    busy = union(comms["start_ns"].to_numpy(np.int64), comms["end_ns"].to_numpy(np.int64))  # of all groups' threads
    inside = _is_within(busy, alone["start_ns"].to_numpy(np.int64))
    if (comms["kind"] == "send_recv").any():
        inside |= (alone["named"] == "send_recv").to_numpy()
    return _stacked(carried, _not_run(calls, call), alone[~inside])


def _is_within(spans: Intervals, at_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each moment lies in one of the sorted, disjoint spans, or at its end."""
    place = np.searchsorted(spans[:, 0], at_ns, side="right") - 1
    return np.asarray((place >= 0) & (np.append(spans[:, 1], UNKNOWN_NS)[place] >= at_ns))


def _arrivals(carried: pd.DataFrame, thread: pd.Series) -> pd.Series:
    """The later of each one's launch and the end of the previous one on the link, as the engine's carrier does it.

    Each group has a thread, but all share the link, so that one may wait for another group's after it was taken up.
    Messages, which have threads of their own, only follow those of the same thread.
    """
    alone = thread.nunique() == 1
    order = carried.sort_values("start_ns" if alone else ["end_ns", "start_ns"], kind="stable")
    link = thread.where(carried["kind"] == "send_recv", -1)
    before = order["end_ns"].groupby(link).shift(fill_value=UNKNOWN_NS).reindex(carried.index)
    starts = carried["start_ns"]
    most = starts if alone else carried["end_ns"]
    arrived = carried["launch_ns"].where(carried["launch_ns"] > before, before).where(lambda at: at < most, most)
    return arrived.where(carried["launch_ns"] != UNKNOWN_NS, starts)


def _on_gloo(trace: Trace, labels: Sequence[Label]) -> pd.DataFrame:
    """Plain gloo: c10d's operators inside the engine's labels, if any; gloo's own ranges follow."""
    rows = np.flatnonzero(matching(trace.events["name"], lambda text: text.startswith("c10d::")))
    labelled = _label_rows([label for label in labels if label.word == "collective"])
    ran = _gloo_ranges(trace)
    if len(rows):
        events = trace.events.iloc[rows]
        starts = events["ts_ns"].to_numpy(np.int64)
        calls = pd.DataFrame(
            {
                "start_ns": starts,
                "end_ns": starts + events["dur_ns"].to_numpy(np.int64),
                "thread": thread_numbers(events),
            }
        )
        in_label = around(labelled, calls["thread"].to_numpy(), starts)
    else:
        calls, in_label = labelled[["start_ns", "end_ns", "thread"]], np.arange(len(labelled))
    order = np.argsort(calls["start_ns"].to_numpy(), kind="stable")
    calls, in_label, rows = (
        calls.iloc[order].reset_index(drop=True),
        in_label[order],
        rows[order] if len(rows) else rows,
    )
    table = _blank_rows(len(calls))
    _fill_launch(table, calls, np.arange(len(calls)))
    _fill_from_label(table, labelled, in_label)
    if len(rows):
        _fill_from_arguments(table, trace, rows)
        named = _kinds_by_name(trace.events["name"].iloc[rows])
        table["named"] = named
        table["kind"] = table["kind"].where(table["kind"] != "", named)
    skipped = _begun_before(calls["start_ns"].to_numpy(), ran[["start_ns", "end_ns"]].to_numpy())
    pair = _pairs(table, ran.iloc[skipped:])
    pair = np.where(pair >= 0, skipped + pair, -1)
    for name in ("start_ns", "end_ns"):
        table.loc[pair >= 0, name] = ran[name].to_numpy()[pair[pair >= 0]]
    table["arrived_ns"] = table["start_ns"]
    _fill(table, ran, pair)
    return _stacked(table, _not_run(labelled, in_label), ran.iloc[:skipped])


def _begun_before(called: NDArray[np.int64], ran: NDArray[np.int64]) -> int:
    """How many of gloo's ranges were launched before the recording began; gloo starts them in the order of the calls.

    The first ranges may lack their call, and the last calls their range. So as few ranges as possible are skipped from
    the start such that none starts before its call.
    """
    for skipped in range(max(len(ran) - len(called), 0), len(ran) + 1):
        kept = ran[skipped:]
        if (kept[:, 0] >= called[: len(kept)]).all():
            return skipped
    raise AssertionError("skipping all always fits")


def _pairs(calls: pd.DataFrame, ran: pd.DataFrame) -> NDArray[np.int64]:
    """For each call the place of its range, -1 for none: in order among those of its kind and size, else among all.

    gloo takes calls up in order, but by several threads, one of which may lose its core before its range begins.
    """
    alike = ["kind", "elements"]
    keys = [pd.MultiIndex.from_frame(table[alike].assign(n=table.groupby(alike).cumcount())) for table in (calls, ran)]
    pair = np.asarray(keys[1].get_indexer(keys[0]), dtype=np.int64)
    began = np.append(ran["start_ns"].to_numpy(), np.iinfo(np.int64).max)[pair]
    if (pair >= 0).sum() == len(ran) and (began >= calls["launch_ns"].to_numpy()).all():
        return pair
    return np.where(np.arange(len(calls)) < len(ran), np.arange(len(calls)), -1)


def _gloo_ranges(trace: Trace) -> pd.DataFrame:
    """Gloo's own ranges, as collectives of unknown launch, in order of start."""
    rows = np.flatnonzero(matching(trace.events["name"], lambda text: text.startswith("gloo:")))
    events = trace.events.iloc[rows]
    table = _blank_rows(len(rows))
    table["start_ns"] = events["ts_ns"].to_numpy(np.int64)
    table["end_ns"] = table["start_ns"] + events["dur_ns"].to_numpy(np.int64)
    table["arrived_ns"] = table["start_ns"]
    _fill_from_arguments(table, trace, rows)
    table["named"] = _kinds_by_name(events["name"])
    table["kind"] = table["kind"].where(table["kind"] != "", table["named"])
    return table


def _blank_rows(rows: int) -> pd.DataFrame:
    """Rows in which every field is unknown."""
    unknown: dict[str, Any] = {"int64": UNKNOWN_NS, "object": "", "bool": True} | dict.fromkeys(
        (*NUMBERS, "thread", "stream"), -1
    )
    return pd.DataFrame(
        {
            name: pd.Series(np.full(rows, unknown.get(name, unknown[dtype]), dtype=dtype), dtype=dtype)
            for name, dtype in RECORDED_COLUMNS.items()
        },
        copy=False,
    )


def _stacked(*tables: pd.DataFrame) -> pd.DataFrame:
    """All rows of the tables."""
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def _fill(table: pd.DataFrame, source: pd.DataFrame, place: NDArray[np.int64]) -> None:
    """Where a field is unknown, take it from the source's row at `place` (-1: none)."""
    for name in (*TEXTS, *NUMBERS):
        own = table[name].to_numpy()
        values = np.append(source[name].to_numpy(), "" if name in TEXTS else -1)[place]
        table[name] = np.where((own == "") if name in TEXTS else (own < 0), values, own)


def _fill_from_arguments(table: pd.DataFrame, trace: Trace, rows: NDArray[np.int64]) -> None:
    """Fill unknown fields from these events' own arguments."""
    metadata = arguments_of(trace)
    _fill(table, metadata, metadata.index.get_indexer(pd.Index(rows)))


def _kinds_by_name(names: pd.Series) -> NDArray[np.object_]:
    """The kind of collective by each of these names, empty if it is none."""
    kinds = {text: collective_kind(str(text)) or "" for text in names.unique()}
    return np.array([kinds[name] for name in names], dtype=object)


def _label_rows(labels: Sequence[Label]) -> pd.DataFrame:
    """Labels as rows, by thread and start."""
    rows = [
        {
            "start_ns": label.start_ns,
            "end_ns": label.end_ns,
            "thread": label.thread,
            "kind": label.fields.get("kind", ""),
            "dtype": label.fields.get("dtype", ""),
            "group": unquote(label.fields.get("group", "")),
            "bytes": int(label.fields.get("bytes", -1)),
            "sequence": int(label.fields.get("seq", -1)),
        }
        for label in labels
    ]
    columns = ["start_ns", "end_ns", "thread", "kind", "dtype", "group", "bytes", "sequence"]
    texts = dict.fromkeys(("kind", "dtype", "group"), "object")
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(set(columns) - texts.keys(), "int64") | texts)
    return table.sort_values(["thread", "start_ns"], ignore_index=True, kind="stable")


def _around_any(table: pd.DataFrame, at_ns: pd.Series) -> NDArray[np.int64]:
    """`around`, with ranges on any thread."""
    return around(table.assign(thread=0), np.zeros(len(at_ns), np.int64), at_ns.to_numpy(np.int64))


def _not_run(labelled: pd.DataFrame, place: NDArray[np.int64]) -> pd.DataFrame:
    """The labels at none of these indices, as collectives whose execution is unknown."""
    others = labelled[~np.isin(np.arange(len(labelled)), place)].reset_index(drop=True)
    if others.empty:
        return others
    table = _blank_rows(len(others))
    _fill_labelled(table, others, np.arange(len(others)))
    return table


def _fill_labelled(table: pd.DataFrame, labelled: pd.DataFrame, place: NDArray[np.int64]) -> None:
    """Fill from the label at `place` (-1: none), and take its range as the launch."""
    _fill_from_label(table, labelled, place)
    _fill_launch(table, labelled, place)


def _fill_from_label(table: pd.DataFrame, labelled: pd.DataFrame, place: NDArray[np.int64]) -> None:
    """Overwrite with the known fields of the label at `place` (-1: none)."""
    for name in ("kind", "dtype", "group", "bytes", "sequence"):
        values = np.append(labelled[name].to_numpy(), "" if name in TEXTS else -1)[place]
        known = values != "" if name in TEXTS else values >= 0
        table[name] = np.where(known, values, table[name].to_numpy())


def _fill_launch(table: pd.DataFrame, calls: pd.DataFrame, place: NDArray[np.int64]) -> None:
    """Take the range at `place` (-1: none) as the launch."""
    has = place >= 0
    for name, source in (("launch_ns", "start_ns"), ("launch_end_ns", "end_ns"), ("host_ns", "start_ns")):
        table[name] = np.where(has, np.append(calls[source].to_numpy(), UNKNOWN_NS)[place], table[name].to_numpy())
    table["thread"] = np.where(has, np.append(calls["thread"].to_numpy(), -1)[place], table["thread"].to_numpy())
