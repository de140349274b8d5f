"""Lanes from labels: buckets, gathers with their frees, reduce-scatters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from overlaplab.analyses.buckets import buckets
from overlaplab.analyses.collectives import collectives
from overlaplab.analyses.sharding.scatters import scatters
from overlaplab.analyses.sharding.schedule import schedule
from overlaplab.analyses.systems.label_tables import hops
from overlaplab.events import Run, Trace, rule_of
from overlaplab.evidence.arrays import int_or_none
from overlaplab.evidence.clocks import run_zero_ns
from overlaplab.evidence.executions import executions
from overlaplab.evidence.labels import engine_labels
from overlaplab.manifest import strategy_traits
from overlaplab.timeline.marks import Lane, MarkKind, mark_code, mark_of_collective, marks_table
from overlaplab.vocabulary import Rule
from overlaplab.words import kind_word, last_gradient


class _LabelMark(NamedTuple):
    """One mark of a label lane; ns from the run's zero."""

    start_ns: int
    end_ns: int
    name: str
    mark: MarkKind


def label_lanes(run: Run, steps: list[pd.DataFrame]) -> list[list[Lane]]:
    """Per trace the lanes from labels or torch's own ranges; `steps` are its windows, from the run's zero.

    A bucket, gather or reduce-scatter is drawn while its collective runs, a free as an instant; on a GPU in device
    time.
    """
    traits = strategy_traits(run.manifest)
    verb = "average" if traits is not None and traits.averages_parameters else "gather"
    tables = (
        ("buckets", buckets(run), _bucket),
        ("hops", hops(run), _hop),
        (f"{verb}s", schedule(run), _gather),
        ("reduce-scatters", scatters(run), _scatter),
    )
    collectives_of_trace = _collectives(run)
    lanes_of_trace = []
    for place, trace in enumerate(run.traces):
        begun = dict(zip(map(int_or_none, steps[place]["step"]), steps[place]["start_ns"], strict=True))
        lanes = []
        for label, table, marks_of in tables:
            marks = [mark for row in _rows(table, trace) for mark in marks_of(row, begun[int_or_none(row["step"])])]
            if label == f"{verb}s":
                marks += _updated_parameters(trace, run_zero_ns(run, trace), verb)
            if marks:
                lanes.append(_lane(label, marks, collectives_of_trace.get(place, {})))
        lanes_of_trace.append(lanes)
    return lanes_of_trace


def _rows(table: pd.DataFrame, trace: Trace) -> list[dict[Any, Any]]:
    """The rows of the trace's rank; a trace without a rank is the only one."""
    if table.empty:
        return []
    return (table if trace.rank is None else table[table["rank"] == trace.rank]).to_dict("records")


def _bucket(row: dict[Any, Any], zero: int) -> Iterator[_LabelMark]:
    if not pd.isna(row["start_ns"]):
        last = last_gradient(row)
        name = f"bucket {row['index']}" + ("" if last is None else f", last: {last}")
        yield _LabelMark(zero + row["start_ns"], zero + row["end_ns"], name, MarkKind.ALL_REDUCE)


def _hop(row: dict[Any, Any], zero: int) -> Iterator[_LabelMark]:
    name = f"bucket {row['bucket']}, {kind_word(row['kind'])} hop {row['hop']}"
    moves = [
        f"{verb} chunk {row[chunk]} {way} rank {row[rank]}"
        for verb, chunk, way, rank in (("sends", "sends", "to", "to"), ("receives", "receives", "from", "source"))
        if not pd.isna(row[chunk])
    ]
    text = ": ".join([name, ", ".join(moves)])
    yield _LabelMark(zero + row["start_ns"], zero + row["end_ns"], text, mark_of_collective(row["kind"]))


def _gather(row: dict[Any, Any], zero: int) -> Iterator[_LabelMark]:
    if not pd.isna(row["gather_start_ns"]):
        name = f"gather {row['unit']} for {row['phase']}"
        yield _LabelMark(zero + row["gather_start_ns"], zero + row["gather_end_ns"], name, MarkKind.ALL_GATHER)
    if not pd.isna(row["free_ns"]):
        in_part = not pd.isna(row["resharded_bytes"]) and row["resharded_bytes"] > 0
        name = f"free {row['unit']}{' in part' if in_part else ''}"
        yield _LabelMark(zero + row["free_ns"], zero + row["free_ns"], name, MarkKind.FREE)


def _scatter(row: dict[Any, Any], zero: int) -> Iterator[_LabelMark]:
    if not pd.isna(row["start_ns"]):
        name = f"reduce-scatter {row['unit']}"
        yield _LabelMark(zero + row["start_ns"], zero + row["end_ns"], name, MarkKind.REDUCE_SCATTER)


def _updated_parameters(trace: Trace, zero: int, verb: str) -> list[_LabelMark]:
    """zero1's and zero2's gathers, and local-sgd's averages."""
    launched = [label for label in engine_labels(trace) if label.word == "param_gather_launch"]
    if not launched or rule_of(trace) is Rule.UNRECORDED:
        return []
    ran = executions(trace)
    marks = []
    for label in launched:
        if bounds := ran.communication_span(label):
            name = f"{verb} bucket {label.fields['bucket']}'s parameters"
            marks.append(_LabelMark(bounds[0] - zero, bounds[1] - zero, name, MarkKind.ALL_GATHER))
    return marks


def _collectives(run: Run) -> dict[int, dict[int, tuple[int, MarkKind]]]:
    """Per trace the `index` and the mark of the collective that starts at a moment, in ns from the run's zero."""
    table = collectives(run)
    table = table[table["start_ns"].notna()]
    places = {trace.rank: place for place, trace in enumerate(run.traces)}
    by_start: dict[int, dict[int, tuple[int, MarkKind]]] = {}
    for rank, start, index, kind in zip(*(table[name] for name in ("rank", "start_ns", "index", "kind")), strict=True):
        by_start.setdefault(places[int_or_none(rank)], {}).setdefault(
            int(start), (int(index), mark_of_collective(kind or ""))
        )
    return by_start


def _lane(label: str, marks: list[_LabelMark], collective: dict[int, tuple[int, MarkKind]]) -> Lane:
    starts, ends, names, kinds = zip(*marks, strict=True)
    alone = [(-1, kind) for kind in kinds]
    spans = zip(starts, ends, alone, strict=True)
    carried = [collective.get(start, otherwise) if end > start else otherwise for start, end, otherwise in spans]
    parts = np.array([mark_code(kind) for _, kind in carried], dtype=np.int8)
    table = marks_table(starts, ends, names, parts, collective=[index for index, _ in carried])
    return Lane(label=label, kind="labels", marks=table)
