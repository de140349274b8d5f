"""Diagnoses made by hand."""

from __future__ import annotations

import pandas as pd

from overlaplab.causes import Cause
from overlaplab.findings import Diagnosis
from overlaplab.findings.diagnosis.shares import CauseShare

MS = 1_000_000


def share(cause: Cause, exposed_ns: int) -> CauseShare:
    """One cause of one collective, from 5 ms on."""
    rows = pd.DataFrame({"start_ns": [5 * MS], "end_ns": [5 * MS + exposed_ns], "exposed_ns": [exposed_ns]})
    words = {"label": cause.value, "what": "bucket 5", "remedy": "a smaller last bucket"}
    return CauseShare(cause=cause, late_rank=None, **words, gain_ns=None, replayed=False, rows=rows)


def diagnosis() -> Diagnosis:
    """Rank 0, step 4: of 100 ms, 40 of communication, of which 30 are exposed."""
    tail = share(Cause.TAIL, 30 * MS)
    facts = {"cause": Cause.TAIL.value, "what": "bucket 5", "late_rank": None, "overhead": False}
    return Diagnosis(
        rank=0,
        step=4,
        chosen="the only one",
        start_ns=0,
        span_ns=100 * MS,
        comm_ns=40 * MS,
        hidden_ns=10 * MS,
        exposed_ns=30 * MS,
        idle_ns=0,
        headline="30 % of the step is exposed communication.",
        is_problem=True,
        causes=(tail,),
        moments=tail.rows.assign(**facts),
        advice="Try a smaller last bucket.",
        gain_ns=20 * MS,
        actions=(),
        bound=None,
        ahead=None,
        late_rank=None,
        waited_ns=0,
        outliers=None,
        kinds=None,
    )
