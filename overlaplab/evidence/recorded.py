"""Every collective that a rank's trace holds, whether or not its launch was recorded.

A collective's metadata come from the engine's labels; without them from the arguments of the kernel, or of the operator
that launched it; without those only the kind is known, from names. All kernels or copies that one label or one operator
launched are one collective. Kernels of a CUDA graph share the correlation of the graph's launch, so only the kernel
itself is known.

There are three kinds of recordings: a device's, the engine's emulated link on a host, and plain gloo.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import (
    DAMAGED,
    Trace,
    WorkKind,
    counting_as,
    damaged_as,
    event_times,
    launchers,
    matching,
    once_per_trace,
    rule_of,
    thread_numbers,
)
from overlaplab.evidence.arrays import Fields, Groups, as_table, place_among, take_rows, take_values
from overlaplab.evidence.call_metadata import (
    NUMBERS,
    TEXTS,
    collective_arguments,
    enclosing_rows,
    first_known,
    operators,
)
from overlaplab.evidence.labels import Label, engine_labels
from overlaplab.intervals import Integers, Mask, union
from overlaplab.vocabulary import DEVICE_KERNEL_CATEGORIES, Rule, collective_kind

UNKNOWN_NS = int(np.iinfo(np.int64).min)
"""An unknown time."""

RECORDED_COLUMNS = {
    **dict.fromkeys(("launch_ns", "launch_end_ns", "thread", "host_ns", "arrived_ns", "start_ns", "end_ns"), "int64"),
    "stream": "int64",
    **dict.fromkeys((*TEXTS, "named"), "object"),
    **dict.fromkeys(NUMBERS, "int64"),
    "kind_known": "bool",
}
"""The columns of `recorded_collectives`.

`launch_ns`, `launch_end_ns` and `thread`: the host range that launched it; on a device without labels `launch_end_ns`
is when the last launching call began. `host_ns`: when it was launched, also for a CUDA graph's kernels. `start_ns`,
`end_ns`: the communication itself. `arrived_ns`: when the rank arrived. That is the start, except on an emulated link:
there it is the launch, or the end of the previous collective if that is later, since the link's thread wakes up a
little later. `stream`: of a device, -1 on a host. Times are absolute, `UNKNOWN_NS` where unknown. `named`: the kind by
the kernel's name alone. It is not certain: NCCL also calls the kernel of an all-to-all SendRecv. `kind`: the kind from
labels or arguments (then `kind_known`), else `named`.
"""


@once_per_trace
def recorded_collectives(trace: Trace) -> pd.DataFrame:
    """The trace's collectives in order of start, or of launch where the start is unknown: `RECORDED_COLUMNS`."""
    return _collectives_and_rows(trace)[0]


@once_per_trace
def emulates_link(trace: Trace) -> bool:
    """Whether a host's trace has collectives of an emulated link: those of any kind begin with their last rank."""
    return rule_of(trace) is Rule.CPU and any(label.word == "comm" for label in engine_labels(trace))


def recorded_of_events(trace: Trace) -> Integers:
    """For every event its collective's row in `recorded_collectives`, -1 for none; read-only."""
    return _collectives_and_rows(trace)[1]


@once_per_trace
def _collectives_and_rows(trace: Trace) -> tuple[pd.DataFrame, Integers]:
    labels = engine_labels(trace)
    collective_of_event: Integers | None = None
    rule = rule_of(trace)
    # On a GPU the engine's ranges show the launch, not the execution.
    if rule is Rule.GPU or (rule is Rule.UNRECORDED and any(label.word == "comm" for label in labels)):
        table, collective_of_event = _read_device_events(trace, labels)
    elif any(label.word in ("launch", "comm") for label in labels):
        table = _read_link_ranges(trace, labels)
    else:
        table = _read_gloo_ranges(trace, labels)
    _name_groups(trace, table)
    # damaged gloo ranges kept their starts until here, to find the calls they belong to
    for name in ("start_ns", "arrived_ns"):
        table[name] = np.where(table["end_ns"] == UNKNOWN_NS, UNKNOWN_NS, table[name])
    began = np.where(table["start_ns"] != UNKNOWN_NS, table["start_ns"], table["launch_ns"])
    order = np.argsort(began, kind="stable")
    table = {name: values[order] for name, values in table.items()}
    rows = _communication_rows(trace)
    of_event = np.full(len(trace.events), -1, dtype=np.int64)
    if collective_of_event is None:
        of_event[rows] = _match_by_time(table, trace.events, rows)
    else:
        of_event[rows] = np.argsort(order)[collective_of_event]
    of_event.flags.writeable = False
    return as_table({name: table[name] for name in RECORDED_COLUMNS}), of_event


def _communication_rows(trace: Trace) -> Integers:
    """The rows of events that communicate, those at unknown times included."""
    rows = np.flatnonzero(counting_as(trace, WorkKind.COMMUNICATION))
    return np.union1d(rows, damaged_as(trace, WorkKind.COMMUNICATION)).astype(np.int64)


def _name_groups(trace: Trace, table: Fields) -> None:
    """Fill in groups and their descriptions, as far as the trace lists them."""
    groups = trace.joined_groups
    for size in set(table["group_size"].tolist()):
        fitting = [group for group in groups if size < 0 or (len(group.ranks) or group.size) in (None, size)]
        if len(fitting) == 1:  # so it must be this one
            unnamed = (table["group"] == "") & (table["group_size"] == size)
            table["group"] = np.where(unnamed, fitting[0].name, table["group"])
    described = {group.name: group.description for group in groups}
    listed = [
        described.get(name, described.get(name.partition(":")[0], ""))  # a message's is `GROUP:SENDER-RECEIVER`
        for name in table["group"].tolist()
    ]
    descriptions = table["group_description"]
    table["group_description"] = np.where(descriptions != "", descriptions, np.array(listed, dtype=object))


def _match_by_time(table: Fields, events: pd.DataFrame, rows: Integers) -> Integers:
    """For each of these rows of events the row of `table` with the same times, else the last started one that contains
    it, else -1.
    """
    ran = np.flatnonzero(table["start_ns"] != UNKNOWN_NS)
    began, ended = table["start_ns"][ran], table["end_ns"][ran]
    place_of: dict[tuple[int, int], int] = {}
    for place, times in enumerate(zip(began.tolist(), ended.tolist(), strict=True)):
        place_of.setdefault(times, place)
    starts, ends = event_times(events, rows)
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    exact = np.array([place_of.get(times, -1) for times in spans], dtype=np.int64)
    last = np.searchsorted(began, starts, side="right") - 1
    holds = (last >= 0) & (take_values(ended, last, UNKNOWN_NS) >= ends)
    nearest = np.where(exact >= 0, exact, np.where(holds, last, -1))
    return np.asarray(take_values(ran, nearest, -1), dtype=np.int64)


def _read_device_events(trace: Trace, labels: Sequence[Label]) -> tuple[Fields, Integers]:
    """The collectives, and for each communication event the index of its collective."""
    events = trace.events
    rows = _communication_rows(trace)
    table = _device_events(trace, rows)
    calls, of_id = operators(trace)
    comms = _renumber_labels(_label_rows([label for label in labels if label.word == "comm"]), calls)
    launched = table["launch_ns"] != UNKNOWN_NS
    in_label = np.where(launched, enclosing_rows(comms, None, table["host_ns"]), -1)
    in_call = np.where(launched, enclosing_rows(calls, table["thread"], table["host_ns"]), -1)
    external_ids, correlation = (events[name].to_numpy(np.int64)[rows] for name in ("external_id", "correlation"))
    external_ids = np.where(external_ids != correlation, external_ids, -1)  # old traces repeat the correlation there
    by_id = take_values(of_id["row"], place_among(of_id["external_id"], external_ids), -1)
    graph = _are_of_graph(events, rows)
    in_call = np.where(graph, -1, np.where(in_call >= 0, in_call, by_id))
    _clear_metadata(table, graph & (in_label < 0))
    batches = _batches(table, calls, np.flatnonzero(launched & ~graph & (in_label < 0) & (in_call < 0)), in_call)
    for kernel, batch in batches.items():
        in_call[kernel] = batch[0]
    _fill_unknown(table, calls, in_call)
    # Events of one collective share a code: their label's (negative), else their call's, else one of their own.
    label_code, call_code, lone_code = -1 - in_label, in_call, len(calls["thread"]) + _places(table)
    code = np.select([in_label >= 0, in_call >= 0], [label_code, call_code], lone_code)
    codes, merged = _merge_events(table, code)
    is_labelled = codes < 0
    _fill_labelled(merged, comms, np.where(is_labelled, -1 - codes, -1))
    merged["kind_known"] |= is_labelled
    further_messages = [
        _further_messages(take_rows(merged, np.searchsorted(codes, batch[:1])), take_rows(calls, np.array(batch[1:])))
        for batch in batches.values()
        if len(batch) > 1
    ]
    return _stack_rows(merged, *further_messages, _unexecuted_labels(comms, in_label)), np.searchsorted(codes, code)


def _batches(table: Fields, calls: Fields, kernels: NDArray[np.intp], in_call: Integers) -> dict[int, list[int]]:
    """For rows of device events the calls whose messages they carry: those of a `batch_isend_irecv`.

    It calls one operator for each message, and after the last call, outside all of them, launches one kernel
    (`endCoalescing` in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp). So such a kernel carries the messages that
    the same thread called for since it launched the last one, and that launched nothing themselves. A batch has one
    group and, where calls are numbered, one number; if calls before it have others, their kernels were not recorded.
    """
    kernels = kernels[np.isin(table["named"][kernels], ["send_recv", ""])]  # RCCL has one kernel for all kinds
    messages = (calls["source"] >= 0) | (calls["destination"] >= 0)
    calls_without_kernel = np.setdiff1d(np.flatnonzero(messages), in_call)
    batches: dict[int, list[int]] = {}
    if not len(calls_without_kernel):
        return batches
    threads, hosts = table["thread"][kernels], table["host_ns"][kernels]
    batch_keys = list(zip(calls["group"].tolist(), calls["sequence"].tolist(), strict=True))
    for thread in np.unique(threads):
        of_thread = kernels[threads == thread][np.argsort(hosts[threads == thread], kind="stable")]
        calls_of_thread = calls_without_kernel[calls["thread"][calls_without_kernel] == thread]
        ends = calls["end_ns"][calls_of_thread]
        order = np.argsort(ends, kind="stable")
        borders = np.searchsorted(ends[order], table["host_ns"][of_thread], side="right")
        for kernel, first, last in zip(of_thread.tolist(), [0, *borders[:-1].tolist()], borders.tolist(), strict=True):
            batch = calls_of_thread[order[first:last]].tolist()
            batch = [call for call in batch if batch_keys[call] == batch_keys[batch[-1]]]
            if batch:
                batches[kernel] = batch
    return batches


def _further_messages(first: Fields, calls: Fields) -> Fields:
    """The further messages of a batch, by their calls: carried as its first one was."""
    carried = take_rows(first, np.zeros(len(calls["thread"]), dtype=np.intp))
    return carried | {name: calls[name] for name in (*TEXTS, *NUMBERS)}


def _renumber_labels(comms: Fields, calls: Fields) -> Fields:
    """The labels, numbered as the backend does in groups whose operators have sequence numbers.

    The backend also counts unlabelled collectives, such as barriers, so its numbers differ from the labels' own.
    """
    inside = enclosing_rows(comms, None, calls["start_ns"])
    numbered = calls["sequence"] >= 0
    sequence = np.full(len(comms["thread"]), -1, dtype=np.int64)
    sequence[inside[numbered & (inside >= 0)]] = calls["sequence"][numbered & (inside >= 0)]
    groups = {*calls["group"][numbered].tolist()}
    counted = np.array([group in groups for group in comms["group"].tolist()], dtype=bool)
    return comms | {"sequence": np.where(counted, sequence, comms["sequence"])}


def _device_events(trace: Trace, rows: Integers) -> Fields:
    """These device events, with the runtime call that launched each and its own arguments."""
    events, table = trace.events, _blank_rows(len(rows))
    starts, table["end_ns"] = event_times(events, rows)
    unknown = (events["phase"].iloc[rows] == DAMAGED).to_numpy()
    table["start_ns"] = np.where(unknown, UNKNOWN_NS, starts)
    table["stream"] = events["stream"].to_numpy(np.int64)[rows]
    call = launchers(trace)[rows]
    for name in ("launch_ns", "launch_end_ns", "host_ns"):
        table[name] = np.where(call >= 0, events["ts_ns"].to_numpy(np.int64)[call], UNKNOWN_NS)
    table["thread"] = np.where(call >= 0, thread_numbers(events, call), -1)
    table["named"] = _kinds_by_name(events["name"].iloc[rows])
    _fill_from_arguments(table, trace, rows)
    return table


def _are_of_graph(events: pd.DataFrame, rows: Integers) -> Mask:
    """Mark these events where they are kernels that share their correlation with another kernel."""
    correlation = events["correlation"].to_numpy(np.int64)
    kernel = matching(events["category"], DEVICE_KERNEL_CATEGORIES.__contains__) & (correlation >= 0)
    values, counts = np.unique(correlation[kernel & np.isin(correlation, correlation[rows])], return_counts=True)
    return kernel[rows] & np.isin(correlation[rows], values[counts > 1])


def _clear_metadata(table: Fields, rows: Mask) -> None:
    """Make launch and metadata of these rows unknown; times of execution, `host_ns`, thread, stream and the kind by
    name stay.
    """
    unknown = dict.fromkeys(("launch_ns", "launch_end_ns"), UNKNOWN_NS) | dict.fromkeys(NUMBERS, -1)
    for name, value in (unknown | dict.fromkeys(TEXTS, "")).items():
        table[name] = np.where(rows, value, table[name])


def _merge_events(events: Fields, code: Integers) -> tuple[Integers, Fields]:
    """The codes, each once, ascending, and one row per code, from its first launch and start to its last end."""
    groups, table = Groups(code), first_known(events, code)
    table["start_ns"] = groups.reduce(np.minimum, events["start_ns"])
    for name in ("launch_ns", "host_ns"):
        moments = events[name]
        first = groups.reduce(np.minimum, np.where(moments != UNKNOWN_NS, moments, np.iinfo(np.int64).max))
        table[name] = np.where(first != np.iinfo(np.int64).max, first, UNKNOWN_NS)
    for name in ("launch_end_ns", "end_ns"):
        table[name] = groups.reduce(np.maximum, events[name])
    table["end_ns"] = np.where(table["start_ns"] == UNKNOWN_NS, UNKNOWN_NS, table["end_ns"])
    table["arrived_ns"] = table["start_ns"]
    firsts = groups.first(np.ones(len(code), dtype=bool))
    for name in ("thread", "stream", "named"):
        table[name] = events[name][firsts]
    table["kind_known"] = table["kind"] != ""
    table["kind"] = np.where(table["kind_known"], table["kind"], table["named"])
    return groups.values, table


def _read_link_ranges(trace: Trace, labels: Sequence[Label]) -> Fields:
    """The emulated link: calls on the caller's thread, joined by number with the ranges of the link's thread.

    Gloo's ranges inside those are left out, and, where the engine sends messages, all of gloo's messages, which begin
    before their lane takes them up. Its other ranges are collectives of their own.
    """
    calls = _label_rows([label for label in labels if label.word == "launch"])
    comms = _label_rows([label for label in labels if label.word == "comm"])
    names_groups = (calls["group"] != "").any()  # older recorders name none
    key_columns = ["group", "sequence"] if names_groups else ["sequence"]
    call_of_key = {key: row for row, key in enumerate(_keys(calls, key_columns))}
    call = np.array([call_of_key.get(key, -1) for key in _keys(comms, key_columns)], dtype=np.int64)
    carried = _blank_rows(len(call))
    _overwrite_from_label(carried, comms, _places(comms))
    carried |= {"start_ns": comms["start_ns"], "end_ns": comms["end_ns"]}
    _fill_launch(carried, calls, call)
    carried["arrived_ns"] = _arrivals(carried, comms["thread"])
    gloo = _gloo_ranges(trace)
    busy = union(comms["start_ns"], comms["end_ns"])  # of all groups' threads
    inside = enclosing_rows({"start_ns": busy[:, 0], "end_ns": busy[:, 1]}, None, gloo["start_ns"]) >= 0
    if (comms["kind"] == "send_recv").any():
        inside |= gloo["named"] == "send_recv"
    return _stack_rows(carried, _unexecuted_labels(calls, call), take_rows(gloo, np.flatnonzero(~inside)))


def _arrivals(carried: Fields, thread: Integers) -> Integers:
    """The later of each one's launch and the end of the previous one on the link, as the engine's carrier does it.

    Each group has a thread, but all share the link, so that one may wait for another group's after it was taken up.
    Messages, which have threads of their own, only follow those of the same thread.
    """
    starts, ends, launched = carried["start_ns"], carried["end_ns"], carried["launch_ns"]
    has_one_thread = len(np.unique(thread)) == 1
    order = np.argsort(starts, kind="stable") if has_one_thread else np.lexsort((starts, ends))
    link = np.where(carried["kind"] == "send_recv", thread, -1)
    before = np.full(len(link), UNKNOWN_NS, dtype=np.int64)
    for number in np.unique(link):
        of_link = order[link[order] == number]
        before[of_link[1:]] = ends[of_link[:-1]]
    arrived = np.minimum(np.maximum(launched, before), starts if has_one_thread else ends)
    return np.where(launched != UNKNOWN_NS, arrived, starts)


def _read_gloo_ranges(trace: Trace, labels: Sequence[Label]) -> Fields:
    """Plain gloo: c10d's operators inside the engine's labels, if any; gloo's own ranges follow."""
    rows = np.flatnonzero(matching(trace.events["name"], lambda text: text.startswith("c10d::")))
    labelled = _label_rows([label for label in labels if label.word == "collective"])
    ran = _gloo_ranges(trace)
    if len(rows):
        (starts, ends), threads = event_times(trace.events, rows), thread_numbers(trace.events, rows)
        calls: Fields = {"start_ns": starts, "end_ns": ends, "thread": threads}
        in_label = enclosing_rows(labelled, calls["thread"], starts)
    else:
        calls, in_label = {name: labelled[name] for name in ("start_ns", "end_ns", "thread")}, _places(labelled)
    order = np.argsort(calls["start_ns"], kind="stable")
    calls, in_label = take_rows(calls, order), in_label[order]
    table = _blank_rows(len(order))
    _fill_launch(table, calls, _places(calls))
    _overwrite_from_label(table, labelled, in_label)
    if len(rows):
        _fill_from_arguments(table, trace, rows[order])
        table["named"] = _kinds_by_name(trace.events["name"].iloc[rows[order]])
        table["kind"] = np.where(table["kind"] != "", table["kind"], table["named"])
    skipped = _count_uncalled_ranges(calls["start_ns"], np.column_stack((ran["start_ns"], ran["end_ns"])))
    called_ranges = take_rows(ran, np.arange(skipped, len(ran["thread"])))
    pair = _range_of_call(table, called_ranges)
    for name in ("start_ns", "end_ns"):
        table[name] = take_values(called_ranges[name], pair, UNKNOWN_NS)
    table["arrived_ns"] = table["start_ns"]
    _fill_unknown(table, called_ranges, pair)
    return _stack_rows(table, _unexecuted_labels(labelled, in_label), take_rows(ran, np.arange(skipped)))


def _count_uncalled_ranges(called: Integers, ran: Integers) -> int:
    """How many of gloo's ranges were launched before the recording began; gloo starts them in the order of the calls.

    The first ranges may lack their call, and the last calls their range. So as few ranges as possible are skipped from
    the start such that none starts before its call.
    """
    for skipped in range(max(len(ran) - len(called), 0), len(ran) + 1):
        remaining = ran[skipped:]
        if (remaining[:, 0] >= called[: len(remaining)]).all():
            return skipped
    raise AssertionError("skipping all always fits")


def _range_of_call(calls: Fields, ran: Fields) -> Integers:
    """For each call the place of its range, -1 for none: in order among those of its kind and size, else among all.

    gloo takes calls up in order, but by several threads, one of which may lose its core before its range begins.
    """
    place_of = {key: place for place, key in enumerate(_nth_alike(ran))}
    pair = np.array([place_of.get(key, -1) for key in _nth_alike(calls)], dtype=np.int64)
    began = take_values(ran["start_ns"], pair, np.iinfo(np.int64).max)
    if (pair >= 0).sum() == len(place_of) and (began >= calls["launch_ns"]).all():
        return pair
    return np.where(_places(calls) < len(place_of), _places(calls), -1)


def _nth_alike(table: Fields) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Each one's kind and size, and how many before it have the same."""
    seen: Counter[tuple[Any, ...]] = Counter()
    for key in _keys(table, ("kind", "elements")):
        yield key, seen[key]
        seen[key] += 1


def _gloo_ranges(trace: Trace) -> Fields:
    """Gloo's own ranges, as collectives of unknown launch, in order of start."""
    events = trace.events
    rows = np.flatnonzero(matching(events["name"], lambda text: text.startswith("gloo:")))
    table = _blank_rows(len(rows))
    table["start_ns"], table["end_ns"] = event_times(events, rows)
    table["arrived_ns"] = table["start_ns"]
    table["end_ns"][(events["phase"].iloc[rows] == DAMAGED).to_numpy()] = UNKNOWN_NS
    _fill_from_arguments(table, trace, rows)
    table["named"] = _kinds_by_name(events["name"].iloc[rows])
    table["kind"] = np.where(table["kind"] != "", table["kind"], table["named"])
    return table


def _blank_rows(rows: int) -> Fields:
    """Rows in which every field is unknown; `kind_known` is set, as only kinds by kernels' names are uncertain."""
    unknown: dict[str, Any] = {"int64": UNKNOWN_NS, "object": "", "bool": True}
    unknown |= dict.fromkeys((*NUMBERS, "thread", "stream"), -1)
    columns = RECORDED_COLUMNS.items()
    return {name: np.full(rows, unknown.get(name, unknown[dtype]), dtype=dtype) for name, dtype in columns}


def _places(table: Fields) -> Integers:
    """The numbers of its rows, from 0."""
    return np.arange(len(table["thread"]), dtype=np.int64)


def _keys(table: Fields, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].tolist() for name in names), strict=True)


def _stack_rows(*tables: Fields) -> Fields:
    return {name: np.concatenate([table[name] for table in tables]) for name in RECORDED_COLUMNS}


def _fill_unknown(table: Fields, source: Fields, place: Integers) -> None:
    """Where a field is unknown, take it from the source's row at `place` (-1: none)."""
    for name in (*TEXTS, *NUMBERS):
        column = table[name]
        values = take_values(source[name], place, "" if name in TEXTS else -1)
        table[name] = np.where((column == "") if name in TEXTS else (column < 0), values, column)


def _fill_from_arguments(table: Fields, trace: Trace, rows: Integers) -> None:
    """Fill unknown fields from these events' own arguments."""
    metadata = collective_arguments(trace)
    _fill_unknown(table, metadata, place_among(metadata["event"], rows))


def _kinds_by_name(names: pd.Series) -> NDArray[np.object_]:
    """The kind of collective by each of these names, empty if it is none."""
    codes, place = np.unique(names.cat.codes.to_numpy(), return_inverse=True)
    texts = names.cat.categories
    return np.array([collective_kind(str(texts[code])) or "" for code in codes.tolist()], dtype=object)[place]


def _label_rows(labels: Sequence[Label]) -> Fields:
    """Labels as rows, by thread and start."""
    table: Fields = {
        name: np.array([getattr(label, name) for label in labels], dtype=np.int64)
        for name in ("start_ns", "end_ns", "thread")
    }
    for name in ("kind", "dtype", "group"):
        texts = [label.fields.get(name, "") for label in labels]
        table[name] = np.array(list(map(unquote, texts)) if name == "group" else texts, dtype=object)
    for name, field in (("bytes", "bytes"), ("sequence", "seq")):
        table[name] = np.array([int(label.fields.get(field, -1)) for label in labels], dtype=np.int64)
    return take_rows(table, np.lexsort((table["start_ns"], table["thread"])))


def _unexecuted_labels(labelled: Fields, place: Integers) -> Fields:
    """The labels at none of these indices, as collectives whose execution is unknown."""
    others = take_rows(labelled, np.setdiff1d(_places(labelled), place))
    table = _blank_rows(len(others["thread"]))
    _fill_labelled(table, others, _places(others))
    return table


def _fill_labelled(table: Fields, labelled: Fields, place: Integers) -> None:
    """Fill from the label at `place` (-1: none), and take its range as the launch."""
    _overwrite_from_label(table, labelled, place)
    _fill_launch(table, labelled, place)


def _overwrite_from_label(table: Fields, labelled: Fields, place: Integers) -> None:
    """Overwrite with the known fields of the label at `place` (-1: none)."""
    for name in ("kind", "dtype", "group", "bytes", "sequence"):
        values = take_values(labelled[name], place, "" if name in TEXTS else -1)
        table[name] = np.where(values != "" if name in TEXTS else values >= 0, values, table[name])


def _fill_launch(table: Fields, calls: Fields, place: Integers) -> None:
    """Take the range at `place` (-1: none) as the launch."""
    has = place >= 0
    for name, source in (("launch_ns", "start_ns"), ("launch_end_ns", "end_ns"), ("host_ns", "start_ns")):
        table[name] = np.where(has, take_values(calls[source], place, UNKNOWN_NS), table[name])
    table["thread"] = np.where(has, take_values(calls["thread"], place, -1), table["thread"])
