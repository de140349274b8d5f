"""Sentences about a sweep over bucket_cap_mb, and the notes for its readers."""

from __future__ import annotations

from typing import Any

import pandas as pd

from overlaplab.findings import sweep_advice, sweep_finding, sweep_notes


def swept(**columns: Any) -> pd.DataFrame:
    rows = {
        "bucket_cap_mb": [1.0, 5.0, 25.0],
        "runs": [3, 3, 3],
        "steps": [9, 9, 9],
        "buckets": [20, 4, 1],
        "step_ms": [120.0, 100.0, 110.0],
        "spread_ms": [2.0, 2.0, 2.0],
        "exposed_ms": [30.0, 10.0, 20.0],
        "fastest": [False, True, False],
    }
    return pd.DataFrame(rows | columns)


def test_the_finding_of_a_sweep() -> None:
    won = swept()
    assert sweep_finding(won) == (
        "Fastest: bucket_cap_mb 5, median step 100.0 ms; the next, 25, takes 10.0 ms longer (9.1 % of its step)"
    )
    assert sweep_notes(won) == ()
    train, rest = sweep_advice(won)
    assert train.startswith("Train with bucket_cap_mb 5")
    assert "10.0 ms of its step (10.0 %)" in rest
    assert sweep_advice(won.assign(runs=[3, 2, 3]))[0].startswith("Repeat it first")
    assert sweep_finding(won.assign(runs=1)).startswith("Fastest in one recording of each: bucket_cap_mb 5")
    none = swept(fastest=[False] * 3)
    assert sweep_finding(none).startswith("No difference beyond the spread: bucket_cap_mb 5 has")
    few = none.assign(spread_ms=[2.0, None, 2.0])
    assert sweep_finding(few).startswith("Too few steps to tell a difference: bucket_cap_mb 5 has")
    assert "--steps" in sweep_advice(none)[0]
    assert "--repeats 3" in sweep_advice(none.assign(runs=1))[0]
    assert "Leave bucket_cap_mb as it is" in sweep_advice(none.assign(step_ms=[100.0, 101.0, 120.0]))[0]
    edge = swept(step_ms=[90.0, 100.0, 110.0], fastest=[True, False, False])
    assert "add smaller ones" in sweep_advice(edge)[1]
    edge = swept(step_ms=[120.0, 100.0, 90.0], fastest=[False, False, True])
    assert "larger" not in " ".join(sweep_advice(edge))  # one bucket: nothing is larger
    assert "add larger ones" in sweep_advice(edge.assign(buckets=[20, 4, 2]))[1]


def test_what_a_reader_of_a_sweep_must_know() -> None:
    assert "no spread" in sweep_notes(swept(spread_ms=[2.0, None, 2.0]))[0]
    assert "one recording" in sweep_notes(swept(runs=[1, 1, 1]))[0]
    assert sweep_notes(swept(runs=[3, 2, 3]))[1].endswith("(recordings by cap: 1: 3, 5: 2, 25: 3)")
    assert "caps 5 and 25 make the same number of buckets, 1" in sweep_notes(swept(buckets=[20, 1, 1]))[0]
