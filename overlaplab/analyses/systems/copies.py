"""Copies between the device and its host's memory, where the optimizer is offloaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from overlaplab.costs.memory import copied_bytes
from overlaplab.events import Run, Trace, Window, activity, enclosing_ranges, event_times, rule_of
from overlaplab.evidence.labels import Label, engine_labels, span_intervals
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.intervals import Intervals, intersect, total, union
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import Rule

_COLUMNS = ("rank", "step", "way", "count", "bytes", "theory_bytes", "copy_ns", "hidden_ns")


def copies(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and direction in which something was copied; by the engine's labels.

    On a GPU a copy lasts as long as what was launched in its label. FSDP2 copies by itself there, without labels.

    Columns, numbers in Int64: `rank`, `step`, `way` (`down`, to the host, or `up`), `count`, `bytes`, `theory_bytes`
    (what should be copied; null where run.json does not tell), `copy_ns` (when at least one was under way), `hidden_ns`
    (of it, while the rank computed). Raises `OverlaplabError` for an unknown rank or step.
    """
    theory = {} if run.manifest is None else copied_bytes(run.manifest)
    rows = [row | {"theory_bytes": theory.get(row["way"])} for row in rows_by_rank(run, selection, _trace_rows)]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype({name: "Int64" for name in _COLUMNS if name != "way"})


def _trace_rows(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    copied = [label for label in engine_labels(trace) if label.word == "copy"]
    computing = activity(trace).compute
    for step in steps:
        in_step = launched_in(copied, step)
        for way in dict.fromkeys(label.fields["way"] for label in in_step):
            these = [label for label in in_step if label.fields["way"] == way]
            busy = _busy_time(trace, these)
            yield {
                "step": step.step,
                "way": way,
                "count": len(these),
                "bytes": sum(int(label.fields["bytes"]) for label in these),
                "copy_ns": total(busy),
                "hidden_ns": total(intersect(busy, computing)),
            }


def _busy_time(trace: Trace, these: Sequence[Label]) -> Intervals:
    """When at least one of these copies was under way."""
    spans = span_intervals(these)
    if rule_of(trace) is not Rule.GPU:
        return spans
    return union(*event_times(trace.events, enclosing_ranges(trace, spans) >= 0))
