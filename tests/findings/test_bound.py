"""How short a step could have been, as a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_exposed import backward, bucket
from made_traces import op, run_of

import overlaplab
from overlaplab.analyses import worst_step
from overlaplab.findings import exposed_advice, verdict
from overlaplab.findings.bound import bound_finding, gains_by_buckets

MS = 1_000_000


def window(span: int, exposed: int) -> dict[str, Any]:
    return {"span_ns": span * MS, "exposed_comm_ns": exposed * MS}


def row(compute: int, launched: int, any_cap: int | None, *, waits_known: bool = True) -> dict[str, Any]:
    any_cap_ns = pd.NA if any_cap is None else any_cap * MS
    return {
        "compute_ns": compute * MS,
        "bound_ns": launched * MS,
        "any_cap_ns": any_cap_ns,
        "waits_known": waits_known,
    }


@pytest.mark.parametrize(
    ("bound", "measured", "sentence"),
    [
        (
            row(600, 700, 669),
            window(799, 116),
            "That step takes 799.0 ms: at best 752.0 ms with other buckets, and 683.0 ms without any communication.",
        ),
        (
            row(600, 700, 669, waits_known=False),
            window(799, 116),
            "That step takes 799.0 ms: at best 752.0 ms with other buckets, and 683.0 ms without any communication,"
            " if none of it is waiting for ranks that are not here.",
        ),
        (
            row(600, 716, 710),
            window(799, 116),
            "At least 110.0 ms of it cannot be hidden by any bucketing: the step takes 799.0 ms, at best 793.0 ms with"
            " other buckets, and 683.0 ms without any communication.",
        ),
        (
            row(600, 650, None),
            window(799, 116),
            "That step takes 799.0 ms: at best 733.0 ms as its collectives were launched, without delays and late"
            " ranks, and 683.0 ms without any communication.",
        ),
        (
            row(600, 710, None),
            window(799, 116),
            "That step takes 799.0 ms, and would take 683.0 ms without any communication.",
        ),
        (row(600, 650, 640), window(799, 0), None),
    ],
)
def test_sentences(bound: dict[str, Any], measured: dict[str, Any], sentence: str | None) -> None:
    said = bound_finding(bound, measured)
    assert (said and said.replace("\u00a0", " ")) == sentence


@pytest.mark.parametrize(
    ("bound", "measured", "gain"),
    [
        (row(600, 700, 669), window(799, 116), 47 * MS),
        (row(600, 700, 720), window(799, 116), 0),  # what was recorded was as good
        (row(600, 700, None), window(799, 116), None),
    ],
)
def test_what_other_buckets_gain(bound: dict[str, Any], measured: dict[str, Any], gain: int | None) -> None:
    assert gains_by_buckets(bound, measured) == gain


def test_the_verdict_says_it_after_what_was_exposed(tmp_path: Path) -> None:
    events = [backward(0, 600), op("mm", 0, 600), *bucket(0, 100, 610, 620, 790), op("mm", 800, 900)]
    run = run_of(tmp_path, events, events)
    table, causes = overlaplab.summary(run), overlaplab.exposed(run)
    bound = {"compute_ns": 700_000, "bound_ns": 870_000, "any_cap_ns": 800_000, "waits_known": True}
    said = verdict(table, None, causes, None, bound=bound).split(". ")
    assert said[1] == bound_finding(bound, worst_step(table)).removesuffix(".")  # type: ignore[union-attr]
    quiet = verdict(table.assign(exposed_comm_ns=1), None, causes.assign(exposed_ns=1), None, bound=bound)
    assert "at best" not in quiet, "communication is not the problem there"


@pytest.mark.parametrize(
    ("any_cap_ns", "said", "unsaid"),
    [(720_000, "bucket_cap_mb", "No other buckets"), (870_000, "No other buckets", "bucket_cap_mb")],
)
def test_no_cap_is_advised_where_none_helps(tmp_path: Path, any_cap_ns: int, said: str, unsaid: str) -> None:
    events = [backward(0, 600), op("mm", 0, 600), *bucket(0, 100, 610, 620, 790), op("mm", 800, 900)]
    run = run_of(tmp_path, events, events)
    table, tail = overlaplab.summary(run), overlaplab.exposed(run).assign(cause="tail")
    bound = {"compute_ns": 700_000, "bound_ns": 870_000, "any_cap_ns": any_cap_ns, "waits_known": True}
    advice = exposed_advice(table, tail, bound=bound)
    assert said in advice
    assert unsaid not in advice
