"""One rank's lanes: steps, phases, labels, streams or threads, exposed communication."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from overlaplab.analyses.collectives import numbered
from overlaplab.analyses.marks import Lane, Mark, mark_code, mark_of_collective, marks_table
from overlaplab.analyses.recorded import recorded_of_events
from overlaplab.events import Kind, Run, Trace, activity, lanes, matching, of_kind, rule_of
from overlaplab.intervals import subtract
from overlaplab.vocabulary import ANNOTATION_CATEGORIES, Rule, collective_kind, label_fields

__all__ = ["rank_lanes"]

_PHASES = ("forward", "backward", "optimizer")


def rank_lanes(run: Run, place: int, zero: int, steps: pd.DataFrame, labels: list[Lane]) -> list[Lane]:
    """The lanes of `run.traces[place]` from top to bottom; `steps` and `labels` are in ns from the zero already."""
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
    names = ["communication while nothing computes"] * len(gaps)
    found.append(Lane(label="exposed", kind="exposed", marks=marks_table(gaps[:, 0], gaps[:, 1], names, Mark.EXPOSED)))
    return found


def _phases(trace: Trace, zero: int) -> pd.DataFrame:
    """The engine's forward, backward and optimizer ranges on the host."""
    chosen = matching(trace.events["name"], lambda text: _word(text) in _PHASES)
    rows = np.flatnonzero(chosen & trace.events["category"].isin(ANNOTATION_CATEGORIES).to_numpy())
    events = trace.events.iloc[rows]
    starts = events["ts_ns"].to_numpy() - zero
    parts = np.array([mark_code(Mark(_word(name))) for name in events["name"]], dtype=np.int8)
    return marks_table(starts, starts + events["dur_ns"].to_numpy(), events["name"].astype(str), parts, event=rows)


def _word(name: str) -> str:
    return (label_fields(name) or ("", {}))[0]


def _counted_lanes(run: Run, place: int, zero: int) -> list[Lane]:
    """What the rule counts, by stream on a GPU and by thread on the CPU; the busiest compute first, then the rest."""
    trace = run.traces[place]
    gpu = rule_of(trace) is Rule.GPU
    rows = np.flatnonzero(~of_kind(trace, Kind.NOTHING))
    if rule_of(trace) is Rule.UNRECORDED or not len(rows):
        return []
    events = trace.events.iloc[rows]
    starts = events["ts_ns"].to_numpy() - zero
    parts, collective = _parts(run, place, rows)
    every = marks_table(
        starts,
        starts + events["dur_ns"].to_numpy(),
        _used(events["name"]),
        parts,
        event=rows,
        collective=collective,
    )
    where, first, lane = np.unique(_streams(events) if gpu else lanes(events), return_index=True, return_inverse=True)
    took = np.zeros((len(where), len(Mark)), dtype=np.int64)
    np.add.at(took, (lane, parts), events["dur_ns"].to_numpy())
    order = np.argsort(lane, kind="stable")
    ends = np.cumsum(np.bincount(lane))
    found = []
    for number, end in enumerate(ends.tolist()):
        own = order[(int(ends[number - 1]) if number else 0) : end]
        main = int(took[number].argmax())
        label = (
            _stream_label(events.iloc[first[number]], events) if gpu else f"thread {events['tid'].iloc[first[number]]}"
        )
        rank = (main != mark_code(Mark.COMPUTE), main, -int(took[number].max()), label)
        found.append((rank, Lane(label=label, kind="stream", marks=every.iloc[own])))
    return [lane for _, lane in sorted(found, key=lambda pair: pair[0])]


def _used(names: pd.Series) -> pd.Categorical:
    """Names with the categories that occur, in their order."""
    codes = names.cat.codes.to_numpy()
    there = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=1))
    number = np.full(len(names.cat.categories) + 1, -1, dtype=np.int32)  # the last is that of no name
    number[there] = np.arange(len(there))
    return pd.Categorical.from_codes(number[codes], names.cat.categories[there])


def _parts(run: Run, place: int, rows: NDArray[np.intp]) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """What each of these events is drawn as, and the `index` of its collective, -1 for none."""
    trace = run.traces[place]
    parts = np.empty(len(rows), dtype=np.int8)
    for kind, mark in ((Kind.COMPUTE, Mark.COMPUTE), (Kind.MEMORY, Mark.MEMORY)):
        parts[of_kind(trace, kind)[rows]] = mark_code(mark)
    communicates = of_kind(trace, Kind.COMMUNICATION)[rows]
    table = numbered(run)
    table = table[table["trace"] == place].set_index("row").sort_index()
    recorded_row = recorded_of_events(trace)[rows]
    collective = np.append(table["index"].to_numpy(np.int64), -1)[recorded_row]
    of_row = [mark_code(mark_of_collective(kind or "")) for kind in table["kind"]]
    names = trace.events["name"]
    of_name = np.array([mark_code(mark_of_collective(collective_kind(t) or "")) for t in names.cat.categories], np.int8)
    by_name = of_name[names.cat.codes.to_numpy()[rows[communicates]]]
    told = recorded_row[communicates]
    parts[communicates] = np.where(told >= 0, np.append(np.array(of_row, dtype=np.int8), 0)[told], by_name)
    return parts, collective


def _streams(events: pd.DataFrame) -> NDArray[np.int64]:
    """A number per event that tells its (device, stream)."""
    device, stream = events["device"].to_numpy(dtype=np.int64), events["stream"].to_numpy(dtype=np.int64)
    where: NDArray[np.int64] = device * 1_000_003 + stream
    return where


def _stream_label(row: pd.Series, rows: pd.DataFrame) -> str:
    device = f"device {row['device']} " if rows["device"].nunique() > 1 else ""
    return f"{device}stream {row['stream']}"
