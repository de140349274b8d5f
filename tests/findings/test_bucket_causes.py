"""Why each bucket was exposed, and why compute waited for a gather, from the diagnosis of the step."""

from __future__ import annotations

import pandas as pd
from made.diagnoses import diagnosis
from msgspec.structs import replace
from samples import sample_tables

from overlaplab import analyses, findings
from overlaplab.causes import Cause
from overlaplab.findings.buckets import best_buckets_remark

MS = 1_000_000


def test_buckets_causes_are_the_diagnosis() -> None:
    tables = sample_tables("bucketed")
    found = tables.diagnosis
    assert found is not None
    causes = findings.bucket_causes(found, tables.buckets)
    of_buckets = [share.rows[share.rows["what"].astype(str).str.startswith("bucket ")] for share in found.causes]
    counted = causes[causes["row"].notna()]
    assert counted["exposed_ns"].sum() == pd.concat(of_buckets)["exposed_ns"].sum() > 0
    assert set(causes["label"]) <= {share.label for share in found.causes}
    assert findings.bucket_causes(None, tables.buckets).empty


def test_a_buckets_moments_lie_in_its_transfer() -> None:
    tables = sample_tables("bucketed")
    found = tables.diagnosis
    assert found is not None
    buckets = analyses.rows_of(tables.buckets, {"rank": found.rank, "step": found.step})
    causes = findings.bucket_causes(found, buckets)
    assert (causes["end_ns"] - causes["start_ns"]).equals(causes["exposed_ns"])
    for place, bucket in buckets.iterrows():
        moments = causes[causes["row"] == place]
        assert moments["exposed_ns"].sum() == bucket["exposed_ns"]
        assert bucket["start_ns"] <= moments["start_ns"].min() < moments["end_ns"].max() <= bucket["end_ns"]


def test_buckets_of_one_parameter_have_causes() -> None:
    """`overlaplab.exposed` calls them by their parameters' names."""
    tables = sample_tables("per-param")
    found = tables.diagnosis
    assert found is not None
    buckets = analyses.rows_of(tables.buckets, {"rank": found.rank, "step": found.step})
    causes = findings.bucket_causes(found, buckets)
    counted = causes[causes["row"].notna()]
    rows = pd.concat([share.rows for share in found.causes])
    assert counted["exposed_ns"].sum() == rows.loc[rows["what"].notna(), "exposed_ns"].sum()
    assert set(counted["row"]) == set(buckets.index[buckets["exposed_ns"] > 0])
    longest = buckets[buckets["parameters"] == ("layers.0.up.weight",)].iloc[0]
    assert "cannot be hidden" in str(findings.bucket_cause_words(causes, longest)).split(", ")[0]


def moments(*rows: tuple[int | None, Cause, str, int]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["row", "cause", "label", "exposed_ns"])
    return table.astype({"row": "Int64"}).assign(exposed_ns=table["exposed_ns"] * MS)


def test_a_bucket_names_its_causes_with_their_times() -> None:
    causes = moments(
        (0, Cause.TAIL, "nothing left (tail)", 3),
        (0, Cause.QUEUED, "link busy (queued)", 4),
        (0, Cause.TAIL, "nothing left (tail)", 2),
        (None, Cause.TAIL, "nothing left (tail)", 7),
        *((5, Cause.STRAGGLER, f"waited for rank {rank}", 10 - rank) for rank in range(5)),
    )
    small = [(6, Cause.TAIL, "nothing left (tail)", 50), (6, Cause.LATE, "launched late (late launch)", 2)]
    causes = pd.concat([causes, moments(*small, (6, Cause.GAP, "host paused (compute gap)", 1))], ignore_index=True)
    buckets = pd.DataFrame({"exposed_ns": pd.array([9 * MS, 0, None, MS, 0, 40 * MS, 53 * MS], dtype="Int64")})
    assert [findings.bucket_cause_words(causes, buckets.loc[place]) for place in buckets.index] == [
        "5.0 ms nothing left, 4.0 ms link busy",
        "all hidden",
        None,
        "counted in another collective at the same time",
        "all hidden",
        "10.0 ms waited for rank 0, 9.0 ms waited for rank 1, 8.0 ms waited for rank 2, 13.0 ms in 2 other causes",
        "50.0 ms nothing left, 3.0 ms in 2 other causes",
    ]


def test_sums_that_count_a_moment_twice_are_said() -> None:
    causes = moments((0, Cause.TAIL, "nothing left", 3), (None, Cause.TAIL, "nothing left", 4))
    twice = pd.DataFrame({"exposed_ns": pd.array([3 * MS, 2 * MS], dtype="Int64")})
    note = findings.counted_once_note(causes, twice)
    assert note is not None
    assert "add up to 5.0 ms" in note
    assert "it is 3.0 ms" in note
    assert findings.counted_once_note(causes, twice.head(1)) is None
    assert findings.counted_once_note(causes.head(0), twice) is None


def test_a_gathers_wait_has_the_causes_of_its_moments() -> None:
    """The diagnosis' one moment: nothing left to overlap, from 60 to 90 ms."""
    schedule = pd.DataFrame(
        {
            "wait_ns": pd.array([10 * MS, 10 * MS, 0, None, MS], dtype="Int64"),
            "gather_end_ns": pd.array([70 * MS, 20 * MS, 80 * MS, 80 * MS, 0], dtype="Int64"),
        }
    )
    found = diagnosis()
    table = found.moments.assign(start_ns=60 * MS, end_ns=90 * MS)
    words = list(findings.gather_cause_words(replace(found, moments=table), schedule))
    assert words == ["10.0 ms tail", None, None, None, "waited before the step"]
    assert list(findings.gather_cause_words(None, schedule.head(4))) == [None] * 4


def test_the_best_buckets_in_words() -> None:
    columns = ["bytes", "end_ns", "last_ns"]
    best = pd.DataFrame([(1_000_000, 50, 9_000_000), (2_000_000, 11_000_000, 9_000_000)], columns=columns)
    assert best_buckets_remark(best) == (
        "Last row: the best buckets on the same link, 2 buckets of 1.00 MB to 2.00 MB; the last ends 2.0 ms"
        " after this rank's last gradient, which then comes at 9.0 ms; waits for other ranks are included."
    )
    assert best_buckets_remark(best.head(0)) is None
