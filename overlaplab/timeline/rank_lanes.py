"""One rank's lanes: steps, phases, labels, streams or threads, exposed communication."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from overlaplab.axes import AXES, find_axis
from overlaplab.events import Run, Trace, WorkKind, activity, counting_as, matching, rule_of, thread_numbers
from overlaplab.evidence.arrays import take_values
from overlaplab.evidence.executions import executions
from overlaplab.evidence.host_work import host_work
from overlaplab.evidence.labels import Label, engine_labels
from overlaplab.evidence.passes import PASSES, pass_labels, update_labels
from overlaplab.evidence.recorded import recorded_collectives, recorded_of_events
from overlaplab.evidence.waits import numbered_arrivals
from overlaplab.intervals import subtract, union
from overlaplab.timeline.marks import Lane, MarkKind, encode_names, mark_code, mark_of_collective, marks_table
from overlaplab.vocabulary import DATA_LOADING, Rule, collective_kind, label_fields, label_text

_EXPOSED = "communication while nothing computes"
_AUTOGRAD = "autograd::engine::evaluate_function"
"""What torch's engine calls around each operator's backward."""
_OF_HOOKS = ("gradient_ready", "bucket_ready", "backward")
"""Words of labels in or around a backward pass."""


class _CountedLane(Struct, frozen=True, kw_only=True):
    """The counted events of one stream or thread."""

    rows: NDArray[np.intp]
    """Their rows in the trace."""
    main: MarkKind
    """What takes most of their time."""
    took_ns: float
    """That time."""
    marks: pd.DataFrame


def rank_lanes(
    run: Run, place: int, zero: int, steps: pd.DataFrame, labels: list[Lane], moments: pd.DataFrame
) -> list[Lane]:
    """The lanes of `run.traces[place]` from top to bottom; `steps`, `labels` and `moments`, the rank's rows of
    `exposed_moments` with a `name` (category) each, are already in ns from the zero.
    """
    trace = run.traces[place]
    named = ["the trace" if pd.isna(step) else f"step {step}" for step in steps["step"]]
    step_marks = marks_table(steps["start_ns"], steps["end_ns"], named, MarkKind.STEP)
    phases = _phases(trace, zero)
    return [
        Lane(label="steps", kind="steps", marks=step_marks),
        *([Lane(label="phases", kind="phases", marks=phases)] if len(phases) else []),
        *labels,
        *_counted_lanes(run, place, zero),
        Lane(label="exposed", kind="exposed", marks=_exposed_marks(trace, zero, moments)),
    ]


def _exposed_marks(trace: Trace, zero: int, moments: pd.DataFrame) -> pd.DataFrame:
    """Exposed communication by cause: rows of `exposed_moments` with a `name`; outside all steps there is no cause."""
    busy = activity(trace)
    inside = moments[["start_ns", "end_ns"]].to_numpy(np.int64)
    outside = subtract(busy.exposed_communication - zero, union(inside[:, 0], inside[:, 1]))
    times = np.concatenate((inside, outside))
    cause, causes = pd.factorize(moments["cause"])
    codes = np.array([mark_code(MarkKind(text)) for text in causes], dtype=np.int8)
    parts = np.concatenate((codes[cause], np.full(len(outside), mark_code(MarkKind.EXPOSED), dtype=np.int8)))
    of_moments = used_names(moments["name"], np.arange(len(moments)))
    names = union_categoricals([of_moments, encode_names([_EXPOSED] * len(outside))])
    names = pd.Categorical.from_codes(names.codes, names.categories.astype(object))  # as in traces
    return marks_table(times[:, 0], times[:, 1], names, parts)


def _phases(trace: Trace, zero: int) -> pd.DataFrame:
    """Forward and backward passes and optimizer steps, and on a CPU what the host does between them, by its name.

    The host runs ahead of a GPU, so there each lasts from the first to the last kernel it launched on the main stream.
    """
    labelled = [label for label in engine_labels(trace) if label.word in PASSES]
    passes = pass_labels(trace) or labelled or update_labels(trace)
    works = () if rule_of(trace) is Rule.GPU else host_work(trace)
    labels = (*passes, *works)
    starts, ends = (np.array([getattr(label, name) for label in labels], np.int64) for name in ("start_ns", "end_ns"))
    names = [label_text(label.word, **label.fields) for label in passes] + [_work_name(label) for label in works]
    parts = [mark_code(MarkKind(label.word)) for label in passes] + [mark_code(MarkKind.HOST)] * len(works)
    rows = np.flatnonzero(matching(trace.events["name"], lambda text: _word(text) in PASSES))
    row_of_start = dict(zip(trace.events["ts_ns"].to_numpy(np.int64)[rows].tolist(), rows.tolist(), strict=True))
    event = [row_of_start.get(at, -1) for at in starts.tolist()]
    if rule_of(trace) is Rule.GPU:
        ran = executions(trace)  # of DDP a backward pass ends with its last bucket, by the device's clock
        ends = np.minimum(ends, np.append(starts[1:], ends[-1:]))
        begins = [at if (begun := ran.first_begin_ns(at)) is None else begun for at in starts.tolist()]
        starts = np.array(begins, dtype=np.int64)
        ends = np.maximum(starts, np.array([ran.done_ns(at) for at in ends.tolist()], dtype=np.int64))
    return marks_table(starts - zero, ends - zero, names, np.array(parts, dtype=np.int8), event=event)


def _word(name: str) -> str:
    return (label_fields(name) or ("", {}))[0]


def _work_name(label: Label) -> str:
    name = label.fields["name"]
    return f"data loading: {name}" if name.startswith(DATA_LOADING) else name


def _counted_lanes(run: Run, place: int, zero: int) -> list[Lane]:
    """Counted events, by stream on a GPU and by thread on the CPU; the busiest compute lane first, then the others."""
    trace = run.traces[place]
    gpu = rule_of(trace) is Rule.GPU
    rows = np.flatnonzero(~counting_as(trace, WorkKind.NOTHING))
    if rule_of(trace) is Rule.UNRECORDED or not len(rows):
        return []
    lane = _lane_numbers(trace.events, rows, gpu=gpu)
    order = np.argsort(lane.astype(np.int16) if lane.max() < 1 << 15 else lane, kind="stable")  # int16 sorts by radix
    rows, bounds = rows[order], np.cumsum(np.bincount(lane))
    starts, lasted = (trace.events[name].to_numpy()[rows] for name in ("ts_ns", "dur_ns"))
    parts, collective = _parts(run, place, rows)
    names = used_names(trace.events["name"], rows)
    counted: list[_CountedLane] = []
    for own_rows in np.split(np.arange(len(rows)), bounds[:-1]):
        span = slice(int(own_rows[0]), int(own_rows[-1]) + 1)
        begins, of_events = starts[span] - zero, {"event": rows[span], "collective": collective[span]}
        marks = marks_table(begins, begins + lasted[span], names[span], parts[span], **of_events)
        took = np.bincount(parts[span], weights=lasted[span], minlength=len(MarkKind))
        main = tuple(MarkKind)[int(took.argmax())]
        counted.append(_CountedLane(rows=rows[span], main=main, took_ns=float(took.max()), marks=marks))
    counted.sort(key=_lane_order)
    labels = _lane_names(trace, counted, gpu=gpu)
    return [Lane(label=label, kind="stream", marks=lane.marks) for label, lane in zip(labels, counted, strict=True)]


def _lane_order(lane: _CountedLane) -> tuple[bool, int, float, int]:
    return lane.main is not MarkKind.COMPUTE, mark_code(lane.main), -lane.took_ns, int(lane.rows[0])


def _lane_numbers(events: pd.DataFrame, rows: NDArray[np.intp], *, gpu: bool) -> NDArray[np.intp]:
    """For each of these events the number of its stream or thread."""
    if gpu:
        device, stream = (events[name].to_numpy(dtype=np.int64)[rows] for name in ("device", "stream"))
        where = device * 1_000_003 + stream
    else:
        where = thread_numbers(events)[rows]
    lane: NDArray[np.intp] = pd.factorize(where)[0]
    return lane


def used_names(names: pd.Series, rows: NDArray[np.intp]) -> pd.Categorical:
    """The names of these rows, with only the categories that occur, in their order."""
    codes = names.cat.codes.to_numpy()[rows]
    there = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=1))
    number = np.full(len(names.cat.categories) + 1, -1, dtype=np.int32)  # the last stands for a missing name
    number[there] = np.arange(len(there))
    return pd.Categorical.from_codes(number[codes], names.cat.categories[there])


def _parts(run: Run, place: int, rows: NDArray[np.intp]) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """The mark of each of these events, and the `index` of its collective, -1 for none."""
    trace = run.traces[place]
    parts = np.empty(len(rows), dtype=np.int8)
    for work, mark in ((WorkKind.COMPUTE, MarkKind.COMPUTE), (WorkKind.MEMORY, MarkKind.MEMORY)):
        parts[counting_as(trace, work)[rows]] = mark_code(mark)
    communicates = counting_as(trace, WorkKind.COMMUNICATION)[rows]
    table = numbered_arrivals(run)
    table = table[table["trace"] == place].set_index("row").sort_index()
    recorded_row = recorded_of_events(trace)[rows]
    collective = take_values(table["index"].to_numpy(np.int64), recorded_row, -1)
    of_row = [mark_code(mark_of_collective(kind or "")) for kind in table["kind"]]
    names = trace.events["name"]
    of_name = np.array([mark_code(mark_of_collective(collective_kind(t) or "")) for t in names.cat.categories], np.int8)
    by_name = of_name[names.cat.codes.to_numpy()[rows[communicates]]]
    collective_row = recorded_row[communicates]
    parts[communicates] = np.where(
        collective_row >= 0, take_values(np.array(of_row, dtype=np.int8), collective_row, 0), by_name
    )
    return parts, collective


def _lane_names(trace: Trace, lanes: Sequence[_CountedLane], *, gpu: bool) -> list[str]:
    """Name lanes by what runs on them, as threads' names lie, and streams have only numbers.

    `stream 7 (compute)`, `stream 20 (NCCL, tp)`; on the CPU `main`, `autograd`, `link`, `gloo`, numbered if several.
    """
    if gpu:
        return _stream_names(trace, lanes)
    names = _thread_names(trace, lanes)
    return [
        f"{name} {names[: place + 1].count(name)}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def _stream_names(trace: Trace, lanes: Sequence[_CountedLane]) -> list[str]:
    device, stream = (trace.events[name].to_numpy(dtype=np.int64) for name in ("device", "stream"))
    several = len({int(device[lane.rows[0]]) for lane in lanes}) > 1
    communicates = counting_as(trace, WorkKind.COMMUNICATION)
    nccl = matching(trace.events["name"], lambda name: "nccl" in name.lower() or "rccl" in name.lower())
    names = []
    for lane in lanes:
        what = {MarkKind.COMPUTE: "compute", MarkKind.MEMORY: "copies"}.get(lane.main)
        if what is None:
            communicating = lane.rows[communicates[lane.rows]]
            word = "NCCL" if 2 * nccl[communicating].sum() > len(communicating) else "communication"
            what = ", ".join((word, *_axes(trace, communicating)))
        begin = f"device {device[lane.rows[0]]} " if several else ""
        names.append(f"{begin}stream {stream[lane.rows[0]]} ({what})")
    return names


def _thread_names(trace: Trace, lanes: Sequence[_CountedLane]) -> list[str]:
    thread = thread_numbers(trace.events)
    names = trace.events["name"]
    stepping = threads_with(thread, names, lambda name: name.startswith("ProfilerStep"))
    carried = (
        ("link", threads_with(thread, names, lambda name: name.startswith("engine::comm "))),
        ("gloo", threads_with(thread, names, lambda name: name.startswith("gloo:"))),
    )
    hooks = threads_with(thread, names, is_backward)
    computing = [lane for lane in lanes if lane.main is MarkKind.COMPUTE]
    leads = [lane for lane in computing if int(thread[lane.rows[0]]) in stepping] or computing[:1]
    labels = []
    for lane in lanes:
        lane_thread = int(thread[lane.rows[0]])
        if any(lane is lead for lead in leads) or lane_thread in stepping:
            labels.append("main")
        elif lane.main is MarkKind.COMPUTE:
            labels.append("autograd" if lane_thread in hooks else "compute")
        elif lane.main is MarkKind.MEMORY:
            labels.append("copies")
        else:
            word = next((word for word, threads in carried if lane_thread in threads), "communication")
            labels.append(f"{word} ({axis})" if (axis := _axis(trace, lane)) else word)
    return labels


def _axis(trace: Trace, lane: _CountedLane) -> str:
    """What the group is for whose collectives an emulated link's thread carries; empty if there is only one group."""
    carried = (label_fields(str(name)) for name in trace.events["name"].iloc[lane.rows[:1]])
    group = next((parsed[1].get("group", "") for parsed in carried if parsed), "")
    return next((find_axis(joined.description) for joined in trace.joined_groups if joined.name == group), "")


def _axes(trace: Trace, rows: NDArray[np.intp]) -> list[str]:
    """Along which axes of the mesh these events communicate, as far as their groups' descriptions tell."""
    collective_rows = recorded_of_events(trace)[rows]
    descriptions = recorded_collectives(trace)["group_description"].iloc[collective_rows[collective_rows >= 0]].unique()
    present = {find_axis(str(description)) for description in descriptions}
    return [axis for axis in AXES if axis in present]


def threads_with(thread: NDArray[np.int64], names: pd.Series, wanted: Callable[[str], bool]) -> set[int]:
    """The threads of the events with such names."""
    return set(np.unique(thread[matching(names, wanted)]).tolist())


def is_backward(name: str) -> bool:
    """Whether it names a part of a backward pass: autograd's, or its hooks'."""
    return name.startswith(_AUTOGRAD) or (label_fields(name) or ("",))[0] in _OF_HOOKS
