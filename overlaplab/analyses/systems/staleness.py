"""How old the parameters were that an asynchronous server's gradients were computed with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from overlaplab.events import Run, Trace, Window
from overlaplab.evidence.clocks import run_zero_ns
from overlaplab.evidence.labels import engine_labels
from overlaplab.evidence.selection import launched_in, rows_by_rank
from overlaplab.selection import EVERYTHING, Selection

_COLUMNS = ("rank", "step", "worker", "staleness", "start_ns", "end_ns")


def staleness(run: Run, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per update that a server made while it recorded, in order; empty without an asynchronous server.

    Columns, in Int64: `rank` and `step` (the server's own), `worker` (the rank whose gradients were applied),
    `staleness` (how many updates were made since the worker got the parameters with which it computed them), and
    `start_ns`, `end_ns` (of the update, from the run's start). Raises `OverlaplabError` for an unknown rank or step.
    """
    rows = rows_by_rank(run, selection, partial(_trace_rows, run))
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype("Int64")


def _trace_rows(run: Run, trace: Trace, steps: Sequence[Window]) -> Iterator[dict[str, Any]]:
    served = [label for label in engine_labels(trace) if label.word == "serve"]
    zero_ns = run_zero_ns(run, trace)
    for step in steps:
        for label in launched_in(served, step):
            fields = {name: int(label.fields[name]) for name in ("worker", "staleness")}
            yield {"step": step.step, **fields, "start_ns": label.start_ns - zero_ns, "end_ns": label.end_ns - zero_ns}
