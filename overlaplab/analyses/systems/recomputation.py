"""The forward passes that activation checkpointing runs again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from overlaplab.events import Run, Trace, Window
from overlaplab.evidence.labels import engine_labels
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.selection import EVERYTHING, Selection
from overlaplab.vocabulary import label_list

_COLUMNS = {"rank": "Int64", "step": "Int64", "module": "object", "passes": "int64", "recompute_ns": "int64"}


def recomputation(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per rank, step and checkpointed module, in the order in which they ran again; empty without any.

    Columns: `rank`, `step` (Int64), `module`, `passes` (how many of its forward passes ran again), `recompute_ns` (how
    long they took on the host). By the engine's labels, so that it is empty for other loops. Raises `OverlaplabError`
    for an unknown rank or step.
    """
    return pd.DataFrame(rows_by_rank(run, selection, _trace_rows), columns=list(_COLUMNS)).astype(_COLUMNS)


def _trace_rows(trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    again = [label for label in engine_labels(trace) if label.word == "recompute"]
    for step in steps:
        took: dict[str, list[int]] = {}
        for label in launched_in(again, step):
            took.setdefault(label.fields["module"], []).append(label.end_ns - label.start_ns)
        for module, durations in took.items():
            name = label_list(module)[0]
            yield {"step": step.step, "module": name, "passes": len(durations), "recompute_ns": sum(durations)}
