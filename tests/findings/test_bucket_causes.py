"""Why each bucket was exposed, from the diagnosis of its step."""

from __future__ import annotations

import pandas as pd
from samples import sample_tables

from overlaplab import analyses, findings


def test_buckets_causes_are_the_diagnosis() -> None:
    tables = sample_tables("bucketed")
    found = tables.diagnosis
    assert found is not None
    causes = findings.bucket_causes(found, tables.buckets)
    of_buckets = [share.rows[share.rows["what"].astype(str).str.startswith("bucket ")] for share in found.causes]
    assert causes["exposed_ns"].sum() == pd.concat(of_buckets)["exposed_ns"].sum() > 0
    assert set(causes["label"]) <= {share.label for share in found.causes}
    assert findings.bucket_causes(None, tables.buckets).empty


def test_buckets_of_one_parameter_have_causes() -> None:
    """`overlaplab.exposed` calls them by their parameters' names."""
    tables = sample_tables("per-param")
    found = tables.diagnosis
    assert found is not None
    buckets = analyses.rows_of(tables.buckets, {"rank": found.rank, "step": found.step})
    causes = findings.bucket_causes(found, buckets)
    rows = pd.concat([share.rows for share in found.causes])
    assert causes["exposed_ns"].sum() == rows.loc[rows["what"].notna(), "exposed_ns"].sum()
    assert set(causes["row"]) == set(buckets.index[buckets["exposed_ns"] > 0])
    longest = buckets.index[buckets["parameters"] == ("layers.0.up.weight",)].item()
    assert findings.bucket_cause_words(causes, longest).startswith("cannot be hidden by any bucketing")


def test_a_bucket_names_its_longest_cause() -> None:
    rows = [(0, "tail", "nothing left", 3), (0, "queued", "link busy", 1), (2, "tail", "nothing left", 5)]
    causes = pd.DataFrame(rows, columns=["row", "cause", "label", "exposed_ns"])
    words = [findings.bucket_cause_words(causes, row) for row in range(3)]
    assert words == ["nothing left, 75\u00a0% of it", "", "nothing left"]


def test_the_best_buckets_in_words() -> None:
    columns = ["bytes", "end_ns", "last_ns"]
    best = pd.DataFrame([(1_000_000, 50, 9_000_000), (2_000_000, 11_000_000, 9_000_000)], columns=columns)
    assert findings.best_buckets_remark(best) == (
        "Last row: the best buckets found on the same link, 2 buckets of 1.0 MB to 2.0 MB; 2.0 ms of them cannot be"
        " hidden."
    )
    assert findings.best_buckets_remark(best.head(0)) is None
