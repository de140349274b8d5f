"""One rank's lanes: steps, phases, labels, streams or threads, exposed communication."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.events import Run, Trace, Work, activity, counting_as, matching, rule_of, thread_numbers
from overlaplab.evidence.executions import executions
from overlaplab.evidence.recorded import recorded_of_events
from overlaplab.evidence.waits import numbered
from overlaplab.intervals import subtract
from overlaplab.timeline.marks import Lane, Mark, mark_code, mark_of_collective, marks_table
from overlaplab.vocabulary import ANNOTATION_CATEGORIES, Rule, collective_kind, label_fields
from overlaplab.words import shorten

_EXPOSED = "communication while nothing computes"
_PHASES = ("forward", "backward", "optimizer")


def rank_lanes(run: Run, place: int, zero: int, steps: pd.DataFrame, labels: list[Lane]) -> list[Lane]:
    """The lanes of `run.traces[place]` from top to bottom; `steps` and `labels` are already in ns from the zero."""
    trace = run.traces[place]
    named = ["the trace" if pd.isna(step) else f"step {step}" for step in steps["step"]]
    found = [Lane(label="steps", kind="steps", marks=marks_table(steps["start_ns"], steps["end_ns"], named, Mark.STEP))]
    phases = _phases(trace, zero)
    if len(phases):
        found.append(Lane(label="phases", kind="phases", marks=phases))
    found += labels
    found += _counted_lanes(run, place, zero)
    busy = activity(trace)
    gaps = subtract(busy.communication, busy.compute) - zero
    names = pd.Categorical.from_codes(np.zeros(len(gaps), dtype=np.int8), pd.Index([_EXPOSED], dtype=object))
    found.append(Lane(label="exposed", kind="exposed", marks=marks_table(gaps[:, 0], gaps[:, 1], names, Mark.EXPOSED)))
    return found


def _phases(trace: Trace, zero: int) -> pd.DataFrame:
    """The engine's forward, backward and optimizer ranges.

    The host runs ahead of a GPU, so there each lasts from the first to the last kernel it launched on the main stream.
    """
    chosen = matching(trace.events["name"], lambda text: _word(text) in _PHASES)
    rows = np.flatnonzero(chosen & matching(trace.events["category"], ANNOTATION_CATEGORIES.__contains__))
    events = trace.events.iloc[rows]
    starts = events["ts_ns"].to_numpy(np.int64)
    ends = starts + events["dur_ns"].to_numpy(np.int64)
    if rule_of(trace) is Rule.GPU:
        ran = executions(trace)
        starts = np.array([at if (begun := ran.begun(at)) is None else begun for at in starts.tolist()], dtype=np.int64)
        ends = np.maximum(starts, np.array([ran.reached(at) for at in ends.tolist()], dtype=np.int64))
    parts = np.array([mark_code(Mark(_word(name))) for name in events["name"]], dtype=np.int8)
    return marks_table(starts - zero, ends - zero, events["name"].astype(str), parts, event=rows)


def _word(name: str) -> str:
    return (label_fields(name) or ("", {}))[0]


def _counted_lanes(run: Run, place: int, zero: int) -> list[Lane]:
    """Counted events, by stream on a GPU and by thread on the CPU; the busiest compute lane first, then the others."""
    trace = run.traces[place]
    gpu = rule_of(trace) is Rule.GPU
    rows = np.flatnonzero(~counting_as(trace, Work.NOTHING))
    if rule_of(trace) is Rule.UNRECORDED or not len(rows):
        return []
    lane, first = _numbered(trace.events, rows, gpu=gpu)
    order = np.argsort(lane.astype(np.int16) if len(first) < 1 << 15 else lane, kind="stable")  # int16 sorts by radix
    rows, bounds = rows[order], np.cumsum(np.bincount(lane))
    starts, lasted = (trace.events[name].to_numpy()[rows] for name in ("ts_ns", "dur_ns"))
    parts, collective = _parts(run, place, rows)
    names = _used(trace.events["name"], rows)
    devices = len(np.unique(trace.events["device"].to_numpy()[first]))
    found = []
    for first_row, own_rows in zip(first, np.split(np.arange(len(rows)), bounds[:-1]), strict=True):
        own = slice(int(own_rows[0]), int(own_rows[-1]) + 1)
        marks = marks_table(
            starts[own] - zero,
            starts[own] - zero + lasted[own],
            names[own],
            parts[own],
            event=rows[own],
            collective=collective[own],
        )
        took = np.bincount(parts[own], weights=lasted[own], minlength=len(Mark))
        main = int(took.argmax())
        label = _label(trace.events.iloc[first_row], gpu=gpu, devices=devices)
        rank = (main != mark_code(Mark.COMPUTE), main, -took[main], label)
        found.append((rank, Lane(label=label, kind="stream", marks=marks)))
    return [lane for _, lane in sorted(found, key=lambda pair: pair[0])]


def _numbered(events: pd.DataFrame, rows: NDArray[np.intp], *, gpu: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each of these events the number of its stream or thread, and for each number its first event."""
    if gpu:
        device, stream = (events[name].to_numpy(dtype=np.int64)[rows] for name in ("device", "stream"))
        where = device * 1_000_003 + stream
    else:
        where = thread_numbers(events)[rows]
    lane, known = pd.factorize(where)
    first = np.full(len(known), len(rows))
    np.minimum.at(first, lane, np.arange(len(rows)))
    return lane, rows[first]


def _label(event: pd.Series, *, gpu: bool, devices: int) -> str:
    if not gpu:
        return f"thread {shorten(str(event['tid']))}"
    return (f"device {event['device']} " if devices > 1 else "") + f"stream {event['stream']}"


def _used(names: pd.Series, rows: NDArray[np.intp]) -> pd.Categorical:
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
    for work, mark in ((Work.COMPUTE, Mark.COMPUTE), (Work.MEMORY, Mark.MEMORY)):
        parts[counting_as(trace, work)[rows]] = mark_code(mark)
    communicates = counting_as(trace, Work.COMMUNICATION)[rows]
    table = numbered(run)
    table = table[table["trace"] == place].set_index("row").sort_index()
    recorded_row = recorded_of_events(trace)[rows]
    collective = np.append(table["index"].to_numpy(np.int64), -1)[recorded_row]
    of_row = [mark_code(mark_of_collective(kind or "")) for kind in table["kind"]]
    names = trace.events["name"]
    of_name = np.array([mark_code(mark_of_collective(collective_kind(t) or "")) for t in names.cat.categories], np.int8)
    by_name = of_name[names.cat.codes.to_numpy()[rows[communicates]]]
    known = recorded_row[communicates]
    parts[communicates] = np.where(known >= 0, np.append(np.array(of_row, dtype=np.int8), 0)[known], by_name)
    return parts, collective
