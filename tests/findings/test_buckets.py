"""Sentences about buckets, from tables written by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from overlaplab.analyses import late_buckets
from overlaplab.findings import buckets_advice, buckets_lead, late_sentences
from overlaplab.words import gradient_word

MS = 1_000_000


def bucket(index: int, ready: list[float | None], launch: float, start: float, end: float, exposed: float) -> Any:
    """A bucket whose gradients `p<index>.<n>` are ready at these ms."""
    names = tuple(f"p{index}.{number}" for number in range(len(ready)))
    known = [(time, name) for time, name in zip(ready, names, strict=True) if time is not None]
    return {
        "index": index,
        "backward_end_ns": 20 * MS,
        "parameters": names,
        "gradient_ready_ns": tuple(None if time is None else int(time * MS) for time in ready),
        "last_parameter": max(known)[1] if known else None,
        "arrivals": tuple(None if time is None else place for place, time in enumerate(ready, start=1)),
        "shapes": (None,) * len(ready),
        "ready_ns": int(max(known)[0] * MS) if known else None,
        "launch_ns": int(launch * MS),
        "start_ns": int(start * MS),
        "end_ns": int(end * MS),
        "exposed_ns": int(exposed * MS),
    }


def test_the_bucket_that_held_others_names_its_last_gradient() -> None:
    table = pd.DataFrame(
        [
            bucket(0, [1, 2], 2, 2, 3, 0),
            bucket(1, [3, 9.5], 9.5, 9.5, 10, 0),
            bucket(2, [4, 5], 9.5, 10, 11, 0),
            bucket(3, [6, 7], 9.5, 11, 12, 0.25),
        ]
    )
    late = late_buckets(table)
    assert late[["index", "parameter", "gap_ns", "held_ns", "held", "link_ns", "exposed_ns"]].to_dict("records") == [
        {
            "index": 1,
            "parameter": "p1.1",
            "gap_ns": 6.5 * MS,
            "held_ns": 4.5 * MS,
            "held": (2, 3),
            "link_ns": 0,
            "exposed_ns": 0,
        },
        {
            "index": 3,
            "parameter": "p3.1",
            "gap_ns": 1 * MS,
            "held_ns": 0,
            "held": (),
            "link_ns": 1.5 * MS,
            "exposed_ns": 0.25 * MS,
        },
    ]
    assert late_sentences(late) == [
        "Bucket 1 was held by p1.1, whose gradient came last, 6.5 ms after the one before it; buckets 2 and 3 stood"
        " ready and waited up to 4.5 ms for it. Exposed: 0 ms.",
        "Bucket 3 waited 1.5 ms for the busy link; its last gradient was p3.1, 1.0 ms after the one before it."
        " Exposed: 0.25 ms.",
    ]


def test_where_all_waited_for_backward_by_design_no_bucket_held_another() -> None:
    table = pd.DataFrame([bucket(0, [9], 21, 21, 22, 1), bucket(1, [3], 22, 22, 23, 1)])
    assert late_buckets(table)["held_ns"].tolist() == [0, 0]


def test_a_bucket_is_not_held_by_one_that_was_launched_before_it_was_ready() -> None:
    table = pd.DataFrame([bucket(0, [5], 5, 5, 6, 0), bucket(1, [7], 7, 7, 8, 0)])
    assert late_buckets(table).empty
    out_of_order = pd.DataFrame([bucket(0, [9], 9, 9, 10, 0), bucket(1, [5], 5, 5, 6, 0)])
    assert late_buckets(out_of_order).empty


def test_a_free_link_is_not_waited_for() -> None:
    """The time that a collective takes to begin on a free link is that of its thread waking up."""
    table = pd.DataFrame(
        [bucket(0, [1], 1, 1, 3, 0), bucket(1, [2, 2.5], 2.5, 3.25, 6, 3), bucket(2, [8], 8, 9, 12, 3)]
    )
    assert late_buckets(table).set_index("index")["link_ns"].to_dict() == {1: 0.5 * MS, 2: 0}


def test_unused_gradients_do_not_count() -> None:
    table = pd.DataFrame([bucket(0, [None, 4, None], 4, 4, 9, 5), bucket(1, [None], 9, 9, 10, 1)])
    late = late_buckets(table)
    assert late["gap_ns"].isna().tolist() == [True, True]
    assert late_sentences(late)[0] == (
        "Bucket 0 was held by p0.1, whose gradient came last, the only one in it. Exposed: 5.0 ms."
    )
    assert "an unknown gradient" in late_sentences(late)[1]


def test_advice_blames_a_gradient_only_where_a_bucket_stood_ready() -> None:
    alone = pd.DataFrame([bucket(0, [1], 1, 1, 9, 5), bucket(1, [20], 20, 20, 21, 0)])
    assert late_buckets(alone)["held_ns"].tolist() == [0]
    assert buckets_advice(alone, late_buckets(alone)).startswith("Little is left to compute while bucket 0 is sent")


def test_only_the_most_expensive_buckets_get_a_sentence() -> None:
    table = pd.DataFrame([bucket(number, [number], number, number, number + 1, 1) for number in range(9)])
    assert late_sentences(late_buckets(table), limit=4)[-1] == "5 more late buckets in the table below."


def test_buckets_whose_communication_was_not_found_are_not_called_early() -> None:
    table = pd.DataFrame([bucket(0, [1], 1, 1, 2, 0) | {"rank": 0, "step": 3, "end_ns": None, "exposed_ns": None}])
    late = late_buckets(table)
    assert late.empty
    assert buckets_advice(table, late).startswith("Record with the engine")
    assert buckets_lead(table, late) == (
        "1 bucket of rank 0, step 3: their communication was not found in the trace, only when they were ready."
    )


def test_a_gradient_without_a_name_is_described_by_its_arrival_and_shape() -> None:
    unnamed = {"parameters": (None, None), "last_parameter": None, "shapes": ((8,), (1024, 4096))}
    table = pd.DataFrame([bucket(0, [1, 2], 2, 2, 3, 1) | unnamed | {"arrivals": (16, 17)}])
    (line,) = late_sentences(late_buckets(table))
    assert "was held by gradient 17 (1024×4096), which came last" in line
    (line,) = late_sentences(late_buckets(table.assign(arrivals=[(None, None)])))
    assert "was held by an unknown gradient, which came last" in line


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (("w", 3, (8,)), "w"),
        ((None, 3, (8, 2)), "gradient 3 (8×2)"),
        ((None, 3, ()), "gradient 3 (a scalar)"),
        ((None, 3, None), "gradient 3"),
        ((None, None, None), "an unknown gradient"),
    ],
)
def test_what_a_gradient_is_called(told: tuple[Any, Any, Any], word: str) -> None:
    assert gradient_word(*told) == word
