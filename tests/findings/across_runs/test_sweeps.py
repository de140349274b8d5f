"""Sentences about a sweep over bucket_cap_mb, and the notes for its readers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from overlaplab.findings.across_runs.sweeps import sweep_advice, sweep_finding, sweep_notes, sweep_title


def swept(**columns: Any) -> pd.DataFrame:
    rows = {
        "bucket_cap_mb": [1.0, 5.0, 25.0],
        "runs": [4, 4, 4],
        "steps": [9, 9, 9],
        "buckets": [20, 4, 1],
        "step_ms": [120.0, 100.0, 104.0],
        "lowest_ms": [119.0, 99.0, 101.5],
        "highest_ms": [121.0, 101.0, 105.0],
        "spread_ms": [2.0, 2.0, 2.0],
        "exposed_ms": [30.0, 10.0, 20.0],
        "tier": [3, 1, 2],
    }
    return pd.DataFrame(rows | columns)


@pytest.mark.parametrize(
    ("columns", "finding", "title"),
    [
        (
            {},
            "Fastest: bucket_cap_mb 5, median step 100.0 ms; 25 is 4\u00a0% slower than 5;"
            " avoid 1, 20\u00a0% slower than 5: every recording of it is slower than every other cap's",
            "Fastest: bucket_cap_mb 5, 100.0 ms per step",
        ),
        (
            {"tier": [2, 1, 1]},
            "bucket_cap_mb 5 and 25 tie, median steps 100.0 ms to 104.0 ms;"
            " avoid 1, 20\u00a0% slower than 5: every recording of it is slower than every other cap's",
            "bucket_cap_mb 5 and 25 tie; avoid 1",
        ),
        (
            {"tier": [2, 1, 1], "step_ms": [104.0, 100.0, 101.0]},
            "bucket_cap_mb 5 and 25 tie, median steps 100.0 ms to 101.0 ms; 1 is 4\u00a0% slower than 5",
            "bucket_cap_mb 5 and 25 tie, others are slower",
        ),
        (
            {"tier": [2, 1, 2], "step_ms": [120.0, 100.0, 115.0], "lowest_ms": [119.0, 99.0, 100.5]},
            "Fastest: bucket_cap_mb 5, median step 100.0 ms; avoid 25 and 1, at least 15\u00a0% slower than 5",
            "Fastest: bucket_cap_mb 5, 100.0 ms per step",
        ),
        (
            {"runs": 1},
            "Fastest in one recording of each: bucket_cap_mb 5, median step 100.0 ms; 25 is 4\u00a0% slower than 5;"
            " 1 is 20\u00a0% slower than 5",
            "Fastest: bucket_cap_mb 5, 100.0 ms per step",
        ),
        (
            {"tier": 1, "runs": 2},
            "6 recordings show no clear difference between caps: bucket_cap_mb 5 has the shortest median step,"
            " 100.0 ms; the next, 25, has 104.0 ms",
            "Step time: recordings show no clear difference",
        ),
        (
            {"tier": 1, "runs": 1},
            "All tie with the shortest: bucket_cap_mb 5 has the shortest median step, 100.0 ms;"
            " the next, 25, has 104.0 ms",
            "Step time: all tie with the shortest",
        ),
        (
            {"tier": 1, "runs": 1, "spread_ms": [2.0, None, 2.0]},
            "Too few steps to show a difference: bucket_cap_mb 5 has the shortest median step, 100.0 ms;"
            " the next, 25, has 104.0 ms",
            "Step time: too few steps to show a difference",
        ),
    ],
)
def test_the_finding_of_a_sweep(columns: dict[str, Any], finding: str, title: str) -> None:
    assert sweep_finding(swept(**columns)) == finding
    assert sweep_title(swept(**columns)) == title


def test_the_advice_of_a_sweep() -> None:
    won = swept()
    train, rest = sweep_advice(won)
    assert train.startswith("Train with bucket_cap_mb 5 on")
    assert "10.0 ms of its step (10\u00a0%)" in rest
    assert sweep_advice(won.assign(runs=[4, 3, 4]))[0].startswith("Repeat it first: overlaplab sweep with --repeats 4")
    train, more, rest = sweep_advice(won.assign(tier=[2, 1, 1]))
    assert train.startswith("Train with bucket_cap_mb 5 or 25 on")
    assert "--repeats 8" in more
    assert "10.0 ms of the step with 5 (10\u00a0%)" in rest
    edge = swept(step_ms=[90.0, 100.0, 110.0], tier=[1, 2, 3])
    assert "add smaller ones" in sweep_advice(edge)[1]
    edge = swept(step_ms=[120.0, 100.0, 90.0], tier=[3, 2, 1])
    assert "larger" not in " ".join(sweep_advice(edge))  # one bucket: nothing is larger
    assert "add larger ones" in sweep_advice(edge.assign(buckets=[20, 4, 2]))[1]


def test_the_advice_where_no_cap_is_faster() -> None:
    none = swept(tier=1)
    assert "--repeats 8" in sweep_advice(none)[0]
    assert "--repeats 4" in sweep_advice(none.assign(runs=1))[0]
    assert "Leave bucket_cap_mb as it is" in sweep_advice(none.assign(step_ms=[100.0, 101.0, 120.0]))[0]


def test_what_a_reader_of_a_sweep_must_know() -> None:
    assert sweep_notes(swept()) == ()
    assert "no spread" in sweep_notes(swept(spread_ms=[2.0, None, 2.0]))[0]
    assert "one recording" in sweep_notes(swept(runs=[1, 1, 1]))[0]
    assert "2 recordings of each cannot tell" in sweep_notes(swept(runs=2))[0]
    assert "by chance in 33\u00a0% of cases; 4 can" in sweep_notes(swept(runs=2))[0]
    assert "by chance in 10\u00a0% of cases; 4 can" in sweep_notes(swept(runs=3))[0]
    assert sweep_notes(swept(runs=[4, 5, 4])) == (
        "not every cap was recorded as often (recordings by cap: 1: 4, 5: 5, 25: 4)",
    )
    assert "caps 5 and 25 make the same number of buckets, 1" in sweep_notes(swept(buckets=[20, 1, 1]))[0]
