"""Copies between the device and its host's memory, where the optimizer is offloaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from overlaplab.costs.offload import copied_bytes
from overlaplab.events import Run, Trace, Window, activity
from overlaplab.evidence.labels import labels_of
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.intervals import intersect, total, union
from overlaplab.selection import EVERYTHING, Selection

__all__ = ["copies"]

_COLUMNS = ("rank", "step", "way", "count", "bytes", "theory_bytes", "copy_ns", "hidden_ns")


def copies(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and direction in which something was copied; by the engine's labels, so of CPUs alone.

    Columns, numbers in Int64: `rank`, `step`, `way` (`down`, to the host, or `up`), `count`, `bytes`, `theory_bytes`
    (what should be copied; null where run.json does not tell), `copy_ns` (when at least one was under way), `hidden_ns`
    (of it, while the rank computed). Raises `OverlaplabError` for an unknown rank or step.
    """
    theory = {} if run.manifest is None else copied_bytes(run.manifest)
    rows = [row | {"theory_bytes": theory.get(row["way"])} for row in rows_by_rank(run, selection, _of_trace)]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype({name: "Int64" for name in _COLUMNS if name != "way"})


def _of_trace(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    copied, computing = [label for label in labels_of(trace) if label.word == "copy"], activity(trace).compute
    for step in steps:
        own = launched_in(copied, step)
        for way in dict.fromkeys(label.fields["way"] for label in own):
            these = [label for label in own if label.fields["way"] == way]
            busy = union([label.start_ns for label in these], [label.end_ns for label in these])
            yield {
                "step": step.step,
                "way": way,
                "count": len(these),
                "bytes": sum(int(label.fields["bytes"]) for label in these),
                "copy_ns": total(busy),
                "hidden_ns": total(intersect(busy, computing)),
            }
