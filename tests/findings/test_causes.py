"""What to do about exposed communication."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from made_exposed import backward, bucket
from made_traces import launched, op, run_of

import overlaplab
from overlaplab.analyses import idle
from overlaplab.analyses.exposed import Cause
from overlaplab.findings import CAUSE_MEANINGS, exposed_advice, verdict


def test_the_advice_follows_the_most_expensive_cause(tmp_path: Path) -> None:
    events = [backward(0, 600), op("mm", 0, 600), *bucket(0, 100, 610, 620, 790), op("mm", 800, 900)]
    run = run_of(tmp_path, events, events)
    table, causes = overlaplab.summary(run), overlaplab.exposed(run)
    assert exposed_advice(table, causes).startswith("Go after blocking first: it is 100\u00a0% of all exposed")
    for cause in Cause:
        advice = exposed_advice(table, causes.assign(cause=cause.value), idle(run))
        assert advice.startswith("Leave" if cause is Cause.GAP else f"Go after {cause.value} first")
        assert (CAUSE_MEANINGS[cause] in advice) is (cause is not Cause.GAP)
    tail = causes.assign(cause="tail")
    assert "bucket_cap_mb" in exposed_advice(table, tail)
    for what, remedy in (("layers.0", "Make what is reduced last smaller"), (None, "Make the last one smaller")):
        assert remedy in exposed_advice(table, tail.assign(what=what)), "no cap helps what is no bucket"
    gaps = pd.concat([tail.assign(exposed_ns=9), tail.assign(cause="compute gap", exposed_ns=10)])
    assert "Compute gaps, the largest part," in exposed_advice(table.assign(idle_ns=0), gaps)


def test_advice_where_communication_is_not_the_problem(tmp_path: Path) -> None:
    copies = launched("Memcpy HtoD", 0, 0, 60, cat="gpu_memcpy", correlation=1) + launched(
        "gemm", 1, 60, 100, correlation=2
    )
    run = run_of(tmp_path / "copies", copies)
    table, causes = overlaplab.summary(run), overlaplab.exposed(run)
    assert "Copies are the larger part" in exposed_advice(table, causes, idle(run))
    assert verdict(table, None, causes, idle(run)).endswith("for 60\u00a0% of the step time nothing but copies run.")
    waits = launched("gemm", 0, 0, 10, correlation=1) + launched("gemm", 5, 90, 100, correlation=2)
    run = run_of(tmp_path / "waits", waits)
    advice = exposed_advice(overlaplab.summary(run), overlaplab.exposed(run), idle(run))
    assert advice.endswith("Look at the timeline for what the idle device waits for: another stream, or an event.")
    none = pd.DataFrame({"span_ns": pd.Series([], dtype="int64")})
    assert exposed_advice(none, causes) == "Nothing to do: nothing was measured."
