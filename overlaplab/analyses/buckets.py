"""Bucket readiness: which gradient held each bucket, and when its all-reduce ran."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pandas as pd

from overlaplab.analyses.executions import Executions, executions
from overlaplab.analyses.labels import Label, labels_of
from overlaplab.analyses.selection import launched_in, selected_traces, selected_windows
from overlaplab.events import Run, Trace, Window, activity
from overlaplab.intervals import Intervals, subtract, total, union
from overlaplab.vocabulary import Rule, label_list

__all__ = ["buckets"]

_IDENTITY = ("rank", "step", "backward_start_ns", "backward_end_ns")
_TIMES = ("ready_ns", "launch_ns", "start_ns", "end_ns", "exposed_ns")
_COLUMNS = (*_IDENTITY, "index", "bytes", "parameters", "gradient_ready_ns", "last_parameter", *_TIMES)


def buckets(
    run: Run, *, ranks: Collection[int] | None = None, steps: Collection[int] | None = None, skip_steps: int = 0
) -> pd.DataFrame:
    """One row per rank, step and bucket, in launch order; times in ns from the step window's start.

    Columns: `rank`, `step` (Int64), `backward_start_ns`, `backward_end_ns` (of the backward that synchronises; it ends
    with autograd's last operation, before waiting; where several do, as with zero2's microbatches, the step's last one
    is shown), `index`, `bytes`, `parameters` (tuple of names),
    `gradient_ready_ns` (tuple, one per parameter, None where no gradient arrived), `last_parameter` (the one that
    arrived last; None where none did), `ready_ns`, `launch_ns` (host time: on a GPU it may precede the window),
    `start_ns`, `end_ns` (of the collective), `exposed_ns` (its time during which this rank computed nothing). Times
    are Int64, null where the trace does not tell. On a GPU readiness is device time. Empty where nothing is
    labelled, or device activity was not recorded.
    Raises `OverlaplabError` for an unknown rank or step.
    """
    rows: list[dict[str, Any]] = []
    for trace in selected_traces(run, ranks):
        chosen = selected_windows(trace, steps, skip_steps)
        rows += (row | {"rank": trace.rank} for row in _of_trace(trace, chosen))
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.astype(dict.fromkeys((*_IDENTITY, *_TIMES), "Int64") | {"index": "int64", "bytes": "int64"})


def _of_trace(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    labels = labels_of(trace)
    found = activity(trace)
    if found.rule is Rule.UNRECORDED or not any(label.word == "bucket_launch" for label in labels):
        return
    ran = executions(trace, labels)
    for step in steps:
        yield from _of_step(launched_in(labels, step), step, ran, found.compute)


def _of_step(labels: Sequence[Label], step: Window, ran: Executions, compute: Intervals) -> Iterator[dict[str, Any]]:
    backward = _last_of(label for label in labels if label.word == "backward" and label.fields.get("sync") == "1")
    if backward is None:
        return
    begins, ends = ran.backward(backward)
    labels = [label for label in labels if label.start_ns >= backward.start_ns]
    arrived = _arrivals(labels, ran)
    latest_ready: dict[str, Label] = {}
    for label in labels:
        if label.word == "bucket_ready":
            latest_ready[label.fields["bucket"]] = label
        if label.word != "bucket_launch" or label.fields["bucket"] not in latest_ready:
            continue
        launch, ready = label, latest_ready[label.fields["bucket"]]
        arrivals = {name: arrived.get(name) for name in label_list(ready.fields["parameters"])}
        bounds = ran.of_launch(launch)
        yield {
            "step": step.step,
            "backward_start_ns": begins - step.start_ns,
            "backward_end_ns": ends - step.start_ns,
            "index": int(ready.fields["bucket"]),
            "bytes": int(ready.fields["bytes"]),
            "parameters": tuple(arrivals),
            "gradient_ready_ns": tuple(None if at is None else at - step.start_ns for at in arrivals.values()),
            "last_parameter": _latest(arrivals),
            "ready_ns": ran.reached(ready.start_ns) - step.start_ns,
            "launch_ns": launch.start_ns - step.start_ns,
            "start_ns": bounds and bounds[0] - step.start_ns,
            "end_ns": bounds and bounds[1] - step.start_ns,
            "exposed_ns": bounds and total(subtract(union(bounds[:1], bounds[1:]), compute)),
        }


def _last_of(labels: Iterator[Label]) -> Label | None:
    return max(labels, key=lambda label: label.start_ns, default=None)


def _arrivals(labels: Sequence[Label], ran: Executions) -> dict[str, int]:
    """When each parameter's gradient was last accumulated; nothing for one that never was."""
    return {
        name: ran.reached(label.start_ns)
        for label in labels
        if label.word == "gradient_ready"
        for name in label_list(label.fields["parameter"])
    }


def _latest(arrivals: dict[str, int | None]) -> str | None:
    arrived = [(at, name) for name, at in arrivals.items() if at is not None]
    return max(arrived)[1] if arrived else None
