"""Sentences about buckets, from tables written by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from overlaplab.analyses import late_buckets
from overlaplab.findings import buckets_lead, late_sentences
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


def test_a_bucket_that_was_not_found_is_not_called_hidden() -> None:
    table = pd.DataFrame([bucket(0, [1, 2], 2, 2, 3, 0), bucket(1, [3, 4], 4, 4, 5, 0)]).assign(rank=pd.NA, step=pd.NA)
    table = table.astype(dict.fromkeys(("start_ns", "end_ns", "exposed_ns"), "Int64"))
    table.loc[1, ["start_ns", "end_ns", "exposed_ns"]] = pd.NA
    assert buckets_lead(table, late_buckets(table)) == (
        "2 buckets: none is known to be late; the communication of 1 bucket was not found in the trace, all other is"
        " hidden behind compute."
    )


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
        "Bucket 3: p3.1 came last, 1.0 ms after the one before it, and then waited 1.5 ms behind what was sent before"
        " it; 0.25 ms of its communication is exposed.",
    ]


def test_a_parameter_held_a_bucket_only_if_that_would_have_been_launched_earlier() -> None:
    """Bucket 1's last gradient comes 6 ms after the others; bucket 2 was ready, and is sent behind it."""
    table = pd.DataFrame(
        [bucket(0, [1, 2], 2, 2, 8, 0), bucket(1, [4, 10], 10, 10, 18, 3), bucket(2, [7, 9], 10, 18, 26, 6)]
    )
    late = late_buckets(table).set_index("index")
    # Without it: launched at 4, on the link from 8 to 16, then bucket 2 to 24. The backward pass ends at 20.
    assert late[["earlier_ns", "saved_ns"]].to_dict("index") == {
        1: {"earlier_ns": 6 * MS, "saved_ns": 2 * MS},
        2: {"earlier_ns": 0, "saved_ns": 0},
    }
    assert late_sentences(late.reset_index())[1] == (
        "Bucket 1 was held by p1.1, 6.0 ms after the one before it; 3.0 ms of its communication is exposed. Bucket 2"
        " stood ready and waited 1.0 ms for it. Without that delay it could have been launched 6.0 ms earlier, and"
        " 2.0 ms less would be exposed."
    )
    prompt = table.assign(gradient_ready_ns=[(0, 2 * MS), (9_500_000, 10 * MS), (7 * MS, 9 * MS)])
    assert "held" not in " ".join(late_sentences(late_buckets(prompt))), "half a millisecond is no hold"
    early = table.assign(backward_end_ns=30 * MS)
    assert late_buckets(early)["saved_ns"].tolist() == [0, 0], "there was something left to compute"


def test_only_what_matters_is_listed() -> None:
    table = pd.DataFrame([bucket(0, [1], 1, 1, 9, 9.7), bucket(1, [20], 20, 20, 21, 0.3)])
    assert [line.partition(":")[0] for line in late_sentences(late_buckets(table))] == ["Bucket 0"]


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


def test_a_link_that_is_shared_is_not_waited_for() -> None:
    """Gloo may send several buckets at once: the second began long before the first had ended."""
    table = pd.DataFrame([bucket(0, [1], 1, 1, 20, 9), bucket(1, [2], 2, 2.1, 22, 9)])
    assert late_buckets(table)["link_ns"].tolist() == [0, 0]


def test_a_link_that_nothing_used_yet_is_not_waited_for() -> None:
    """On a GPU the host launches ahead; all-reduces of `naive` wait for the whole backward pass, as the link does."""
    table = pd.DataFrame([bucket(0, [15], -9, 16, 17, 1), bucket(1, [2], -8, 17, 18, 1)])
    assert late_buckets(table).set_index("index")["link_ns"].to_dict() == {0: 0, 1: 1 * MS}


def test_unused_gradients_do_not_count() -> None:
    table = pd.DataFrame([bucket(0, [None, 4, None], 4, 4, 9, 5), bucket(1, [None], 9, 9, 10, 1)])
    late = late_buckets(table)
    assert late["gap_ns"].isna().tolist() == [True, True]
    assert late_sentences(late)[0] == (
        "Bucket 0: p0.1 came last, the only one in it; 5.0 ms of its communication is exposed."
    )
    assert "an unknown gradient" in late_sentences(late)[1]


def test_only_the_most_expensive_buckets_get_a_sentence() -> None:
    table = pd.DataFrame([bucket(number, [number], number, number, number + 1, 1) for number in range(9)])
    assert late_sentences(late_buckets(table), limit=4)[-1] == "5 more late buckets in the table below."


def test_buckets_whose_communication_was_not_found_are_not_called_early() -> None:
    table = pd.DataFrame([bucket(0, [1], 1, 1, 2, 0) | {"rank": 0, "step": 3, "end_ns": None, "exposed_ns": None}])
    late = late_buckets(table)
    assert late.empty
    assert buckets_lead(table, late) == (
        "1 bucket of rank 0, step 3: their communication was not found in the trace, only when they were ready."
    )


def test_a_gradient_without_a_name_is_described_by_its_arrival_and_shape() -> None:
    unnamed = {"parameters": (None, None), "last_parameter": None, "shapes": ((8,), (1024, 4096))}
    table = pd.DataFrame([bucket(0, [1, 2], 2, 2, 3, 1) | unnamed | {"arrivals": (16, 17)}])
    (line,) = late_sentences(late_buckets(table))
    assert "gradient 17 (1024×4096) came last" in line
    (line,) = late_sentences(late_buckets(table.assign(arrivals=[(None, None)])))
    assert "an unknown gradient came last" in line


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
